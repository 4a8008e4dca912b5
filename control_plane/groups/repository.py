"""Groups and how far their siblings are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import attempts, groups


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list of groups is narrowed to; empty fields narrow nothing."""

    states: Sequence[str] = ()
    task: str | None = None
    purpose: str | None = None
    step: int | None = None

    def apply(self, query: Select[Any]) -> Select[Any]:
        if self.states:
            query = query.where(groups.c.state.in_(self.states))
        equal = {groups.c.task: self.task, groups.c.purpose: self.purpose, groups.c.step: self.step}
        for column, value in equal.items():
            if value is not None:
                query = query.where(column == value)
        return query


async def list_page(
    connection: AsyncConnection, job_id: str, filters: Filters, *, before_ordinal: int | None, limit: int
) -> list[dict[str, Any]]:
    """Newest admission first; up to `limit + 1` rows, each with its attempts counted by state."""
    query = filters.apply(select(groups).where(groups.c.job_id == job_id))
    query = query.order_by(groups.c.ordinal.desc()).limit(limit + 1)
    if before_ordinal is not None:
        query = query.where(groups.c.ordinal < before_ordinal)
    rows = [dict(row) for row in (await connection.execute(query)).mappings()]
    members = await _members(connection, [row["id"] for row in rows])
    for row in rows:
        row["attempts"] = members.get(row["id"], {})
    return rows


async def _members(connection: AsyncConnection, group_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    counted: dict[str, dict[str, int]] = {}
    if not group_ids:
        return counted
    query = (
        select(attempts.c.group_id, attempts.c.state, func.count())
        .where(attempts.c.group_id.in_(group_ids))
        .group_by(attempts.c.group_id, attempts.c.state)
    )
    for group_id, state, count in await connection.execute(query):
        counted.setdefault(group_id, {})[state] = count
    return counted
