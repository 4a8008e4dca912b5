"""A job's rows in memory, behind the same interface as `control_plane.runner.repository.JobRepository`.

Rows are the database's own (control_plane.runner.rows) and pass through JSON where a column is JSON, so that what
comes back is what PostgreSQL would give. A turn is written whole or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from control_plane.db.engine import dumps
from control_plane.runner import rows
from control_plane.runner.lease import LeaseLost
from control_plane.runner.turn import StoredManifest, Turn
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Attempt, Group, Step
from headrace.core.job.snapshot import StoredJob
from headrace.core.job.state import Phase
from headrace.core.ledger import AttemptState
from headrace.core.versions import Lineage, Version, VersionState

Row = dict[str, Any]


@dataclass
class MemoryTables:
    """Tables by primary key; documents of `job` are JSON text. `now` is the database's clock; only tests move it."""

    job: Row = field(
        default_factory=lambda: {"phase": "starting", "reason": None, "desired": None, "runner_state": "{}"}
    )
    groups: dict[str, Row] = field(default_factory=dict)
    attempts: dict[tuple[str, int], Row] = field(default_factory=dict)
    segments: dict[tuple[str, int, int], Row] = field(default_factory=dict)
    versions: dict[int, Row] = field(default_factory=dict)
    steps: dict[int, Row] = field(default_factory=dict)
    metrics: dict[tuple[str, int], float] = field(default_factory=dict)
    rewards: list[Row] = field(default_factory=list)
    events: list[tuple[str, Row]] = field(default_factory=list)
    outbox: list[Row] = field(default_factory=list)
    lease: tuple[str, int, float] = ("", 0, 0.0)  # holder, epoch, expires at
    now: float = 0.0

    def acquire(self, holder: str, ttl_s: float) -> int | None:
        """The new epoch, or None while somebody else holds the job."""
        _, epoch, expires = self.lease
        if epoch and expires >= self.now:
            return None
        self.lease = (holder, epoch + 1, self.now + ttl_s)
        return epoch + 1


class MemoryRepository:
    """One job's rows under one lease epoch."""

    def __init__(self, tables: MemoryTables, job_id: str, epoch: int, lease_ttl_s: float) -> None:
        self._tables = tables
        self._job_id = job_id
        self._epoch = epoch
        self._ttl_s = lease_ttl_s

    async def renew(self) -> None:
        """Raises LeaseLost."""
        holder, epoch, expires = self._tables.lease
        if epoch != self._epoch or expires <= self._tables.now:
            raise LeaseLost(f"the lease of {self._job_id} at epoch {self._epoch} has lapsed or passed on")
        self._tables.lease = (holder, epoch, self._tables.now + self._ttl_s)

    async def commit(self, turn: Turn) -> list[int]:
        """Writes the turn; the ids of its outbox entries. Raises LeaseLost, and then nothing was written."""
        await self.renew()
        return _write(self._tables, _Rows.of(self._job_id, self._epoch, turn), turn)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def desired(self) -> str | None:
        wish: str | None = self._tables.job["desired"]
        return wish

    async def rewards_of_waiting(self) -> list[Row]:
        """Stored rewards of attempts that are being scored."""
        return [
            reward
            for reward in self._tables.rewards
            if self._state(reward["trajectory_id"], reward["attempt"]) == AttemptState.SCORING
        ]

    def _state(self, trajectory_id: str, attempt: int) -> str | None:
        row = self._tables.attempts.get((trajectory_id, attempt))
        return row["state"] if row else None

    async def unsent(self) -> list[tuple[int, Mapping[str, Any]]]:
        return [(row["id"], row["payload"]) for row in self._tables.outbox if not row["is_sent"]]

    async def manifest(self, policy_version: int) -> StoredManifest | None:
        row = self._tables.versions.get(policy_version)
        return None if row is None else StoredManifest(row["manifest"], row["manifest_digest"])

    async def load(self, plan: JobPlan) -> StoredJob | None:
        """The job as the last turn left it; None before its first turn."""
        tables = self._tables
        if tables.job["runner_state"] == "{}":
            return None
        state = orjson.loads(tables.job["runner_state"])
        versions = [_version(row) for _, row in sorted(tables.versions.items())]
        steps = _steps(tables, state["checkpoint_step"], Lineage.of(versions))
        phase, reason = Phase(tables.job["phase"]), tables.job["reason"] or ""
        ledger = orjson.loads(tables.job["ledger"])
        return StoredJob(plan, phase, reason, state, ledger, versions, _groups(tables, plan), steps)


@dataclass
class _Rows:
    """A turn as rows, all made before the first of them is written: what cannot be stored leaves nothing behind."""

    groups: dict[str, Row]
    attempts: dict[tuple[str, int], Row]
    segments: dict[tuple[str, int, int], Row]
    steps: dict[int, Row]
    job: Row
    events: list[tuple[str, Row]]
    payloads: list[Row]

    @classmethod
    def of(cls, job_id: str, epoch: int, turn: Turn) -> "_Rows":
        changes = turn.changes
        segments = [row for attempt in changes.finished for row in rows.segment_rows(job_id, attempt)]
        job: Row = {"phase": turn.phase.value, "reason": turn.reason or None, "epoch": epoch, "step": turn.step}
        job |= {"current_version": turn.current_version}
        documents = {
            "runner_state": turn.state,
            "ledger": turn.ledger,
            "progress": turn.progress,
            "result": turn.result,
        }
        job |= {name: dumps(value) for name, value in documents.items() if value is not None}
        return cls(
            {group.id: rows.group_to_row(job_id, group) for group in changes.groups},
            {tuple(a.key): _as_stored(rows.attempt_to_row(job_id, a)) for a in changes.attempts},
            {(row["trajectory_id"], row["attempt"], row["position"]): row for row in segments},
            {step.step: _as_stored(rows.step_to_row(job_id, step)) for step in changes.steps},
            job,
            [(line.type, _json(line.data)) for line in turn.announced],
            [_json(payload) for payload in turn.outbox],
        )


def _write(tables: MemoryTables, made: _Rows, turn: Turn) -> list[int]:
    tables.groups.update(made.groups)
    tables.attempts.update(made.attempts)
    tables.segments.update(made.segments)
    for version in turn.changes.versions:
        _write_version(tables, version, turn)
    tables.steps.update(made.steps)
    tables.metrics.update({(point.name, point.step): point.value for point in turn.metrics})
    tables.job.update(made.job)
    if turn.desired_done is not None and tables.job["desired"] == turn.desired_done:
        tables.job["desired"] = None
    tables.events += made.events
    for entry_id in turn.sent:
        tables.outbox[entry_id - 1]["is_sent"] = True
    first = len(tables.outbox) + 1
    entries = [{"id": first + i, "payload": payload, "is_sent": False} for i, payload in enumerate(made.payloads)]
    tables.outbox += entries
    return [entry["id"] for entry in entries]


def _write_version(tables: MemoryTables, version: Version, turn: Turn) -> None:
    known = tables.versions.get(version.policy_version)
    if known is not None:
        known["state"] = version.state.value
        return
    manifest = turn.manifests[version.policy_version]
    tables.versions[version.policy_version] = {
        "policy_version": version.policy_version,
        "parent_version": version.parent,
        "depth": version.depth,
        "step": version.step,
        "state": version.state.value,
        "manifest": manifest.data,
        "manifest_digest": version.manifest_digest,
        "total_bytes": version.total_bytes,
        "committed_at": turn.now,
    }


def _as_stored(row: Row) -> Row:
    return {name: _json(value) if isinstance(value, dict | list) else value for name, value in row.items()}


def _json(value: Any) -> Any:
    return orjson.loads(dumps(value)) if value else value.copy()


def _version(row: Row) -> Version:
    return Version(
        row["policy_version"],
        row["parent_version"],
        row["depth"],
        row["step"],
        row["manifest_digest"],
        row["total_bytes"],
        VersionState(row["state"]),
    )


def _groups(tables: MemoryTables, plan: JobPlan) -> list[Group]:
    found = {id_: rows.group_from_row(row) for id_, row in tables.groups.items() if row["closed_at"] is None}  # type: ignore[arg-type]
    for attempt in _attempts(tables):
        if attempt.group_id not in found:
            continue
        if attempt.state is AttemptState.SCORING:
            attempt.pending_rewards = set(plan.task(attempt.task).reward_names) - attempt.reward_components.keys()
        found[attempt.group_id].members[attempt.key] = attempt
    return sorted(found.values(), key=lambda group: group.ordinal)


def _attempts(tables: MemoryTables) -> list[Attempt]:
    return [rows.attempt_from_row(row) for _, row in sorted(tables.attempts.items())]  # type: ignore[arg-type]


def _steps(tables: MemoryTables, checkpoint_step: int, lineage: Lineage) -> list[Step]:
    found = [row for n, row in sorted(tables.steps.items()) if row["state"] == "sampled" or n > checkpoint_step]
    members: dict[str, list[Attempt]] = {}
    for attempt in _attempts(tables):
        if attempt.state in (AttemptState.SAMPLED, AttemptState.TRAINED):
            members.setdefault(attempt.group_id, []).append(attempt)
    return [rows.step_from_row(row, members, lineage) for row in found]  # type: ignore[arg-type]
