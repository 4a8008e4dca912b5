"""Reports of one batch on their way, so that a score does not wait for a slow neighbour."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from headrace.wire.control.v1 import control_pb2

LINGER_S = 0.2


class Outgoing:
    """Sends what was added, at the latest ``linger_s`` later, from a thread of its own.

    Leaving the block sends the rest and raises what a sending raised.
    """

    def __init__(self, send: Callable[[list[control_pb2.RewardReport]], None], linger_s: float = LINGER_S) -> None:
        self._send, self._linger_s = send, linger_s
        self._waiting: list[control_pb2.RewardReport] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def add(self, report: control_pb2.RewardReport) -> None:
        """Queue one report."""
        with self._lock:
            self._waiting.append(report)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._linger_s)
            with self._lock:
                reports, self._waiting = self._waiting, []
            if reports and self._error is None:
                try:
                    self._send(reports)
                except Exception as error:  # noqa: BLE001 -- it is raised where the block is left
                    self._error = error
