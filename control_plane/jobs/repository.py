"""Jobs and idempotency keys in the database."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, insert, literal, or_, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import idempotency_keys, jobs
from control_plane.jobs.phases import ALLOWED, OVERRIDES, Wish

SUMMARY = (
    jobs.c.id,
    jobs.c.name,
    jobs.c.labels,
    jobs.c.phase,
    jobs.c.desired,
    jobs.c.reason,
    jobs.c.priority,
    jobs.c.seed,
    jobs.c.step,
    jobs.c.max_steps,
    jobs.c.current_version,
    jobs.c.progress,
    jobs.c.result,
    jobs.c.created_at,
    jobs.c.started_at,
    jobs.c.finished_at,
    jobs.c.updated_at,
)

IN_FLIGHT_WAIT_S = 3


async def claim_key(
    connection: AsyncConnection, *, principal: str, route: str, key: str, body_digest: str
) -> Row[Any] | None:
    """Take the key for this transaction (None), or see the row of whoever took it before.

    A request under the same key that has not committed yet is waited for; past IN_FLIGHT_WAIT_S PostgreSQL raises
    lock_not_available.
    """
    await connection.execute(text(f"SET LOCAL lock_timeout = '{IN_FLIGHT_WAIT_S}s'"))
    row = {"principal": principal, "route": route, "key": key, "body_digest": body_digest}
    claimed = await connection.execute(
        pg_insert(idempotency_keys).values(row).on_conflict_do_nothing().returning(idempotency_keys.c.key)
    )
    if claimed.first() is not None:
        return None
    return await find_key(connection, principal=principal, route=route, key=key)


async def find_key(connection: AsyncConnection, *, principal: str, route: str, key: str) -> Row[Any] | None:
    """The stored answer under a key, if there is one."""
    found = await connection.execute(select(idempotency_keys).where(_is_key(principal, route, key)))
    return found.first()


async def settle_key(
    connection: AsyncConnection, *, principal: str, route: str, key: str, status: int, response: Mapping[str, Any]
) -> None:
    """Store the answer that later requests under the key get."""
    await connection.execute(
        update(idempotency_keys).where(_is_key(principal, route, key)).values(status=status, response=dict(response))
    )


async def add(connection: AsyncConnection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Insert a job; its summary row."""
    added = await connection.execute(insert(jobs).values(**values).returning(*SUMMARY))
    return dict(added.mappings().one())


async def get(connection: AsyncConnection, job_id: str, *, with_spec: bool = False) -> dict[str, Any] | None:
    """A job's summary, with its resolved spec where asked for."""
    columns = (*SUMMARY, jobs.c.spec) if with_spec else SUMMARY
    found = (await connection.execute(select(*columns).where(jobs.c.id == job_id))).mappings().first()
    return None if found is None else dict(found)


async def exists(connection: AsyncConnection, job_id: str) -> bool:
    found = await connection.execute(select(literal(1)).where(jobs.c.id == job_id))
    return found.first() is not None


async def list_page(
    connection: AsyncConnection,
    *,
    after_id: str | None,
    limit: int,
    phases: Sequence[str],
    name: str | None,
    labels: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Newest first; up to `limit + 1` rows."""
    query: Select[Any] = select(*SUMMARY).order_by(jobs.c.id.desc()).limit(limit + 1)
    if after_id is not None:
        query = query.where(jobs.c.id < after_id)
    if phases:
        query = query.where(jobs.c.phase.in_(phases))
    if name is not None:
        query = query.where(jobs.c.name == name)
    if labels:
        query = query.where(jobs.c.labels.contains(literal(dict(labels), JSONB)))
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def wish(connection: AsyncConnection, job_id: str, wanted: Wish) -> dict[str, Any] | None:
    """Write the wish where the phase allows it; None where it does not, or where there is no such job."""
    pending_overridden = and_(jobs.c.desired.in_(OVERRIDES[wanted]), jobs.c.phase.in_(ALLOWED["cancel"]))
    is_free: ColumnElement[bool] = or_(
        and_(jobs.c.phase.in_(ALLOWED[wanted]), or_(jobs.c.desired.is_(None), jobs.c.desired == wanted)),
        pending_overridden,
    )
    changed = await connection.execute(
        update(jobs)
        .where(jobs.c.id == job_id, is_free)
        .values(desired=wanted, updated_at=func.now())
        .returning(*SUMMARY)
    )
    found = changed.mappings().first()
    return None if found is None else dict(found)


def _is_key(principal: str, route: str, key: str) -> ColumnElement[bool]:
    columns = idempotency_keys.c
    return and_(columns.principal == principal, columns.route == route, columns.key == key)
