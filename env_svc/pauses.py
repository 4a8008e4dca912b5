"""Pausing a job: no new episodes and no new turns; environments stay for a while, and deadlines stand still."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from env_svc.faults import InfraFault


class Gate:
    """Open while the job runs. Past ``ttl_s`` of a pause those who wait give up, which frees their environments."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._open = asyncio.Event()
        self._open.set()
        self._paused_at_s = 0.0
        self._deadlines: set[asyncio.Timeout] = set()
        self._left_s: dict[asyncio.Timeout, float] = {}

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    def pause(self) -> None:
        """Hold new turns; repeats are harmless."""
        if not self._open.is_set():
            return
        self._open.clear()
        self._paused_at_s = _now()
        for deadline in self._deadlines:
            self._hold(deadline)

    def resume(self) -> None:
        """Let turns begin again; every held deadline has the time left that it had."""
        if self._open.is_set():
            return
        self._open.set()
        for deadline, left_s in self._left_s.items():
            deadline.reschedule(_now() + left_s)
        self._left_s.clear()

    async def passed(self) -> None:
        """Return while the job runs.

        Raises:
            InfraFault: ``pause_expired``.
        """
        while not self._open.is_set():
            try:
                async with asyncio.timeout_at(self._paused_at_s + self._ttl_s):
                    await self._open.wait()
            except TimeoutError:
                raise InfraFault("pause_expired", f"paused for {self._ttl_s:g} s (limits.pause_ttl_s)") from None

    @contextmanager
    def extends(self, deadline: asyncio.Timeout) -> Iterator[None]:
        """Inside the block, pauses do not count towards ``deadline``."""
        self._deadlines.add(deadline)
        if not self._open.is_set():
            self._hold(deadline)
        try:
            yield
        finally:
            self._deadlines.discard(deadline)
            self._left_s.pop(deadline, None)

    def _hold(self, deadline: asyncio.Timeout) -> None:
        when = deadline.when()
        if when is not None and not deadline.expired():
            self._left_s[deadline] = max(when - _now(), 0.0)
            deadline.reschedule(None)


def _now() -> float:
    return asyncio.get_running_loop().time()
