"""Which processes live, and for which job they work.

Inference workers, trainers and proxies serve one job at a time; the others are shared by all jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import workers


@dataclass(frozen=True, slots=True)
class Process:
    worker_id: str
    kind: str
    name: str
    address: str
    pool: str
    job_id: str | None


async def live(connection: AsyncConnection) -> list[Process]:
    query = select(workers).where(workers.c.state == "live", ~workers.c.is_draining).order_by(workers.c.name)
    return [
        Process(
            row["worker_id"],
            row["kind"],
            row["name"],
            row["address"],
            row["labels"].get("pool", "default"),
            row["job_id"],
        )
        for row in (await connection.execute(query)).mappings()
    ]


async def assign(connection: AsyncConnection, job_id: str, kind: str, count: int) -> list[str]:
    """Takes up to `count` free processes of a kind for the job; their ids."""
    free = (
        select(workers.c.worker_id)
        .where(workers.c.kind == kind, workers.c.state == "live", workers.c.job_id.is_(None), ~workers.c.is_draining)
        .order_by(workers.c.name)
        .limit(count)
        .with_for_update(skip_locked=True)
    )
    taken = update(workers).where(workers.c.worker_id.in_(free)).values(job_id=job_id).returning(workers.c.worker_id)
    return list((await connection.execute(taken)).scalars())


async def count_free(connection: AsyncConnection, kind: str) -> int:
    query = (
        select(func.count())
        .select_from(workers)
        .where(workers.c.kind == kind, workers.c.state == "live", workers.c.job_id.is_(None), ~workers.c.is_draining)
    )
    return int((await connection.execute(query)).scalar_one())


async def release(connection: AsyncConnection, job_id: str) -> None:
    await connection.execute(update(workers).where(workers.c.job_id == job_id).values(job_id=None))


def of_kind(processes: Sequence[Process], kind: str, job_id: str | None = None) -> list[Process]:
    """Those of a kind; with `job_id` only the ones assigned to it."""
    return [p for p in processes if p.kind == kind and (job_id is None or p.job_id == job_id)]
