"""Attempts, their segments and rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, case, null, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import attempts, rewards, segments

# While an attempt is scored its row holds the sum so far, which is nobody's reward.
REWARD = case((attempts.c.state == "scoring", null()), else_=attempts.c.reward).label("reward")
_ALL = tuple(REWARD if column.name == "reward" else column for column in attempts.c)
SUMMARY = tuple(column for column in _ALL if column.name not in ("phases", "fault", "reward_components"))


@dataclass(frozen=True, slots=True)
class Filters:
    """What a list of attempts is narrowed to; empty fields narrow nothing. Bounds are inclusive."""

    states: Sequence[str] = ()
    task: str | None = None
    purpose: str | None = None
    group_id: str | None = None
    step: int | None = None
    version_gte: int | None = None
    version_lte: int | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    is_truncated: bool | None = None

    def apply(self, query: Select[Any]) -> Select[Any]:
        columns = attempts.c
        if self.states:
            query = query.where(columns.state.in_(self.states))
        equal = {
            columns.task: self.task,
            columns.purpose: self.purpose,
            columns.group_id: self.group_id,
            columns.step: self.step,
            columns.is_truncated: self.is_truncated,
        }
        for column, value in equal.items():
            if value is not None:
                query = query.where(column == value)
        if self.version_gte is not None:
            query = query.where(columns.start_version >= self.version_gte)
        if self.version_lte is not None:
            query = query.where(columns.start_version <= self.version_lte)
        if self.min_reward is not None:
            query = query.where(columns.reward >= self.min_reward, columns.state != "scoring")
        if self.max_reward is not None:
            query = query.where(columns.reward <= self.max_reward, columns.state != "scoring")
        return query


async def list_page(
    connection: AsyncConnection, job_id: str, filters: Filters, *, after: tuple[str, int] | None, limit: int
) -> list[dict[str, Any]]:
    """Attempts by (trajectory_id, attempt), newest first; up to `limit + 1` rows."""
    place = (attempts.c.trajectory_id, attempts.c.attempt)
    query = (
        filters.apply(select(*SUMMARY).where(attempts.c.job_id == job_id))
        .order_by(*(column.desc() for column in place))
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(tuple_(*place) < after)
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def attempts_of(connection: AsyncConnection, trajectory_id: str) -> list[dict[str, Any]]:
    """Every attempt of a trajectory, in order, with its segments and rewards."""
    rows = await _rows(connection, select(*_ALL).where(attempts.c.trajectory_id == trajectory_id))
    parts = await _rows(
        connection,
        select(segments)
        .where(segments.c.trajectory_id == trajectory_id)
        .order_by(segments.c.attempt, segments.c.position),
    )
    scores = await _rows(
        connection,
        select(rewards)
        .where(rewards.c.trajectory_id == trajectory_id)
        .order_by(rewards.c.attempt, rewards.c.reward_name),
    )
    for row in rows:
        row["segments"] = [_without_key(part) for part in parts if part["attempt"] == row["attempt"]]
        row["rewards"] = [_without_key(score) for score in scores if score["attempt"] == row["attempt"]]
    return sorted(rows, key=lambda row: int(row["attempt"]))


async def _rows(connection: AsyncConnection, query: Select[Any]) -> list[dict[str, Any]]:
    return [dict(row) for row in (await connection.execute(query)).mappings()]


def _without_key(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("trajectory_id", "attempt", "job_id")}
