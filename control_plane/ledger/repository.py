"""Counts over a job's groups and attempts."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Float, case, cast, extract, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import attempts, groups, jobs


async def recorded(connection: AsyncConnection, job_id: str) -> dict[str, Any] | None:
    """The job's own ledger, current version and spec; None if there is no such job."""
    found = await connection.execute(
        select(jobs.c.ledger, jobs.c.current_version, jobs.c.step, jobs.c.spec).where(jobs.c.id == job_id)
    )
    row = found.mappings().first()
    return None if row is None else dict(row)


async def count_attempts(
    connection: AsyncConnection, job_id: str, *, states: Collection[str] | None = None
) -> list[tuple[str, str, str, int]]:
    """(purpose, task, state, count) of every attempt of the job, or of those in `states`."""
    columns = attempts.c
    query = (
        select(columns.purpose, columns.task, columns.state, func.count())
        .where(columns.job_id == job_id)
        .group_by(columns.purpose, columns.task, columns.state)
        .order_by(columns.purpose, columns.task, columns.state)
    )
    if states is not None:
        query = query.where(columns.state.in_(sorted(states)))
    found = await connection.execute(query)
    return [(purpose, task, state, count) for purpose, task, state, count in found]


async def stock(connection: AsyncConnection, job_id: str) -> list[dict[str, Any]]:
    """Groups not yet taken, by state, task and oldest start version, with their ages in seconds.

    The age of a ready group counts from when it became ready, of any other from its admission.
    """
    per_group = (
        select(
            groups.c.state,
            groups.c.task,
            func.min(attempts.c.start_version).label("version"),
            cast(extract("epoch", func.now() - func.coalesce(_ready_at(), groups.c.created_at)), Float).label("age_s"),
        )
        .select_from(groups.outerjoin(attempts, attempts.c.group_id == groups.c.id))
        .where(
            groups.c.job_id == job_id,
            groups.c.purpose == "train",
            groups.c.state.in_(("open", "complete", "ready")),
        )
        .group_by(groups.c.id)
        .subquery()
    )
    query = (
        select(
            per_group.c.state,
            per_group.c.task,
            per_group.c.version,
            func.count().label("groups"),
            func.min(per_group.c.age_s).label("age_min_s"),
            func.avg(per_group.c.age_s).label("age_mean_s"),
            func.max(per_group.c.age_s).label("age_max_s"),
        )
        .group_by(per_group.c.state, per_group.c.task, per_group.c.version)
        .order_by(per_group.c.state, per_group.c.task, per_group.c.version)
    )
    return [dict(row) for row in (await connection.execute(query)).mappings()]


def _ready_at() -> Any:
    return case((groups.c.state == "ready", groups.c.ready_at))
