"""Workers in the database. Time is the database's, so that replicas agree on who has lapsed."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Float, Text, bindparam, cast, column, extract, func, select, text, update, values
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import workers

KINDS = ("inference", "proxy", "trainer", "env", "reward", "weights")
_AGE = cast(extract("epoch", func.now() - workers.c.last_seen_at), Float).label("heartbeat_age_s")
SUMMARY = (*workers.c, _AGE)


async def _give_way(connection: AsyncConnection) -> None:
    """Wait for locks for less than PostgreSQL's deadlock timeout: in a circle of waiters this one, not a job's runner,
    is the one that fails, and the next heartbeat makes up for it."""
    await connection.execute(text("SET LOCAL lock_timeout = '400ms'"))


async def lock_name(connection: AsyncConnection, name: str) -> None:
    """Registrations under one name take turns until the end of the transaction."""
    await connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('worker'), hashtext(:name))"), {"name": name})


async def state_of(connection: AsyncConnection, worker_id: str) -> str | None:
    """The state of one incarnation, None if it never registered."""
    found = await connection.execute(select(workers.c.state).where(workers.c.worker_id == worker_id))
    state: str | None = found.scalar()
    return state


async def replace_others(connection: AsyncConnection, name: str, worker_id: str) -> list[str]:
    """Mark every other incarnation of `name` that may still run as replaced; their ids."""
    changed = await connection.execute(
        update(workers)
        .where(workers.c.name == name, workers.c.worker_id != worker_id, workers.c.state.in_(("live", "lapsed")))
        .values(state="replaced")
        .returning(workers.c.worker_id)
    )
    return list(changed.scalars())


async def upsert(connection: AsyncConnection, row: Mapping[str, Any]) -> None:
    """Insert an incarnation, or bring a lapsed or gone one back."""
    fresh = {**row, "state": "live", "is_draining": False}
    known = {name: value for name, value in fresh.items() if name not in ("worker_id", "kind", "name", "incarnation")}
    await connection.execute(
        insert(workers)
        .values(fresh)
        .on_conflict_do_update(index_elements=[workers.c.worker_id], set_={**known, "last_seen_at": func.now()})
    )


async def beat(connection: AsyncConnection, beats: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """Write many heartbeats with one statement. Worker id -> draining, for those that are live."""
    await _give_way(connection)
    rows = [(worker_id, orjson.dumps(dict(stats)).decode()) for worker_id, stats in sorted(beats.items())]
    fresh = values(column("worker_id", Text), column("stats", Text), name="fresh").data(rows)
    changed = await connection.execute(
        update(workers)
        .where(workers.c.worker_id == fresh.c.worker_id, workers.c.state == "live")
        .values(last_seen_at=func.now(), stats=cast(fresh.c.stats, JSONB))
        .returning(workers.c.worker_id, workers.c.is_draining)
    )
    return dict(changed.all())


async def leave(connection: AsyncConnection, worker_id: str) -> bool:
    """A worker says goodbye. True if it was live or lapsed."""
    changed = await connection.execute(
        update(workers)
        .where(workers.c.worker_id == worker_id, workers.c.state.in_(("live", "lapsed")))
        .values(state="gone", job_id=None)
    )
    return bool(changed.rowcount)


async def lapse(connection: AsyncConnection, after_s: float) -> list[str]:
    """Mark the live workers that have been silent for `after_s` as lapsed; their ids."""
    await _give_way(connection)
    changed = await connection.execute(
        update(workers)
        .where(
            workers.c.state == "live",
            workers.c.last_seen_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, bindparam("after_s", after_s)),
        )
        .values(state="lapsed")
        .returning(workers.c.worker_id)
    )
    return list(changed.scalars())


async def drain(connection: AsyncConnection, worker_id: str) -> dict[str, Any] | None:
    """Ask a worker to finish and leave; its row, None if it never registered."""
    await connection.execute(update(workers).where(workers.c.worker_id == worker_id).values(is_draining=True))
    return await get(connection, worker_id)


async def get(connection: AsyncConnection, worker_id: str) -> dict[str, Any] | None:
    """One worker."""
    found = (await connection.execute(select(*SUMMARY).where(workers.c.worker_id == worker_id))).mappings().first()
    return None if found is None else dict(found)


async def list_page(
    connection: AsyncConnection,
    *,
    kinds: Sequence[str],
    states: Sequence[str],
    job_id: str | None,
    after_id: str | None,
    limit: int,
) -> list[dict[str, Any]]:
    """By worker id; up to `limit + 1` rows."""
    query = select(*SUMMARY).where(workers.c.state.in_(states)).order_by(workers.c.worker_id).limit(limit + 1)
    if kinds:
        query = query.where(workers.c.kind.in_(kinds))
    if job_id is not None:
        query = query.where(workers.c.job_id == job_id)
    if after_id is not None:
        query = query.where(workers.c.worker_id > after_id)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def live_addresses(connection: AsyncConnection, kind: str) -> list[tuple[str, str]]:
    """(worker id, address) of the live workers of a kind that are not draining, most recently seen first."""
    found = await connection.execute(
        select(workers.c.worker_id, workers.c.address)
        .where(workers.c.kind == kind, workers.c.state == "live", workers.c.is_draining.is_(False))
        .order_by(workers.c.last_seen_at.desc())
    )
    return [(worker_id, address) for worker_id, address in found]


async def count_live(connection: AsyncConnection) -> dict[str, int]:
    """Kind -> live workers."""
    found = await connection.execute(
        select(workers.c.kind, func.count()).where(workers.c.state == "live").group_by(workers.c.kind)
    )
    return dict(found.all())
