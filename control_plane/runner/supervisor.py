"""Gives queued jobs their workers, in order, and every job without a runner one.

Several control planes may do this at once: the lease row decides who runs a job, row locks who assigns workers.
"""

import asyncio
import os
import socket
from typing import Any

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.db import tables as t
from control_plane.hub import Hub
from control_plane.runner import directory, lease
from control_plane.runner.runner import Runner, Tools
from control_plane.runner.samplers import SamplerRefused
from control_plane.runner.scoring import RewardSender
from control_plane.settings import ControlSettings
from headrace.client.jobspec import SpecError, parse
from headrace.core.job.state import Phase
from headrace.service.logging import get_logger

log = get_logger(__name__)

LOOK_S = 0.5
LEASE_TTL_S = 5.0
MAX_CRASHES = 3
_WITH_RUNNER = [p.value for p in (Phase.STARTING, Phase.RUNNING, Phase.PAUSING, Phase.PAUSED, Phase.CANCELLING)]


class RunnerSupervisor:
    """Lives as long as the control plane does. `control_address`: where reward workers report."""

    def __init__(self, engine: AsyncEngine, hub: Hub, settings: ControlSettings, control_address: str) -> None:
        self._engine = engine
        self._hub = hub
        self._holder = f"{socket.gethostname()}:{os.getpid()}"
        self._sender = RewardSender(settings.broker_url, control_address)
        export_root = os.path.abspath(f"{settings.data_dir}/models")
        self._tools = Tools(engine, hub, self._sender, export_root, settings.sampler_modules, LEASE_TTL_S)
        self._runners: dict[str, asyncio.Task[None]] = {}
        self._crashes: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="runner supervisor")

    async def stop(self) -> None:
        """Runners stop where they are; whoever takes a job up next goes on from its last transaction."""
        tasks = [task for task in (self._task, *self._runners.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sender.close()

    async def _run(self) -> None:
        while True:
            seen = self._hub.changes("jobs")
            try:
                await self._start_queued()
                await self._adopt()
            except (SQLAlchemyError, OSError) as error:
                log.warning("supervision_failed", reason=str(error))
            await self._hub.wait("jobs", LOOK_S, since=seen)

    # -- queued jobs ---------------------------------------------------------------------------------------------------

    async def _start_queued(self) -> None:
        """The first job in order that gets what it needs; those behind it wait, so that none is starved."""
        async with self._engine.begin() as connection:
            query = select(t.jobs.c.id, t.jobs.c.spec, t.jobs.c.desired, t.jobs.c.reason).where(
                t.jobs.c.phase == Phase.QUEUED.value
            )
            ordered = query.order_by(t.jobs.c.priority.desc(), t.jobs.c.created_at, t.jobs.c.id)
            is_blocked = False
            for row in await connection.execute(ordered.with_for_update(skip_locked=True)):
                if row.desired == "cancel":
                    await self._set_phase(connection, row.id, Phase.CANCELLED, "cancelled before it started")
                    continue
                if is_blocked:
                    continue
                lacking = await self._lacking(connection, row.spec)
                if lacking:
                    await self._note(connection, row.id, row.reason, lacking)
                    is_blocked = True
                    continue
                await directory.assign(connection, row.id, "trainer", 1)
                await directory.assign(connection, row.id, "proxy", 1)
                await directory.assign(connection, row.id, "inference", row.spec["resources"]["inference"]["max"])
                await self._set_phase(connection, row.id, Phase.STARTING, None)

    async def _lacking(self, connection: AsyncConnection, spec: dict[str, Any]) -> str:
        """What the job still waits for, as its reason; empty when it can start."""
        wanted = {"trainer": 1, "proxy": 1, "inference": spec["resources"]["inference"]["min"]}
        for kind, count in wanted.items():
            free = await directory.count_free(connection, kind)
            if free < count:
                return f"waits for {count} free {kind} worker(s), {free} are free"
        processes = await directory.live(connection)
        missing = [kind for kind in ("env", "weights") if not directory.of_kind(processes, kind)]
        return f"waits for a live process of kind {', '.join(missing)}" if missing else ""

    async def _note(self, connection: AsyncConnection, job_id: str, before: str | None, reason: str) -> None:
        if reason != before:
            await connection.execute(
                update(t.jobs).where(t.jobs.c.id == job_id).values(reason=reason, updated_at=func.now())
            )

    async def _set_phase(self, connection: AsyncConnection, job_id: str, phase: Phase, reason: str | None) -> None:
        values: dict[str, Any] = {"phase": phase.value, "reason": reason, "updated_at": func.now()}
        if phase in (Phase.CANCELLED, Phase.FAILED):
            values |= {"finished_at": func.now(), "desired": None}
        await connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(values))
        data = {"phase": phase.value, "reason": reason or ""}
        await connection.execute(insert(t.events).values(job_id=job_id, type="job.phase", data=data))
        self._hub.notify(f"events:{job_id}")

    # -- runners -------------------------------------------------------------------------------------------------------

    async def _adopt(self) -> None:
        """Starts a runner for every job whose lease is free."""
        async with self._engine.begin() as connection:
            query = select(t.jobs.c.id, t.jobs.c.spec).where(t.jobs.c.phase.in_(_WITH_RUNNER))
            jobs = [row for row in await connection.execute(query) if row.id not in self._runners]
            taken = [(row, await lease.acquire(connection, row.id, self._holder, LEASE_TTL_S)) for row in jobs]
        for row, epoch in taken:
            if epoch is not None:
                self._runners[row.id] = asyncio.create_task(
                    self._run_one(row.id, epoch, row.spec), name=f"runner {row.id}"
                )

    async def _run_one(self, job_id: str, epoch: int, document: dict[str, Any]) -> None:
        try:
            runner = Runner(self._tools, job_id, epoch, parse(document))
            await runner.run()
            await self._finish(job_id)
        except lease.LeaseLost as error:
            log.warning("lease_lost", job_id=job_id, reason=str(error))
        except asyncio.CancelledError:
            await self._let_go(job_id, epoch)
            raise
        except SpecError as error:
            await self._fail(job_id, f"spec_unreadable: {error}")
        except SamplerRefused as error:
            await self._fail(job_id, f"sampler_refused: {error}")
        except (SQLAlchemyError, OSError) as error:
            log.warning("runner_interrupted", job_id=job_id, reason=str(error))
            await self._let_go(job_id, epoch)
        except Exception as error:
            # A defect of ours: it is tried again from the last transaction, then shown to the owner.
            log.exception("runner_crashed", job_id=job_id)
            self._crashes[job_id] = self._crashes.get(job_id, 0) + 1
            if self._crashes[job_id] >= MAX_CRASHES:
                await self._fail(job_id, f"runner_crashed: {type(error).__name__}: {error}")
            else:
                await self._let_go(job_id, epoch)
        finally:
            self._runners.pop(job_id, None)

    async def _let_go(self, job_id: str, epoch: int) -> None:
        try:
            async with self._engine.begin() as connection:
                await lease.release(connection, job_id, epoch)
        except (SQLAlchemyError, OSError) as error:
            log.warning("lease_not_released", job_id=job_id, reason=str(error))

    async def _finish(self, job_id: str) -> None:
        async with self._engine.begin() as connection:
            await directory.release(connection, job_id)
            await lease.forget(connection, job_id)
        self._hub.notify("jobs")

    async def _fail(self, job_id: str, reason: str) -> None:
        async with self._engine.begin() as connection:
            await self._set_phase(connection, job_id, Phase.FAILED, reason[:4000])
            await directory.release(connection, job_id)
            await lease.forget(connection, job_id)
        self._hub.notify("jobs")
