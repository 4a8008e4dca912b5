"""Steps, versions and metrics in the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import metrics, steps, versions

VERSION = tuple(column for column in versions.c if column.name != "manifest")


async def list_steps(
    connection: AsyncConnection, job_id: str, *, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Newest first; up to `limit + 1` rows."""
    query = select(steps).where(steps.c.job_id == job_id).order_by(steps.c.step.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(steps.c.step < before)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def list_versions(
    connection: AsyncConnection, job_id: str, *, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Newest first; up to `limit + 1` rows."""
    query = (
        select(*VERSION).where(versions.c.job_id == job_id).order_by(versions.c.policy_version.desc()).limit(limit + 1)
    )
    if before is not None:
        query = query.where(versions.c.policy_version < before)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def metric_names(connection: AsyncConnection, job_id: str) -> list[str]:
    """Names that the job has points of: one look into the index per name, however many points it has."""

    def least_after(name: ColumnElement[Any] | None) -> ScalarSelect[Any]:
        query = select(func.min(metrics.c.name)).where(metrics.c.job_id == job_id)
        return (query if name is None else query.where(metrics.c.name > name)).scalar_subquery()

    names = select(least_after(None).label("name")).cte("names", recursive=True)
    names = names.union_all(select(least_after(names.c.name)).where(names.c.name.is_not(None)))
    found = await connection.execute(select(names.c.name).where(names.c.name.is_not(None)))
    return list(found.scalars())


async def points(
    connection: AsyncConnection, job_id: str, names: Sequence[str], *, first: int, last: int
) -> dict[str, list[tuple[int, float | None]]]:
    """Points by name, in ascending step order, of steps `first` to `last`."""
    query = (
        select(metrics.c.name, metrics.c.step, metrics.c.value)
        .where(metrics.c.job_id == job_id, metrics.c.name.in_(names), metrics.c.step.between(first, last))
        .order_by(metrics.c.name, metrics.c.step)
    )
    series: dict[str, list[tuple[int, float | None]]] = {}
    for name, step, value in await connection.execute(query):
        series.setdefault(name, []).append((step, value))
    return series
