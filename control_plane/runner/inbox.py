"""Events that wait for the next turn of a runner."""

import asyncio
from collections import deque

from headrace.core.job.events import Event

LINGER_S = 0.01
"""How long a turn waits for company once something is there: the database costs per turn, not per event."""


class Inbox:
    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._is_filled = asyncio.Event()

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._is_filled.set()

    async def drain(self, timeout_s: float) -> list[Event]:
        """All that wait, in order; empty when nothing came within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_filled.wait()
        except TimeoutError:
            return []
        await asyncio.sleep(LINGER_S)
        drained = list(self._events)
        self._events.clear()
        self._is_filled.clear()
        return drained
