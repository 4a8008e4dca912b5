"""The process behind an isolated environment: frames in on standard input, frames out on standard output.

A frame is four bytes of length and JSON. What the environment prints goes to standard error.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any, BinaryIO

from env_svc.faults import AttemptFault
from env_svc.session import Session
from env_svc.spec import PluginSpec
from headrace.service.child import die_with_parent

HEADER_BYTES = 4


def main() -> None:
    """Serve until standard input ends."""
    # A hanging environment must not outlive the service.
    die_with_parent(int(sys.argv[1]))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    session: Session | None = None
    while (request := _read(requests)) is not None:
        if request["method"] == "reset":
            session = Session(PluginSpec(**request["spec"]))
        _write(answers, _answer(session, request))


def _answer(session: Session | None, request: dict[str, Any]) -> dict[str, Any]:
    try:
        assert session is not None, "the first request is a reset"
        match request["method"]:
            case "reset":
                return {"result": asdict(session.reset(request["seed"]))}
            case "step":
                return {"result": asdict(session.step(request["text"]))}
            case _:
                session.close()
                return {"result": None}
    except AttemptFault as fault:
        return {"fault": {"code": fault.code, "detail": fault.detail, "retryable": fault.retryable}}
    except Exception as error:  # noqa: BLE001 -- the parent has to hear of anything that a close raises
        return {"fault": {"code": "close_error", "detail": f"{type(error).__name__}: {error}"}}


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    header = stream.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    request: dict[str, Any] = json.loads(stream.read(int.from_bytes(header, "big")))
    return request


def _write(stream: BinaryIO, answer: dict[str, Any]) -> None:
    payload = json.dumps(answer).encode()
    stream.write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)
    stream.flush()


if __name__ == "__main__":
    main()
