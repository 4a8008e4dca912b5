"""Reading an event log as it grows."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from control_plane.context import Context
from control_plane.events import repository
from control_plane.http.answers import encode
from control_plane.http.problems import not_found
from control_plane.jobs.phases import TERMINAL

POLL_S = 0.75
COMMENT_S = 15.0
STREAM_BATCH = 200
RETRY_MS = 1000


async def read(context: Context, job_id: str, last_id: int, limit: int) -> tuple[list[dict[str, Any]], str]:
    """Events after `last_id`, and the job's phase as it was before they were read. Raises 404.

    In this order a terminal phase with no events left means that none will come.
    """
    async with context.database.connect() as connection:
        phase = await repository.phase(connection, job_id)
        if phase is None:
            raise not_found("job", job_id)
        return await repository.after(connection, job_id, last_id, limit), phase


async def poll(context: Context, job_id: str, *, last_id: int, limit: int, wait_s: float) -> dict[str, Any]:
    """What is new after `last_id`, waiting up to `wait_s` for it."""
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s
    while True:
        seen = context.hub.changes(f"events:{job_id}")
        items, phase = await read(context, job_id, last_id, limit)
        left = end - loop.time()
        if items or phase in TERMINAL or left <= 0 or context.closing.is_set():
            next_after = items[-1]["id"] if items else last_id
            return {"items": items, "next_after": next_after, "is_complete": phase in TERMINAL and not items}
        await context.hub.wait(f"events:{job_id}", min(POLL_S, left), since=seen)


async def stream(context: Context, job_id: str, last_id: int) -> AsyncIterator[bytes]:
    """Server-sent events from after `last_id` until the job has ended and all is told, or the process stops.

    A comment every COMMENT_S keeps proxies from closing a quiet stream. The last event is called `end`.
    """
    loop = asyncio.get_running_loop()
    yield f"retry: {RETRY_MS}\n\n".encode()
    spoke_at = loop.time()
    while not context.closing.is_set():
        seen = context.hub.changes(f"events:{job_id}")
        items, phase = await read(context, job_id, last_id, STREAM_BATCH)
        if items:
            yield b"".join(map(frame, items))
            last_id, spoke_at = items[-1]["id"], loop.time()
            continue
        if phase in TERMINAL:
            yield f"event: end\ndata: {encode({'phase': phase}).decode()}\n\n".encode()
            return
        if loop.time() - spoke_at >= COMMENT_S:
            yield b": still here\n\n"
            spoke_at = loop.time()
        await context.hub.wait(f"events:{job_id}", POLL_S, since=seen)


def frame(event: dict[str, Any]) -> bytes:
    """One event in the wire format; its JSON has no line breaks."""
    return f"id: {event['id']}\nevent: {event['type']}\ndata: ".encode() + encode(event) + b"\n\n"
