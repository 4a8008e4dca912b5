"""Both repositories of a job's rows, each with the little that a test does around it."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from testkit.databases import temporary_database
from testkit.memory_repository import MemoryRepository, MemoryTables

from control_plane.db import tables as t
from control_plane.db.engine import make_engine
from control_plane.db.migrate import migrate
from control_plane.runner import lease
from control_plane.runner.repository import JobRepository

JOB = "job_t"
TTL_S = 60.0


class Shelf(Protocol):
    """A place where one job's rows are kept."""

    async def acquire(self, holder: str) -> int | None: ...

    async def lapse(self) -> None:
        """The owner did not renew in time."""

    def repository(self, epoch: int) -> Any: ...

    async def wish(self, desired: str) -> None: ...

    async def reward(self, trajectory_id: str, attempt: int, name: str, score: float) -> None: ...

    async def job(self) -> dict[str, Any]: ...

    async def events(self) -> list[tuple[str, dict[str, Any]]]: ...

    async def metrics(self) -> dict[tuple[str, int], float]: ...

    async def segments(self) -> list[tuple[str, int, int, int, str, int]]:
        """(trajectory, attempt, position, version, digest, tokens), in order."""

    async def committed_at(self, policy_version: int) -> float: ...


@dataclass
class MemoryShelf:
    tables: MemoryTables = field(default_factory=MemoryTables)

    async def acquire(self, holder: str) -> int | None:
        return self.tables.acquire(holder, TTL_S)

    async def lapse(self) -> None:
        self.tables.now += TTL_S + 1

    def repository(self, epoch: int) -> MemoryRepository:
        return MemoryRepository(self.tables, JOB, epoch, TTL_S)

    async def wish(self, desired: str) -> None:
        self.tables.job["desired"] = desired

    async def reward(self, trajectory_id: str, attempt: int, name: str, score: float) -> None:
        row = {"trajectory_id": trajectory_id, "attempt": attempt, "reward_name": name, "score": score}
        self.tables.rewards.append({**row, "state": "scored"})

    async def job(self) -> dict[str, Any]:
        documents = ("runner_state", "ledger", "progress", "result")
        return {k: json.loads(v) if v and k in documents else v for k, v in self.tables.job.items()}

    async def events(self) -> list[tuple[str, dict[str, Any]]]:
        return self.tables.events

    async def metrics(self) -> dict[tuple[str, int], float]:
        return self.tables.metrics

    async def segments(self) -> list[tuple[str, int, int, int, str, int]]:
        return [
            (*key, row["policy_version"], row["weight_digest"], row["n_tokens"])
            for key, row in sorted(self.tables.segments.items())
        ]

    async def committed_at(self, policy_version: int) -> float:
        moment: float = self.tables.versions[policy_version]["committed_at"]
        return moment


@dataclass
class PostgresShelf:
    engine: AsyncEngine

    async def start(self) -> None:
        job = {"id": JOB, "name": JOB, "spec": {}, "phase": "starting", "seed": 7, "max_steps": 9}
        async with self.engine.begin() as connection:
            await connection.execute(insert(t.jobs).values(job))

    async def acquire(self, holder: str) -> int | None:
        async with self.engine.begin() as connection:
            return await lease.acquire(connection, JOB, holder, TTL_S)

    async def lapse(self) -> None:
        async with self.engine.begin() as connection:
            (epoch,) = (await connection.execute(select(t.job_leases.c.epoch))).scalars()
            await lease.release(connection, JOB, epoch)

    def repository(self, epoch: int) -> JobRepository:
        return JobRepository(self.engine, JOB, epoch, TTL_S)

    async def wish(self, desired: str) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(update(t.jobs).values(desired=desired))

    async def reward(self, trajectory_id: str, attempt: int, name: str, score: float) -> None:
        row = {"trajectory_id": trajectory_id, "attempt": attempt, "reward_name": name, "score": score}
        async with self.engine.begin() as connection:
            await connection.execute(insert(t.rewards).values({**row, "job_id": JOB, "state": "scored", "try": 1}))

    async def job(self) -> dict[str, Any]:
        async with self.engine.connect() as connection:
            return dict((await connection.execute(select(t.jobs))).mappings().one())

    async def events(self) -> list[tuple[str, dict[str, Any]]]:
        async with self.engine.connect() as connection:
            found = await connection.execute(select(t.events.c.type, t.events.c.data).order_by(t.events.c.id))
            return [(row.type, row.data) for row in found]

    async def metrics(self) -> dict[tuple[str, int], float]:
        async with self.engine.connect() as connection:
            return {(row.name, row.step): row.value for row in await connection.execute(select(t.metrics))}

    async def segments(self) -> list[tuple[str, int, int, int, str, int]]:
        s = t.segments.c
        columns = (s.trajectory_id, s.attempt, s.position, s.policy_version, s.weight_digest, s.n_tokens)
        async with self.engine.connect() as connection:
            return [tuple(row) for row in await connection.execute(select(*columns).order_by(*columns[:3]))]  # type: ignore[misc]

    async def committed_at(self, policy_version: int) -> float:
        query = select(t.versions.c.committed_at).where(t.versions.c.policy_version == policy_version)
        async with self.engine.connect() as connection:
            moment: float = (await connection.execute(query)).scalar_one().timestamp()
            return moment


@pytest.fixture(scope="session")
def runner_database_url(postgres_url: str) -> Iterator[str]:
    """A migrated database for these tests, one after another."""
    with temporary_database(postgres_url) as url:
        migrate(url)
        yield url


@pytest.fixture(params=["memory", "postgres"])
async def shelf(request: pytest.FixtureRequest) -> AsyncIterator[Shelf]:
    """A place for one job's rows, with the job in it."""
    if request.param == "memory":
        yield MemoryShelf()
        return
    url = request.getfixturevalue("runner_database_url")
    engine = make_engine(url, pool_size=4, pool_wait_s=5.0)
    shelf = PostgresShelf(engine)
    await shelf.start()
    yield shelf
    await engine.dispose()
    names = sql.SQL(", ").join(map(sql.Identifier, t.metadata.tables))
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(names))
