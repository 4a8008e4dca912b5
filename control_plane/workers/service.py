"""Registration and its end: one live incarnation per name."""

import asyncio
from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from control_plane.context import Context
from control_plane.workers import repository
from headrace.service.logging import get_logger

log = get_logger(__name__)


class Replaced(Exception):
    """An incarnation that a newer one of the same name has replaced; it must end."""


async def register(context: Context, row: Mapping[str, Any]) -> None:
    """Enter an incarnation; the others of its name end with it. Raises Replaced for one that was ended before."""
    name, worker_id = row["name"], row["worker_id"]
    async with context.database.begin() as connection:
        await repository.lock_name(connection, name)
        if await repository.state_of(connection, worker_id) == "replaced":
            raise Replaced(
                f"{worker_id} was replaced by a newer process of that name; end this one, or give it its own"
            )
        ended = await repository.replace_others(connection, name, worker_id)
        await repository.upsert(connection, row)
    log.info("worker_registered", worker=worker_id, kind=row["kind"], address=row["address"], replaced=ended)
    context.hub.notify("workers")


async def write_beats(context: Context, beats: Mapping[str, Mapping[str, Any]]) -> Mapping[str, bool]:
    """Store heartbeats: worker id -> draining for those that are live."""
    async with context.database.begin() as connection:
        return await repository.beat(connection, beats)


async def deregister(context: Context, worker_id: str) -> None:
    """A process ends on purpose. Unknown ids change nothing."""
    async with context.database.begin() as connection:
        left = await repository.leave(connection, worker_id)
    if left:
        log.info("worker_gone", worker=worker_id)
        context.hub.notify("workers")


async def watch_lapses(context: Context) -> None:
    """Mark silent workers as lapsed, until cancelled.

    It begins one lapse time after the start: while this process was down nobody could have been heard.
    """
    settings = context.settings
    await asyncio.sleep(settings.lapse_after_s)
    while True:
        try:
            async with context.database.begin() as connection:
                lapsed = await repository.lapse(connection, settings.lapse_after_s)
            if lapsed:
                log.warning("workers_lapsed", workers=lapsed, silent_s=settings.lapse_after_s)
                context.hub.notify("workers")
        except (SQLAlchemyError, OSError) as error:
            log.warning("lapse_check_failed", reason=str(error))
        await asyncio.sleep(settings.heartbeat_interval_s)
