"""A simulated job's database on real PostgreSQL, through the control plane's own repositories."""

from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from testkit.sim.database import Repository, Row, Rows
from testkit.sim.schedule import Schedule

from control_plane.db import tables as t
from control_plane.rewards import repository as rewards
from control_plane.runner import lease
from control_plane.runner.repository import JobRepository
from headrace.core.job.rows import Key

TTL_S = 3600.0
_REWARD_COLUMNS = frozenset(column.name for column in t.rewards.c)


class PostgresDatabase:
    """Rows of one job; several jobs share an engine and its database."""

    is_read_each_turn = False

    def __init__(self, engine: AsyncEngine, schedule: Schedule) -> None:
        self._engine = engine
        self.job_id = schedule.plan.job_id
        self._plan = schedule.plan
        self._epoch = 0

    async def create(self) -> "PostgresDatabase":
        """The row of a job that a supervisor has just started."""
        plan = self._plan
        values: dict[str, Any] = {"id": self.job_id, "name": "simulated", "spec": {}, "phase": "starting"}
        async with self._engine.begin() as connection:
            await connection.execute(insert(t.jobs).values(**values, seed=plan.seed, max_steps=plan.max_steps))
        return self

    async def acquire(self) -> tuple[int, Repository]:
        async with self._engine.begin() as connection:
            await lease.release(connection, self.job_id, self._epoch)
        async with self._engine.begin() as connection:
            epoch = await lease.acquire(connection, self.job_id, "simulator", TTL_S)
        assert epoch is not None
        self._epoch = epoch
        return epoch, JobRepository(self._engine, self.job_id, epoch, TTL_S)

    async def wish(self, desired: str) -> None:
        async with self._engine.begin() as connection:
            await connection.execute(update(t.jobs).where(t.jobs.c.id == self.job_id).values(desired=desired))

    async def report_reward(self, row: Row) -> None:
        async with self._engine.begin() as connection:
            waiting = await rewards.waiting_attempts(connection, [(row["trajectory_id"], row["attempt"])])
            if waiting:
                filled = {"grader_s": 0.0, "queue_s": 0.0, "worker_id": "grader", **row}
                await rewards.add(connection, [{k: v for k, v in filled.items() if k in _REWARD_COLUMNS}])

    async def rows(self) -> Rows:
        async with self._engine.connect() as connection:

            async def of(table: Any) -> list[Any]:
                owned = table.c.id if table is t.jobs else table.c.job_id
                found = await connection.execute(select(table).where(owned == self.job_id))
                return [dict(row) for row in found.mappings()]

            return Rows(
                job=(await of(t.jobs))[0],
                groups={row["id"]: row for row in await of(t.groups)},
                attempts={Key(row["trajectory_id"], row["attempt"]): row for row in await of(t.attempts)},
                segments={(r["trajectory_id"], r["attempt"], r["position"]): r for r in await of(t.segments)},
                versions={row["policy_version"]: row for row in await of(t.versions)},
                steps={row["step"]: row for row in await of(t.steps)},
                rewards={(r["trajectory_id"], r["attempt"], r["reward_name"]): r for r in await of(t.rewards)},
            )

    async def fingerprint(self) -> str:
        async with self._engine.connect() as connection:
            query = select(t.outbox).where(t.outbox.c.job_id == self.job_id).order_by(t.outbox.c.id)
            outbox = [tuple(row) for row in await connection.execute(query)]
            events = select(t.events.c.id).where(t.events.c.job_id == self.job_id).order_by(t.events.c.id)
            told = [tuple(row) for row in await connection.execute(events)]
        return repr((await self.rows(), outbox, told))
