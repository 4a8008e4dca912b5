"""The turn, without I/O of its own: the real runner and the simulator take the same one.

events ─► machine.handle_all ─► check ─► one transaction ─► effects, after the commit
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from control_plane.runner import reporting, scoring
from control_plane.runner.reporting import Reporter
from control_plane.runner.turn import MetricPoint, StoredManifest, Turn
from headrace.client.jobspec import JobSpec
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import snapshot, swaps
from headrace.core.job.machine import JobMachine
from headrace.core.job.rows import StepState
from headrace.core.job.state import Changes, Phase
from headrace.core.ledger import LedgerError

PROGRESS_S = 1.0


class TurnStore(Protocol):
    """Where turns are written; raises LeaseLost when somebody else owns the job."""

    async def commit(self, turn: Turn) -> list[int]: ...


class Effects(Protocol):
    """Everything that leaves after a commit. Doing one twice is harmless."""

    async def perform(self, actions: Sequence[do.Action]) -> None: ...

    async def send_rewards(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> bool: ...


class TurnTaker:
    """Owns the machine of one job between its load and its end."""

    def __init__(self, machine: JobMachine, store: TurnStore, effects: Effects, spec: JobSpec) -> None:
        self.machine = machine
        self.reporter = Reporter()
        self.manifests: dict[int, StoredManifest] = {}
        self.answered: str | None = None  # the owner's wish that is on its way through the machine
        self._store = store
        self._effects = effects
        self._spec = spec
        self._sent: list[int] = []
        self._progress_at = 0.0
        self._export_path = ""

    async def take(self, arrived: Sequence[did.Event], now: float) -> Sequence[do.Action]:
        """One turn at time `now`; its actions have been performed when it returns."""
        state = self.machine.state
        phase_before = state.phase
        actions = self.machine.handle_all([*arrived, did.TimePassed()], now)
        self.machine.check()
        self._note_export(arrived)
        turn = self._make(actions, phase_before, now)
        if any(isinstance(action, do.EndJob) for action in actions):
            turn.result = reporting.result(state, now=now, is_balanced=self._is_balanced(), model=self._export_path)
        outbox_ids = await self._store.commit(turn)
        self._sent = []
        self.answered = None
        self.reporter.version_seconds = {}
        await self._effects.perform(actions)
        await self.send_rewards(list(zip(outbox_ids, turn.outbox, strict=True)))
        self._forget_manifests(actions)
        return actions

    async def send_rewards(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Outbox entries to the broker; those that left are marked in the next turn, others are sent when due."""
        if entries and await self._effects.send_rewards(entries):
            self._sent += [entry_id for entry_id, _ in entries]

    def _make(self, actions: Sequence[do.Action], phase_before: Phase, now: float) -> Turn:
        state = self.machine.state
        changes = state.changes()
        announced = [action for action in actions if isinstance(action, do.Announce)]
        if state.phase is not phase_before:
            announced.append(do.Announce("job.phase", {"phase": state.phase.value, "reason": state.reason}))
        points = self._close_steps(changes, now)
        in_flight = [(a.purpose, a.task, a.state.value) for a in state.in_flight]
        is_progress_due = bool(points) or now - self._progress_at >= PROGRESS_S or state.is_ended
        if is_progress_due:
            self._progress_at = now
        wanted = [action for action in actions if isinstance(action, do.ScoreAttempt)]
        return Turn(
            now=now,
            changes=changes,
            phase=state.phase,
            reason=state.reason,
            state={**snapshot.dump(state), "meter": self.reporter.meter()},
            ledger=state.ledger.to_json(in_flight),
            step=state.step,
            current_version=state.lineage.current,
            announced=announced,
            outbox=scoring.batches(state.plan.job_id, self._spec, wanted, grader_s=self.reporter.grader_s),
            sent=self._sent,
            manifests=self.manifests,
            metrics=points,
            version_seconds=self.reporter.version_seconds,
            progress=self.reporter.progress(state, now) if is_progress_due else None,
            desired_done=self.answered,
        )

    def _close_steps(self, changes: Changes, now: float) -> list[MetricPoint]:
        self.reporter.ended(changes.finished)
        points: list[MetricPoint] = []
        for step in changes.steps:
            if step.state is StepState.COMMITTED and step.committed_at == now:
                points += self.reporter.close_step(self.machine.state, step, changes)
        return points

    def _is_balanced(self) -> bool:
        """The equation as the machine counts it; GET …/ledger checks it again from the stored rows."""
        state = self.machine.state
        try:
            state.ledger.check([(a.purpose, a.task) for a in state.in_flight])
        except LedgerError:
            return False
        return True

    def _note_export(self, arrived: Sequence[did.Event]) -> None:
        for event in arrived:
            if isinstance(event, did.TrainingClosed):
                self._export_path = event.export_path

    def _forget_manifests(self, actions: Sequence[do.Action]) -> None:
        state = self.machine.state
        current = state.lineage.current
        if current is None or not any(isinstance(action, do.RetainVersions) for action in actions):
            return
        needed = {current, *swaps.pinned(state)}
        self.manifests = {v: m for v, m in self.manifests.items() if v in needed or v > current}


def ended(actions: Sequence[do.Action]) -> bool:
    return any(isinstance(action, do.EndJob) for action in actions)
