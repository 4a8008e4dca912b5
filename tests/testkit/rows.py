"""Rows of a job as its runner would leave them, for tests of what reads them."""

from collections.abc import Iterable
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import (
    attempts,
    events,
    groups,
    jobs,
    metadata,
    metrics,
    rewards,
    segments,
    steps,
    versions,
    workers,
)


async def add_job(connection: AsyncConnection, job_id: str = "job_1", **columns: Any) -> str:
    """A running job of one task, whose spec is as far as the API reads it."""
    values: dict[str, Any] = {
        "id": job_id,
        "name": job_id,
        "spec": {
            "async": {"alpha": 1},
            "batch": {"groups": 2},
            "tasks": [{"name": "calculator", "rewards": [{"name": "exact"}, {"name": "style"}]}],
        },
        "phase": "running",
        "seed": 7,
        "max_steps": 10,
        "current_version": 3,
        "step": 3,
        **columns,
    }
    await connection.execute(insert(jobs).values(values))
    return job_id


async def add_group(connection: AsyncConnection, group_id: str, ordinal: int, **columns: Any) -> None:
    """A group of the job `job_1`."""
    values = {
        "id": group_id,
        "job_id": "job_1",
        "ordinal": ordinal,
        "purpose": "train",
        "task": "calculator",
        "env_seed": 1,
        "admitted_version": 3,
        "state": "open",
        **columns,
    }
    await connection.execute(insert(groups).values(values))


async def add_attempt(connection: AsyncConnection, trajectory_id: str, attempt: int = 1, **columns: Any) -> None:
    """An attempt of the job `job_1` and the group `grp_1` that is being scored."""
    values = {
        "trajectory_id": trajectory_id,
        "attempt": attempt,
        "job_id": "job_1",
        "group_id": "grp_1",
        "purpose": "train",
        "task": "calculator",
        "sibling": 0,
        "kind": "first",
        "state": "scoring",
        **columns,
    }
    await connection.execute(insert(attempts).values(values))


async def add_segment(connection: AsyncConnection, trajectory_id: str, position: int, **columns: Any) -> None:
    """A run of tokens of attempt 1."""
    values = {
        "trajectory_id": trajectory_id,
        "attempt": 1,
        "position": position,
        "job_id": "job_1",
        "policy_version": 3,
        "worker_id": "inference-0@a",
        "weight_digest": "d3",
        "n_tokens": 2,
        **columns,
    }
    await connection.execute(insert(segments).values(values))


async def add_version(connection: AsyncConnection, policy_version: int, **columns: Any) -> None:
    """A committed version of `job_1`."""
    values = {
        "job_id": "job_1",
        "policy_version": policy_version,
        "parent_version": policy_version - 1 if policy_version else None,
        "depth": policy_version,
        "step": policy_version,
        "state": "committed",
        "manifest": b"",
        "manifest_digest": f"m{policy_version}",
        "total_bytes": 100,
        **columns,
    }
    await connection.execute(insert(versions).values(values))


async def add_step(connection: AsyncConnection, step: int, **columns: Any) -> None:
    """A committed step of `job_1`."""
    values = {
        "job_id": "job_1",
        "step": step,
        "state": "committed",
        "batch_digest": f"b{step}",
        "policy_version": step - 1,
        "published_version": step,
        "n_groups": 2,
        "seconds": {"generate": 0.5, "train": 0.25},
        **columns,
    }
    await connection.execute(insert(steps).values(values))


async def add_reward(connection: AsyncConnection, trajectory_id: str, **columns: Any) -> None:
    """A reward of attempt 1 of a trajectory of `job_1`."""
    values = {
        "trajectory_id": trajectory_id,
        "attempt": 1,
        "reward_name": "exact",
        "job_id": "job_1",
        "state": "scored",
        "score": 1.0,
        "try": 1,
        **columns,
    }
    await connection.execute(insert(rewards).values(values))


async def add_worker(connection: AsyncConnection, name: str, kind: str, **columns: Any) -> None:
    """The incarnation `a` of a live worker."""
    values = {
        "worker_id": f"{name}@a",
        "kind": kind,
        "name": name,
        "incarnation": "a",
        "address": "127.0.0.1:1",
        "state": "live",
        **columns,
    }
    await connection.execute(insert(workers).values(values))


async def add_metric(connection: AsyncConnection, name: str, points: Iterable[tuple[int, float | None]]) -> None:
    """A series of `job_1`."""
    rows = [{"job_id": "job_1", "name": name, "step": step, "value": value} for step, value in points]
    await connection.execute(insert(metrics), rows)


async def add_events(connection: AsyncConnection, types: Iterable[str], job_id: str = "job_1") -> None:
    """Lines of a job's log."""
    rows = [{"job_id": job_id, "type": name, "data": {"n": number}} for number, name in enumerate(types)]
    await connection.execute(insert(events), rows)


def empty_all(database_url: str) -> None:
    """Take every row out of a migrated database."""
    names = sql.SQL(", ").join(map(sql.Identifier, metadata.tables))
    with psycopg.connect(database_url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names))
