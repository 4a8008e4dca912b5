"""Reward rows. The natural key is (trajectory_id, attempt, reward_name)."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, case, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import attempts, jobs, rewards

Key = tuple[str, int, str]


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
    statement = insert(rewards).values([dict(row) for row in rows])
    fresh = statement.excluded
    may_retry = case((rewards.c.fault["retryable"].as_boolean(), True), else_=False)
    names = ("state", "score", "components", "fault", "try", "grader_s", "queue_s", "worker_id")
    written = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[rewards.c.trajectory_id, rewards.c.attempt, rewards.c.reward_name],
            set_={**{name: fresh[name] for name in names}, "reported_at": func.now()},
            where=and_(rewards.c.state == "unscorable", may_retry, rewards.c["try"] < fresh["try"]),
        ).returning(rewards.c.trajectory_id, rewards.c.attempt, rewards.c.reward_name)
    )
    return {(trajectory, attempt, name) for trajectory, attempt, name in written}


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
