"""The way from the generation loop to its consumer: batches of chunks, in order, then an end or an error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from inference_svc.engine.engine import EngineDied, TokenChunk


class Outbox:
    """An unbounded queue from one thread to one asyncio consumer.

    ``put`` and ``close`` may be called from any thread; one wake-up serves all batches that wait. The engine's own
    running and waiting limits bound what can pile up here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready = asyncio.Event()
        self._batches: deque[list[TokenChunk]] = deque()
        self._is_closed = False
        self._error: BaseException | None = None

    def put(self, chunks: list[TokenChunk]) -> None:
        """Hand over chunks; nothing is kept after ``close``."""
        if chunks and not self._is_closed:
            self._batches.append(chunks)
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the stream after what is queued, by ``error`` if given."""
        if not self._is_closed:
            self._error = error
            self._is_closed = True
            self._wake()

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)

    async def stream(self) -> AsyncIterator[list[TokenChunk]]:
        """All that waits, merged into one batch per wake-up. Raises EngineDied if the loop ended by an error."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            is_closed = self._is_closed
            waiting: list[TokenChunk] = []
            while self._batches:
                waiting.extend(self._batches.popleft())
            if waiting:
                yield waiting
            if is_closed:
                break
        if self._error is not None:
            raise EngineDied(f"the generation loop ended: {self._error!r}") from self._error
