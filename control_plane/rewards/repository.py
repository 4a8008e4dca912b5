"""Reward rows. The natural key is (trajectory_id, attempt, reward_name)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    Integer,
    and_,
    case,
    cast,
    extract,
    func,
    literal,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningInsert

from control_plane.db.tables import attempts, jobs, rewards, workers

Key = tuple[str, int, str]
OUTCOMES = ("scored", "abstained", "unscorable")
QUANTILES = (0.5, 0.9, 0.99, 1.0)


async def waiting_attempts(connection: AsyncConnection, keys: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Any]:
    """(trajectory, attempt) -> (job id, task) of those that are being scored.

    Read without locks, lest a report and the runner's transaction wait for each other in a circle: a reward may so be
    written for an attempt that has just left, where nobody reads it.
    """
    found = await connection.execute(
        select(attempts.c.trajectory_id, attempts.c.attempt, attempts.c.job_id, attempts.c.task).where(
            tuple_(attempts.c.trajectory_id, attempts.c.attempt).in_(list(keys)),
            attempts.c.state == "scoring",
        )
    )
    return {(trajectory, attempt): (job_id, task) for trajectory, attempt, job_id, task in found}


async def job_tasks(connection: AsyncConnection, job_ids: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Job id -> the tasks of its spec."""
    found = await connection.execute(select(jobs.c.id, jobs.c.spec["tasks"]).where(jobs.c.id.in_(job_ids)))
    return {job_id: tasks or [] for job_id, tasks in found}


async def add(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> set[Key]:
    """Insert outcomes with distinct keys; those that were written.

    A stored fault that is worth another try gives way to the report of a later try; nothing else does.
    """
    if not rows:
        return set()
    written = await connection.execute(_add(), [dict(row) for row in rows])
    return {(trajectory, attempt, name) for trajectory, attempt, name in written}


@cache
def _add() -> ReturningInsert[Any]:
    """The statement, made once: making and compiling it costs more than running it."""
    statement = insert(rewards)
    fresh = statement.excluded
    may_retry = case((rewards.c.fault["retryable"].as_boolean(), True), else_=False)
    names = ("state", "score", "components", "fault", "try", "grader_s", "queue_s", "worker_id")
    return statement.on_conflict_do_update(
        index_elements=[rewards.c.trajectory_id, rewards.c.attempt, rewards.c.reward_name],
        set_={**{name: fresh[name] for name in names}, "reported_at": func.now()},
        where=and_(rewards.c.state == "unscorable", may_retry, rewards.c["try"] < fresh["try"]),
    ).returning(rewards.c.trajectory_id, rewards.c.attempt, rewards.c.reward_name)


async def count_duplicates(connection: AsyncConnection, keys: Mapping[Key, int]) -> None:
    """Add to the duplicates of rewards that are stored; other keys are ignored."""
    for (trajectory_id, attempt, name), count in sorted(keys.items()):
        await connection.execute(
            update(rewards)
            .where(
                rewards.c.trajectory_id == trajectory_id,
                rewards.c.attempt == attempt,
                rewards.c.reward_name == name,
            )
            .values(duplicates=rewards.c.duplicates + count)
        )


async def outcomes(connection: AsyncConnection, job_id: str) -> list[dict[str, Any]]:
    """By reward name: outcomes, retries, duplicates and the graders' seconds."""
    columns = rewards.c
    query = (
        select(
            columns.reward_name.label("name"),
            *(func.count().filter(columns.state == state).label(state) for state in OUTCOMES),
            func.count().filter(columns["try"] > 1).label("retried"),
            cast(func.sum(columns.duplicates), BigInteger).label("duplicates"),
            func.sum(columns.grader_s).label("busy_s"),
        )
        .where(columns.job_id == job_id)
        .group_by(columns.reward_name)
        .order_by(columns.reward_name)
    )
    return [dict(row) for row in (await connection.execute(query)).mappings()]


async def times(connection: AsyncConnection, job_id: str, n_newest: int) -> dict[str, dict[str, list[float]]]:
    """Reward name -> `queue_s` and `grader_s` at QUANTILES, over the newest outcomes of the job."""
    newest = (
        select(rewards.c.reward_name, rewards.c.queue_s, rewards.c.grader_s)
        .where(rewards.c.job_id == job_id)
        .order_by(rewards.c.reported_at.desc())
        .limit(n_newest)
        .subquery()
    )
    shares = literal(list(QUANTILES), ARRAY(Float))
    queue, grader = (
        func.percentile_cont(shares).within_group(column) for column in (newest.c.queue_s, newest.c.grader_s)
    )
    found = await connection.execute(select(newest.c.reward_name, queue, grader).group_by(newest.c.reward_name))
    return {name: {"queue_s": queue_s, "grader_s": grader_s} for name, queue_s, grader_s in found}


async def count_scoring(connection: AsyncConnection, job_id: str) -> int:
    """Attempts of the job that wait for rewards."""
    found = await connection.execute(
        select(func.count()).where(attempts.c.job_id == job_id, attempts.c.state == "scoring")
    )
    return int(found.scalar_one())


async def slots(connection: AsyncConnection, start: datetime, end: datetime) -> dict[str, Any]:
    """Reward workers: `slots`, what those live now grade at once; `slot_s`, seconds from `start` to `end` in which
    workers were there, times what each grades at once."""
    told = workers.c.capabilities["concurrency"].astext
    at_once = case((told.regexp_match("^[1-9][0-9]{0,5}$"), cast(told, Integer)), else_=1)
    is_live = workers.c.state == "live"
    until = func.least(case((is_live, func.now()), else_=workers.c.last_seen_at), end)
    present = cast(extract("epoch", until - func.greatest(workers.c.registered_at, start)), Float)
    found = await connection.execute(
        select(
            func.coalesce(func.sum(func.greatest(present, 0.0) * at_once), 0.0).label("slot_s"),
            func.coalesce(func.sum(at_once).filter(is_live), 0).label("slots"),
        ).where(workers.c.kind == "reward")
    )
    return dict(found.mappings().one())


async def busy_for_others(connection: AsyncConnection, job_id: str, start: datetime, end: datetime) -> float:
    """Seconds in graders for other jobs, of outcomes reported from `start` to `end`."""
    beside = select(jobs.c.id).where(
        jobs.c.id != job_id, jobs.c.started_at <= end, func.coalesce(jobs.c.finished_at, end) >= start
    )
    found = await connection.execute(
        select(func.coalesce(func.sum(rewards.c.grader_s), 0.0)).where(
            rewards.c.job_id.in_(beside), rewards.c.reported_at.between(start, end)
        )
    )
    return float(found.scalar_one())


async def span(connection: AsyncConnection, job_id: str) -> tuple[datetime | None, datetime] | None:
    """From when to when a job has run so far, by the database's clock; None if there is no such job."""
    found = await connection.execute(
        select(jobs.c.started_at, func.coalesce(jobs.c.finished_at, func.now())).where(jobs.c.id == job_id)
    )
    row = found.first()
    return None if row is None else (row[0], row[1])
