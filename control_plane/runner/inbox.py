"""Events that wait for the next turn of a runner."""

import asyncio
from collections import deque

from headrace.core.job.events import Event

APART_S = 0.025
"""Turns are so far apart at least, since the database costs per turn; after a quiet time one begins at once."""


class Inbox:
    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._is_filled = asyncio.Event()
        self._drained_at = float("-inf")

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._is_filled.set()

    async def drain(self, timeout_s: float) -> list[Event]:
        """All that wait, in order; empty when nothing came within `timeout_s`."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_filled.wait()
        except TimeoutError:
            return []
        await asyncio.sleep(max(0.0, self._drained_at + APART_S - loop.time()))
        self._drained_at = loop.time()
        drained = list(self._events)
        self._events.clear()
        self._is_filled.clear()
        return drained
