"""The process that graders run in: frames in on standard input, frames out on standard output.

A frame is four bytes of length and JSON. What a grader prints goes to standard error. Graders run in the main thread,
so that those which set an alarm for themselves work.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from headrace.service.child import die_with_parent
from reward_svc.call import GraderFault, grade, load

HEADER_BYTES = 4


def main() -> None:
    """Serve until standard input ends. Arguments: the parent's pid, and the memory limit in MiB (0: none)."""
    # A hanging grader must not outlive its worker.
    die_with_parent(int(sys.argv[1]))
    if memory_mb := int(sys.argv[2]):
        resource.setrlimit(resource.RLIMIT_DATA, (memory_mb << 20, memory_mb << 20))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    graders: dict[str, Callable[..., Any]] = {}
    while (request := _read(requests)) is not None:
        _write(answers, _answer(graders, request))


def _answer(graders: dict[str, Callable[..., Any]], request: dict[str, Any]) -> dict[str, Any]:
    fn = request["fn"]
    try:
        if request["method"] == "load":
            graders[fn] = load(fn)
            return {}
        score = grade(graders[fn], request["document"])
        return {"score": score.value, "components": score.components}
    except GraderFault as fault:
        return {"fault": {"code": fault.code, "detail": fault.detail, "retryable": fault.retryable}}


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    request: dict[str, Any] = json.loads(stream.read(int.from_bytes(header, "big")))
    return request


def _write(stream: BinaryIO, answer: dict[str, Any]) -> None:
    payload = json.dumps(answer, allow_nan=False).encode()
    stream.write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)
    stream.flush()


if __name__ == "__main__":
    main()
