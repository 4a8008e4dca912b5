"""Drives one UCX worker from the asyncio loop: spins while bytes move, sleeps in epoll when nothing does.

UCX completes nothing by itself: somebody has to call progress. Its own asyncio modes either burn a core when idle or
wake once per fragment; this loop does neither. It also fails what is in flight when the peer dies: UCX can leave a
request pending for ever then.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace.core.weights.errors import BadTransfer, PeerLost

SPIN_S = 0.002  # how long to go on spinning after the last fragment
CALLS_PER_TURN = 32  # progress calls between two looks at the event loop
WATCH_S = 0.25  # how often a waiting request's peer is looked at


class Progress:
    """`is_alive` says whether the peer still is; requests in flight fail with PeerLost once it is not."""

    def __init__(self, worker: Any, is_alive: Callable[[], bool]) -> None:
        worker.init_blocking_progress_mode()
        self._worker = worker
        self._is_alive = is_alive
        self._loop = asyncio.get_running_loop()
        self._fd: int = worker.epoll_file_descriptor
        self._pending: list[tuple[Any, asyncio.Future[None], object]] = []
        self._abandoned: list[tuple[Any, asyncio.Future[None], object]] = []
        self._spin_until_s = 0.0
        self._handle: asyncio.Handle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._loop.add_reader(self._fd, self._wake)
        self._wake()

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def n_pending(self) -> int:
        return len(self._pending)

    def submit(self, request: Any, memory: object) -> asyncio.Future[None]:
        """Resolves when the request completes. `memory` is kept alive until then, as UCX does not do it."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._pending.append((request, future, memory))
        self._wake()
        if self._watch is None:
            self._watch = self._loop.call_later(WATCH_S, self._look)
        return future

    def poke(self) -> None:
        """Lets an idle worker look after its keep-alives."""
        self._wake()

    def close(self) -> list[object]:
        """Stops. Returns the memory of requests that had not completed; UCX may still write to it."""
        self._loop.remove_reader(self._fd)
        for handle in (self._handle, self._watch):
            if handle is not None:
                handle.cancel()
        self._fail("the session was closed")
        memory = [item[2] for item in self._abandoned]
        self._abandoned.clear()
        self._worker = None
        return memory

    def _wake(self) -> None:
        self._spin_until_s = time.monotonic() + SPIN_S
        if self._handle is None:
            self._handle = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._handle = None
        if self._worker is None:
            return
        moved = False
        for _ in range(CALLS_PER_TURN):
            if not self._worker.progress_once():
                break
            moved = True
        now_s = time.monotonic()
        if self._resolve() or moved:
            self._spin_until_s = now_s + SPIN_S
        has_work = bool(self._pending) and now_s < self._spin_until_s
        if moved or has_work or not self._worker.arm():
            self._handle = self._loop.call_soon(self._turn)

    def _resolve(self) -> bool:
        """Hands out what completed; true if anything did."""
        waiting = []
        for item in self._pending:
            request, future, _ = item
            if not request.completed:
                waiting.append(item)
            elif not future.done():
                self._settle(request, future)
        is_changed = len(waiting) != len(self._pending)
        self._pending = waiting
        return is_changed

    @staticmethod
    def _settle(request: Any, future: asyncio.Future[None]) -> None:
        try:
            request.check_error()
        except Exception as error:  # noqa: BLE001 -- ucxx has a class per UCX status and no useful base
            name = type(error).__name__
            is_too_long = "Truncated" in name
            kind = BadTransfer if is_too_long else PeerLost
            future.set_exception(kind(f"{name}: {error}"))
        else:
            future.set_result(None)

    def _look(self) -> None:
        self._watch = None
        if not self._pending or self._worker is None:
            return
        self._wake()
        if not self._is_alive():
            self._fail("the other side is gone")
            return
        self._watch = self._loop.call_later(WATCH_S, self._look)

    def _fail(self, reason: str) -> None:
        failed, self._pending = self._pending, []
        self._abandoned += failed
        for _, future, _ in failed:
            if not future.done():
                future.set_exception(PeerLost(reason))
                future.exception()  # whoever gave up waiting is not warned about it
