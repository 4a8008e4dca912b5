"""Heartbeats of many workers, written with one statement per tick."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

TICK_S = 0.05

Write = Callable[[Mapping[str, Mapping[str, Any]]], Awaitable[Mapping[str, bool]]]


class Heartbeats:
    """Gathers the beats of one tick. `write` stores them and says which workers are live, and draining."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._waiting: dict[str, Mapping[str, Any]] = {}
        self._flush: asyncio.Task[Mapping[str, bool]] | None = None

    async def beat(self, worker_id: str, stats: Mapping[str, Any]) -> bool | None:
        """Store a heartbeat: whether the worker should drain; None if it is not known as live.

        Raises what the write raises.
        """
        self._waiting[worker_id] = stats
        if self._flush is None:
            self._flush = asyncio.create_task(self._write_soon())
        # Shielded: a caller that gives up must not take the others' write with it.
        live = await asyncio.shield(self._flush)
        return live.get(worker_id)

    async def _write_soon(self) -> Mapping[str, bool]:
        await asyncio.sleep(TICK_S)
        beats, self._waiting, self._flush = self._waiting, {}, None
        return await self._write(beats)
