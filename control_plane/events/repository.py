"""Events in the database. A job has one writer, so its ids grow in the order of its commits."""

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import events, jobs


async def after(connection: AsyncConnection, job_id: str, last_id: int, limit: int) -> list[dict[str, Any]]:
    """Up to `limit` events after `last_id`, oldest first."""
    query = select(events).where(events.c.job_id == job_id, events.c.id > last_id).order_by(events.c.id).limit(limit)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def phase(connection: AsyncConnection, job_id: str) -> str | None:
    """The job's phase; None if there is no such job."""
    found = await connection.execute(select(jobs.c.phase).where(jobs.c.id == job_id))
    phase: str | None = found.scalar()
    return phase
