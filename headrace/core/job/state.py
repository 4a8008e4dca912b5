"""Everything the job machine knows, and the only functions that change an attempt or a group.

`changes()` names the rows that differ from what is stored; the shell writes them in one transaction.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.core.censoring import Censoring
from headrace.core.flow import Flow
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import GROUP_TRANSITIONS, Attempt, Group, GroupState, Key, Step, StepState
from headrace.core.ledger import IN_FLIGHT, TRANSITIONS, AttemptState, Ledger
from headrace.core.versions import Lineage, Version


class Phase(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


TERMINAL = frozenset({Phase.CANCELLED, Phase.SUCCEEDED, Phase.FAILED})
PHASE_TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.CANCELLED, Phase.FAILED}),
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.CANCELLING, Phase.FAILED, Phase.PAUSING}),
    Phase.RUNNING: frozenset({Phase.PAUSING, Phase.CANCELLING, Phase.FAILED, Phase.SUCCEEDED}),
    Phase.PAUSING: frozenset({Phase.PAUSED, Phase.STARTING, Phase.RUNNING, Phase.CANCELLING, Phase.FAILED}),
    Phase.PAUSED: frozenset({Phase.STARTING, Phase.RUNNING, Phase.CANCELLING, Phase.FAILED}),
    Phase.CANCELLING: frozenset({Phase.CANCELLED, Phase.FAILED}),
    Phase.CANCELLED: frozenset(),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
}


class IllegalTransition(Exception):
    """A move the tables do not allow; the message tells what the thing went through."""


@dataclass(slots=True)
class RolloutWorker:
    """An inference worker of the job, as reported by the proxy."""

    worker_id: str
    serving_version: int | None = None
    resident: set[int] = field(default_factory=set)
    updating_to: int | None = None
    update_deadline: float = 0.0
    is_late: bool = False  # missed the prefetch deadline: out of routing and of the barrier until it catches up
    faults: int = 0


@dataclass(slots=True)
class EnvProcess:
    worker_id: str
    slots: int
    assigned: set[Key] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Requeue:
    """A prompt whose group left for a reason that was not its own."""

    task: str
    env_seed: int
    parent_group: str
    requeues: int


@dataclass(slots=True)
class Evaluation:
    """One evaluation: its version is fixed, its groups are those still open."""

    policy_version: int
    step: int
    deadline: float
    open_groups: set[str] = field(default_factory=set)
    scores: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    lost: int = 0


@dataclass(slots=True)
class Changes:
    """Rows to write. `finished` are attempts whose segments are to be stored."""

    attempts: list[Attempt]
    groups: list[Group]
    versions: list[Version]
    steps: list[Step]
    finished: list[Attempt]


@dataclass(slots=True)
class JobState:
    plan: JobPlan
    phase: Phase = Phase.STARTING
    reason: str = ""
    is_ended: bool = False
    paused_at: float | None = None  # when the owner asked; None while the job is not paused
    lineage: Lineage = field(default_factory=Lineage)
    ledger: Ledger = field(default_factory=Ledger)
    groups: dict[str, Group] = field(default_factory=dict)
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    unassigned: dict[Key, Attempt] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)  # since the last checkpoint, and the one that is out
    step: int = 0  # newest committed
    checkpoint_step: int = 0
    next_version: int = 0
    trainer_id: str = ""
    publishing: int | None = None  # PublishState is on its way
    training: int | None = None  # TrainStep of this step is on its way
    training_retries: int = 0  # since the last commit
    to_replay: list[int] = field(default_factory=list)
    workers: dict[str, RolloutWorker] = field(default_factory=dict)
    envs: dict[str, EnvProcess] = field(default_factory=dict)
    has_proxy: bool = False
    cursors: Counter[str] = field(default_factory=Counter)
    ordinal: int = 0
    ready_count: int = 0
    requeues: list[Requeue] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    marks: dict[str, float] = field(default_factory=dict)  # times of the current version: committed, resident, loaded …
    totals: dict[str, float] = field(default_factory=dict)  # times and sums over the whole job, for its result
    closing: dict[Key, Attempt] = field(default_factory=dict)  # closed while they ran; their last word is due
    censoring: Censoring = field(default_factory=Censoring)
    buffer: Flow = field(default_factory=Flow)  # of ready groups
    histograms: Counter[str] = field(default_factory=Counter)  # task/outcome/part/updates
    last_error: str = ""
    failed_in_a_row: int = 0
    filtered_since_step: int = 0
    evaluation: Evaluation | None = None
    evaluated: dict[str, dict[str, float]] = field(default_factory=dict)  # "step" -> {"task/mode": mean score}
    eval_due: list[int] = field(default_factory=list)  # steps after which an evaluation is still to run
    _dirty_attempts: dict[Key, Attempt] = field(default_factory=dict)
    _dirty_groups: dict[str, Group] = field(default_factory=dict)
    _dirty_versions: dict[int, Version] = field(default_factory=dict)
    _dirty_steps: dict[int, Step] = field(default_factory=dict)
    _finished: dict[Key, Attempt] = field(default_factory=dict)

    # -- what the rest of the machine asks -------------------------------------------------------------------------

    @property
    def step_out(self) -> Step | None:
        """The step that is being filled or trained."""
        return next((step for step in self.steps.values() if step.state is StepState.SAMPLED), None)

    @property
    def is_batch_out(self) -> bool:
        """From the moment a whole batch is taken until its commit: m is n + 1."""
        step = self.step_out
        return bool(self.to_replay) or (step is not None and step.is_full(self.plan.groups))

    @property
    def live_workers(self) -> list[RolloutWorker]:
        return [worker for worker in self.workers.values() if not worker.is_late]

    @property
    def in_flight(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.state in IN_FLIGHT]

    def train_groups(self, *states: GroupState) -> list[Group]:
        return [group for group in self.groups.values() if group.purpose == "train" and group.state in states]

    def lags(self, group: Group) -> list[int | None]:
        """L of every live member with a token; None: its v0 is off the live lineage. The group's L is the largest."""
        started = (member.start_version for member in group.live)
        return [self.lineage.lag(version) for version in started if version is not None]

    # -- the only ways to change rows ------------------------------------------------------------------------------

    def add_group(self, group: Group) -> None:
        self.groups[group.id] = group
        self._dirty_groups[group.id] = group

    def issue(self, attempt: Attempt) -> None:
        """Counts and queues a new attempt of a group that is already there."""
        self.ledger.issue(attempt.purpose, attempt.task)
        self.groups[attempt.group_id].members[attempt.key] = attempt
        self.attempts[attempt.key] = attempt
        self.unassigned[attempt.key] = attempt
        self._dirty_attempts[attempt.key] = attempt

    def touch(self, attempt: Attempt) -> None:
        self._dirty_attempts[attempt.key] = attempt

    def store_segments(self, attempt: Attempt) -> None:
        self._finished[attempt.key] = attempt

    def move(self, attempt: Attempt, to: AttemptState, now: float, reason: str = "") -> None:
        """Moves an attempt along the table; a final state closes it in the ledger."""
        if to not in TRANSITIONS.get(attempt.state, frozenset()):
            raise IllegalTransition(
                f"attempt {attempt.key} of group {attempt.group_id} ({attempt.task}) cannot go from {attempt.state} to "
                f"{to}: issued {attempt.issued_at}, started {attempt.started_at} under {attempt.start_version}, "
                f"finished {attempt.finished_at}, reason {attempt.reason or '-'}"
            )
        attempt.state = to
        attempt.reason = reason or attempt.reason
        self.touch(attempt)
        if attempt.is_in_flight:
            return
        attempt.closed_at = now
        self.unassigned.pop(attempt.key, None)
        self.ledger.close(attempt.purpose, attempt.task, to, attempt.n_generated_tokens)

    def move_group(self, group: Group, to: GroupState, now: float, reason: str = "") -> None:
        if to not in GROUP_TRANSITIONS.get(group.state, frozenset()):
            members = {key: member.state.value for key, member in group.members.items()}
            raise IllegalTransition(f"group {group.id} cannot go from {group.state} to {to}: members {members}")
        if group.state is GroupState.READY and group.purpose == "train":
            self.buffer.leave(now, group.ready_at if group.ready_at is not None else now)
        group.state = to
        group.reason = reason or group.reason
        self._dirty_groups[group.id] = group
        if to is GroupState.READY:
            group.ready_at = now
            group.ready_order = self.ready_count
            self.ready_count += 1
            self.buffer.arrive(now)
        elif to in (GroupState.DROPPED, GroupState.EVALUATED):
            self.forget_group(group, now)

    def forget_group(self, group: Group, now: float) -> None:
        """A closed group leaves memory; its rows stay in the database."""
        group.closed_at = now
        self._dirty_groups[group.id] = group
        self.groups.pop(group.id, None)
        for key in group.members:
            self.attempts.pop(key, None)
            self.unassigned.pop(key, None)

    def free_env(self, attempt: Attempt) -> None:
        env = self.envs.get(attempt.env_worker_id)
        if env is not None:
            env.assigned.discard(attempt.key)

    def store_versions(self, versions: Iterable[Version]) -> None:
        self._dirty_versions.update({version.policy_version: version for version in versions})

    def store_step(self, step: Step) -> None:
        self.steps[step.step] = step
        self._dirty_steps[step.step] = step

    def set_phase(self, phase: Phase, reason: str = "") -> None:
        if phase is self.phase:
            return
        if phase not in PHASE_TRANSITIONS[self.phase]:
            raise IllegalTransition(f"job {self.plan.job_id} cannot go from {self.phase} to {phase} ({reason})")
        self.phase = phase
        self.reason = reason

    def changes(self) -> Changes:
        """The rows changed since the last call."""
        changes = Changes(
            list(self._dirty_attempts.values()),
            list(self._dirty_groups.values()),
            list(self._dirty_versions.values()),
            list(self._dirty_steps.values()),
            list(self._finished.values()),
        )
        for dirty in (
            self._dirty_attempts,
            self._dirty_groups,
            self._dirty_versions,
            self._dirty_steps,
            self._finished,
        ):
            dirty.clear()
        return changes
