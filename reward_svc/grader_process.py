"""A grader process as its worker sees it: started when first needed, killed when an item passes its limit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

from reward_svc.call import GraderFault, Score

HEADER_BYTES = 4
LOAD_TIMEOUT_S = 60.0
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "OMP_NUM_THREADS", "VIRTUAL_ENV")


class GraderProcess:
    """Grades one item at a time, for one thread. The process has none of the worker's credentials in its environment.

    A limit is kept by killing the process and everything in its session; the next item starts another.
    """

    def __init__(self, memory_mb: int = 0) -> None:
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._loaded: set[str] = set()

    def grade(self, fn: str, document: Mapping[str, Any], timeout_s: float) -> Score:
        """Import time is not counted towards ``timeout_s``; it has a limit of its own.

        Raises:
            GraderFault: ``timeout``, ``crashed``, or what `reward_svc.call` raises.
        """
        if fn not in self._loaded or not self.is_alive:
            self._call({"method": "load", "fn": fn}, LOAD_TIMEOUT_S)
            self._loaded.add(fn)
        answer = self._call({"method": "grade", "fn": fn, "document": document}, timeout_s)
        return Score(answer["score"], answer["components"])

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Of the live process, if there is one."""
        return self._process.pid if self._process is not None and self.is_alive else None

    def close(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        self._loaded.clear()
        if process is None:
            return
        _kill(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def _call(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        process = self._started()
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            _kill(process)

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            answer = _exchange(process, request)
        except (EOFError, OSError) as error:
            self.close()
            raise self._ended(request["method"], timeout_s, is_late.is_set()) from error
        finally:
            timer.cancel()
        if is_late.is_set():
            self.close()
        if "fault" in answer:
            raise GraderFault(**answer["fault"])
        return answer

    @staticmethod
    def _ended(method: str, timeout_s: float, is_late: bool) -> GraderFault:
        if is_late and method == "load":
            return GraderFault("grader_import", f"the grader's module was not imported within {timeout_s:g} s")
        if is_late:
            return GraderFault("timeout", f"the grader did not return within {timeout_s:g} s (rewards.timeout_s)")
        return GraderFault("crashed", "the grader's process ended", retryable=True)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reward_svc.grader_child", str(os.getpid()), str(self._memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        return self._process


def _exchange(process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    payload = json.dumps(request).encode()
    process.stdin.write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)
    process.stdin.flush()
    header = process.stdout.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        raise EOFError
    n_bytes = int.from_bytes(header, "big")
    body = process.stdout.read(n_bytes)
    if len(body) < n_bytes:
        raise EOFError
    answer: dict[str, Any] = json.loads(body)
    return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
