"""All SQL of job runners. A turn is one transaction that holds only while the lease does."""

from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

from sqlalchemy import RowMapping, Table, bindparam, func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.dialects.postgresql import insert as upsert_into
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from control_plane.db import tables as t
from control_plane.runner import lease, rows
from control_plane.runner.turn import StoredManifest, Turn
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Attempt, Group
from headrace.core.job.snapshot import StoredJob
from headrace.core.job.state import Phase
from headrace.core.ledger import AttemptState
from headrace.core.versions import Lineage, Version


class JobRepository:
    """One job's rows under one lease epoch."""

    def __init__(self, engine: AsyncEngine, job_id: str, epoch: int, lease_ttl_s: float) -> None:
        self._engine = engine
        self._job_id = job_id
        self._epoch = epoch
        self._ttl_s = lease_ttl_s

    async def renew(self) -> None:
        """Raises LeaseLost."""
        async with self._engine.begin() as connection:
            await lease.renew(connection, self._job_id, self._epoch, self._ttl_s)

    async def commit(self, turn: Turn) -> list[int]:
        """Writes the turn; the ids of its outbox entries. Raises LeaseLost, and then nothing was written."""
        async with self._engine.begin() as connection:
            await lease.renew(connection, self._job_id, self._epoch, self._ttl_s)
            await self._write_rows(connection, turn)
            await self._write_job(connection, turn)
            return await self._write_messages(connection, turn)

    async def _write_rows(self, connection: AsyncConnection, turn: Turn) -> None:
        changes, job_id = turn.changes, self._job_id
        await _upsert(connection, t.groups, [rows.group_to_row(job_id, group) for group in changes.groups])
        await _upsert(connection, t.attempts, [rows.attempt_to_row(job_id, a) for a in changes.attempts])
        segments = [row for attempt in changes.finished for row in rows.segment_rows(job_id, attempt)]
        await _upsert(connection, t.segments, segments)
        await self._write_versions(connection, turn)
        await self._write_version_seconds(connection, turn)
        await _upsert(connection, t.steps, [rows.step_to_row(job_id, step) for step in changes.steps])
        points = [
            {"job_id": job_id, "name": point.name, "step": point.step, "value": point.value} for point in turn.metrics
        ]
        await _upsert(connection, t.metrics, points)

    async def _write_versions(self, connection: AsyncConnection, turn: Turn) -> None:
        for version in turn.changes.versions:
            manifest = turn.manifests.get(version.policy_version)
            if manifest is None:  # one that is known and was abandoned now
                await connection.execute(
                    update(t.versions)
                    .where(t.versions.c.job_id == self._job_id, t.versions.c.policy_version == version.policy_version)
                    .values(state=version.state.value)
                )
            else:
                row = self._version_row(version, manifest, turn.now)
                await _upsert(connection, t.versions, [row], only={"state"})  # a version is immutable but for that

    async def _write_version_seconds(self, connection: AsyncConnection, turn: Turn) -> None:
        for version, seconds in turn.version_seconds.items():
            await connection.execute(
                update(t.versions)
                .where(t.versions.c.job_id == self._job_id, t.versions.c.policy_version == version)
                .values(seconds=dict(seconds))
            )

    def _version_row(self, version: Version, manifest: StoredManifest, now: float) -> dict[str, Any]:
        return {
            "job_id": self._job_id,
            "policy_version": version.policy_version,
            "parent_version": version.parent,
            "depth": version.depth,
            "step": version.step,
            "state": version.state.value,
            "manifest": manifest.data,
            "manifest_digest": version.manifest_digest,
            "total_bytes": version.total_bytes,
            "committed_at": rows.at(now),
        }

    async def _write_job(self, connection: AsyncConnection, turn: Turn) -> None:
        values: dict[str, Any] = {
            "phase": turn.phase.value,
            "reason": turn.reason or None,
            "epoch": self._epoch,
            "step": turn.step,
            "current_version": turn.current_version,
            "runner_state": dict(turn.state),
            "ledger": dict(turn.ledger),
            "updated_at": func.now(),
            "started_at": func.coalesce(t.jobs.c.started_at, func.now()),
        }
        if turn.progress is not None:
            values["progress"] = dict(turn.progress)
        if turn.result is not None:
            values["result"] = dict(turn.result)
            values["finished_at"] = func.now()
        await connection.execute(update(t.jobs).where(t.jobs.c.id == self._job_id).values(values))
        if turn.desired_done is not None:
            await connection.execute(
                update(t.jobs)
                .where(t.jobs.c.id == self._job_id, t.jobs.c.desired == turn.desired_done)
                .values(desired=None)
            )

    async def _write_messages(self, connection: AsyncConnection, turn: Turn) -> list[int]:
        events = [
            {"job_id": self._job_id, "type": line.type, "data": dict(line.data), "at": rows.at(turn.now)}
            for line in turn.announced
        ]
        if events:
            await connection.execute(insert(t.events), events)
        if turn.sent:
            await connection.execute(update(t.outbox).where(t.outbox.c.id.in_(turn.sent)).values(sent_at=func.now()))
        if not turn.outbox:
            return []
        entries = [{"job_id": self._job_id, "kind": "score", "payload": dict(payload)} for payload in turn.outbox]
        written = await connection.execute(
            insert(t.outbox).returning(t.outbox.c.id, sort_by_parameter_order=True), entries
        )
        return list(written.scalars())

    # -- reading -----------------------------------------------------------------------------------------------------

    async def desired(self) -> str | None:
        """pause, resume or cancel, as the API wrote it."""
        async with self._engine.connect() as connection:
            found = await connection.execute(select(t.jobs.c.desired).where(t.jobs.c.id == self._job_id))
            return found.scalar_one_or_none()

    async def rewards_of_waiting(self) -> list[RowMapping]:
        """Stored rewards of attempts that are being scored."""
        a, r = t.attempts, t.rewards
        joined = r.join(a, (a.c.trajectory_id == r.c.trajectory_id) & (a.c.attempt == r.c.attempt))
        query = select(r).select_from(joined).where(a.c.job_id == self._job_id, a.c.state == "scoring")
        async with self._engine.connect() as connection:
            return list((await connection.execute(query)).mappings())

    async def unsent(self) -> list[tuple[int, Mapping[str, Any]]]:
        query = select(t.outbox.c.id, t.outbox.c.payload).where(
            t.outbox.c.job_id == self._job_id, t.outbox.c.sent_at.is_(None)
        )
        async with self._engine.connect() as connection:
            return [(row.id, row.payload) for row in await connection.execute(query)]

    async def manifest(self, policy_version: int) -> StoredManifest | None:
        query = select(t.versions.c.manifest, t.versions.c.manifest_digest).where(
            t.versions.c.job_id == self._job_id, t.versions.c.policy_version == policy_version
        )
        async with self._engine.connect() as connection:
            row = (await connection.execute(query)).one_or_none()
            return None if row is None else StoredManifest(bytes(row.manifest), row.manifest_digest)

    async def load(self, plan: JobPlan) -> StoredJob | None:
        """The job as the last turn left it; None before its first turn."""
        async with self._engine.connect() as connection:
            job = (await connection.execute(select(t.jobs).where(t.jobs.c.id == self._job_id))).mappings().one()
            if not job["runner_state"]:
                return None
            versions = await self._versions(connection)
            groups = await self._open_groups(connection, plan)
            lineage = Lineage.of(versions)
            steps = await self._steps(connection, job["runner_state"]["checkpoint_step"], lineage)
        return StoredJob(
            plan,
            Phase(job["phase"]),
            job["reason"] or "",
            job["runner_state"],
            job["ledger"],
            versions,
            groups,
            steps,
        )

    async def _versions(self, connection: AsyncConnection) -> list[Version]:
        columns = [column for column in t.versions.c if column.name != "manifest"]
        query = select(*columns).where(t.versions.c.job_id == self._job_id).order_by(t.versions.c.policy_version)
        return [rows.version_from_row(row) for row in (await connection.execute(query)).mappings()]

    async def _open_groups(self, connection: AsyncConnection, plan: JobPlan) -> list[Group]:
        query = select(t.groups).where(t.groups.c.job_id == self._job_id, t.groups.c.closed_at.is_(None))
        found = {row["id"]: rows.group_from_row(row) for row in (await connection.execute(query)).mappings()}
        for attempt in await self._attempts(connection, t.attempts.c.group_id.in_(found)):
            if attempt.state is AttemptState.SCORING:
                named = set(plan.task(attempt.task).reward_names)
                attempt.pending_rewards = named - attempt.reward_components.keys()
            found[attempt.group_id].members[attempt.key] = attempt
        return sorted(found.values(), key=lambda group: group.ordinal)

    async def _attempts(self, connection: AsyncConnection, condition: Any) -> list[Attempt]:
        query = select(t.attempts).where(t.attempts.c.job_id == self._job_id, condition)
        ordered = query.order_by(t.attempts.c.trajectory_id, t.attempts.c.attempt)
        return [rows.attempt_from_row(row) for row in (await connection.execute(ordered)).mappings()]

    async def _steps(self, connection: AsyncConnection, checkpoint_step: int, lineage: Lineage) -> list[Any]:
        query = select(t.steps).where(
            t.steps.c.job_id == self._job_id, or_(t.steps.c.state == "sampled", t.steps.c.step > checkpoint_step)
        )
        found = list((await connection.execute(query.order_by(t.steps.c.step))).mappings())
        taken = t.attempts.c.step.in_([row["step"] for row in found]) & t.attempts.c.state.in_(["sampled", "trained"])
        members: dict[str, list[Attempt]] = {}
        for attempt in await self._attempts(connection, taken):
            members.setdefault(attempt.group_id, []).append(attempt)
        return [rows.step_from_row(row, members, lineage) for row in found]


async def _upsert(
    connection: AsyncConnection, table: Table, values: Sequence[Mapping[str, Any]], *, only: Set[str] | None = None
) -> None:
    """Insert, or overwrite under the primary key: all columns, or `only` these."""
    if not values:
        return
    changed = frozenset(only) if only else None
    await connection.execute(_upsert_of(table, tuple(values[0]), changed), list(map(dict, values)))


@cache
def _upsert_of(table: Table, names: tuple[str, ...], only: frozenset[str] | None) -> Insert:
    """The statement, made once for each table and set of columns: making it costs more than running it."""
    keys = [column.name for column in table.primary_key]
    changed = only or frozenset(names) - frozenset(keys)
    statement = upsert_into(table).values({name: bindparam(name) for name in names})
    return statement.on_conflict_do_update(
        index_elements=keys, set_={name: statement.excluded[name] for name in sorted(changed)}
    )
