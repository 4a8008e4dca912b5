"""A job machine driven by hand, on a clock that only the test moves: one environment process, workers and a trainer.

    job = running(groups=2, group_size=2)       # version 0 is served, rollouts have started
    job.finish_all()                            # every episode ends with reward 1
    step = job.train_step                       # the batch that was taken
    job.commit()                                # the trainer answers; version 1 is current

Every call is followed by `check()`; rows that changed are kept, so that a test can look at what has left memory.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

from testkit.world import Store

from headrace.core.async_policy import PRESETS, AsyncPolicy
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.machine import JobMachine
from headrace.core.job.plan import EvalPlan, JobPlan, Limits, TaskPlan
from headrace.core.job.rows import Attempt, Group, Key, SegmentRow
from headrace.core.job.state import JobState
from headrace.core.ledger import AttemptState

A = TypeVar("A")
ENV, PROXY, TRAINER = "env-0@a", "proxy@a", "trainer@a"
LAKE = TaskPlan("lake")
TOOLS = TaskPlan("tools", reward_names=("grade",), reward_weights=(1.0,), has_env_reward=False)


def make_policy(preset: str = "bounded", **fields: Any) -> AsyncPolicy:
    policy = replace(PRESETS[preset], **fields)
    assert policy.validate() == ()
    return policy


def make_plan(
    *,
    policy: AsyncPolicy | None = None,
    limits: dict[str, Any] | None = None,
    evaluation: dict[str, Any] | None = None,
    **fields: Any,
) -> JobPlan:
    """Two groups of two per step on one task whose environment pays, three steps, no evaluation."""
    values: dict[str, Any] = {"seed": 7, "max_steps": 3, "groups": 2, "group_size": 2, "tasks": (LAKE,)}
    return JobPlan(
        "job_t",
        policy=policy or make_policy(),
        limits=Limits(**(limits or {})),
        evaluation=EvalPlan(**(evaluation or {})),
        **{**values, **fields},
    )


def of(actions: Iterable[object], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


class Job:
    """The machine with its surroundings. `rows` is every attempt ever issued, `all_groups` every group."""

    def __init__(self, plan: JobPlan, n_workers: int = 2, slots: int = 64) -> None:
        self.plan, self.slots = plan, slots
        self.machine = JobMachine.fresh(plan)
        self.now = 0.0
        self.workers = [f"inference-{i}@a" for i in range(n_workers)]
        self.store = Store()
        self.log: list[do.Action] = []
        self.rows: dict[Key, Attempt] = {}
        self.all_groups: dict[str, Group] = {}
        self.trainer_step = 0

    @property
    def state(self) -> JobState:
        return self.machine.state

    # -- events --------------------------------------------------------------------------------------------------------

    def tell(self, *events: did.Event) -> list[do.Action]:
        """All of them in one turn; the invariants hold after it and its rows are stored."""
        actions = self.machine.handle_all(events, self.now)
        self.machine.check()
        changes = self.store.save(self.machine)
        self.rows.update({attempt.key: attempt for attempt in changes.attempts})
        self.all_groups.update({group.id: group for group in changes.groups})
        self.log += actions
        return actions

    def wait(self, seconds: float) -> list[do.Action]:
        self.now += seconds
        return self.tell(did.TimePassed())

    def last(self, kind: type[A]) -> A:
        return of(self.log, kind)[-1]

    def announced(self, type_: str) -> list[do.Announce]:
        return [action for action in of(self.log, do.Announce) if action.type == type_]

    def restart_runner(self) -> None:
        """A new runner takes the job up from its rows; nothing is connected yet."""
        self.machine = self.store.load(self.plan)
        self.machine.check()
        self.rows.update(self.state.attempts)
        self.all_groups.update(self.state.groups)

    # -- processes -----------------------------------------------------------------------------------------------------

    def connect(self) -> list[do.Action]:
        return self.tell(
            did.EnvOpened(ENV, self.slots, frozenset()),
            did.WorkersChanged(frozenset(self.workers)),
            did.ProxyOpened(PROXY),
            did.TrainerOpened(TRAINER, self.trainer_step, is_attached=True),
        )

    def reconnect(self) -> list[do.Action]:
        """After a restart of the runner: all are still there, with what they had in hand."""
        in_hand = {a.key for a in self.state.attempts.values() if a.env_worker_id == ENV and is_generating(a)}
        served = self.state.lineage.current
        resident = frozenset(self.state.lineage.versions)
        return self.tell(
            did.EnvOpened(ENV, self.slots, frozenset(in_hand)),
            did.WorkersChanged(frozenset(self.workers)),
            did.ProxyOpened(PROXY),
            *(did.WorkerReported(worker, served, resident) for worker in self.workers),
            did.TrainerOpened(TRAINER, self.trainer_step, is_attached=True),
        )

    def publish(self) -> list[do.Action]:
        """The trainer has sealed the state that it was last asked to publish."""
        asked = self.last(do.PublishState)
        self.trainer_step = asked.step
        return self.tell(did.StatePublished(asked.policy_version, f"digest-{asked.policy_version}", 10))

    def prefetch(self, *workers: str) -> list[do.Action]:
        version = self.last(do.PrefetchWeights).policy_version
        return self.tell(*(did.WeightsPrefetched(worker, version) for worker in workers or self.workers))

    def update(self, *workers: str) -> list[do.Action]:
        asked = self.last(do.UpdateWeights)
        return self.tell(*(did.WeightsUpdated(w, asked.policy_version) for w in workers or asked.worker_ids))

    def load(self) -> list[do.Action]:
        """Every worker prefetches the current version and, where it was told to, loads it."""
        seen = len(of(self.log, do.UpdateWeights))
        actions = self.prefetch()
        return actions + self.update() if len(of(self.log, do.UpdateWeights)) > seen else actions

    def commit(self, *, checkpoint_step: int = 0, **fields: Any) -> list[do.Action]:
        """The trainer answers for the step that it was last sent."""
        step = self.last(do.TrainStep)
        self.trainer_step = step.step
        event = did.StepFinished(
            step.step, step.batch_digest, step.publish_version, f"digest-{step.publish_version}", 10,
            checkpoint_step=checkpoint_step,
        )  # fmt: skip
        return self.tell(replace(event, **fields))

    def lose_trainer(self, restored_at: int, *, is_attached: bool = False) -> list[do.Action]:
        """The trainer dies; another one opens at `restored_at`."""
        self.tell(did.TrainerLost(self.state.trainer_id))
        self.trainer_step = restored_at
        name = f"trainer@{len(self.log)}"
        return self.tell(did.TrainerOpened(name, restored_at, is_attached=is_attached))

    # -- episodes ------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[Group]:
        """Training groups in memory, in the order of their admission."""
        return sorted((g for g in self.state.groups.values() if g.purpose == "train"), key=lambda g: g.ordinal)

    def members(self, group: Group) -> list[Attempt]:
        """Every attempt ever issued for the group, by sibling."""
        return sorted(group.members.values(), key=lambda a: (a.sibling, a.key.attempt))

    @property
    def generating(self) -> list[Attempt]:
        return [attempt for attempt in self.state.attempts.values() if is_generating(attempt)]

    def start(self, *attempts: Attempt, version: int | None = None) -> list[do.Action]:
        served = self.state.lineage.current if version is None else version
        assert served is not None
        return self.tell(*(did.AttemptStarted(attempt.key, served) for attempt in attempts))

    def finished(self, attempt: Attempt, reward: float | None = 1.0, **fields: Any) -> did.AttemptFinished:
        """The event: eight tokens, all of one version."""
        version = attempt.start_version if attempt.start_version is not None else self.state.lineage.current
        segments = (SegmentRow(version or 0, self.workers[0], f"digest-{version}", 8),)
        event = did.AttemptFinished(
            attempt.key, f"tokens-{attempt.key.trajectory_id}", "grading", 12, 8, 2, segments,
            reward if self.plan.task(attempt.task).has_env_reward else None, "completed", False, attempt.env_worker_id,
        )  # fmt: skip
        return replace(event, **fields)

    def finish(self, attempt: Attempt, reward: float | None = 1.0, **fields: Any) -> list[do.Action]:
        return self.tell(self.finished(attempt, reward, **fields))

    def fail(self, attempt: Attempt, kind: str = "env", code: str = "step_timeout", **fields: Any) -> list[do.Action]:
        event = did.AttemptFailed(attempt.key, kind, code, "scripted", env_worker_id=attempt.env_worker_id)
        return self.tell(replace(event, **fields))

    def grade(self, attempt: Attempt, score: float | None = 1.0, name: str = "grade", **more: Any) -> list[do.Action]:
        return self.tell(did.RewardReported(attempt.key, name, score, **more))

    def finish_all(self) -> list[do.Action]:
        """Every episode that runs now ends, one after another; graders answer at once."""
        actions: list[do.Action] = []
        for attempt in self.generating:
            if attempt.key in self.state.attempts and is_generating(attempt):
                actions += self.finish(attempt)
            if attempt.state is AttemptState.SCORING and attempt.reward_deadline is not None:
                actions += self.grade(attempt)
        return actions

    def finish_group(self, group: Group, rewards: Iterable[float] = (1.0, 0.0)) -> list[do.Action]:
        live = sorted((a for a in group.live if is_generating(a)), key=lambda a: a.sibling)
        return self.tell(*(self.finished(a, reward) for a, reward in zip(live, rewards, strict=True)))

    # -- results -------------------------------------------------------------------------------------------------------

    @property
    def train_step(self) -> do.TrainStep:
        return self.last(do.TrainStep)

    def counts(self, purpose: str = "train") -> dict[str, int]:
        """Attempts ever issued, by state."""
        found: dict[str, int] = {}
        for attempt in self.rows.values():
            if attempt.purpose == purpose:
                found[attempt.state.value] = found.get(attempt.state.value, 0) + 1
        return found

    def lags(self) -> list[int]:
        """Lag of every member of the last batch."""
        return [member.lag for group in self.train_step.groups for member in group.members]


def is_generating(attempt: Attempt) -> bool:
    return attempt.state in (AttemptState.QUEUED, AttemptState.RUNNING)


def opened(n_workers: int = 2, slots: int = 64, **fields: Any) -> Job:
    """Everything is connected and the trainer was asked to publish version 0."""
    job = Job(make_plan(**fields), n_workers, slots)
    job.connect()
    return job


def running(n_workers: int = 2, slots: int = 64, **fields: Any) -> Job:
    """Version 0 is served by every worker and the first groups have started."""
    job = opened(n_workers, slots, **fields)
    job.publish()
    job.load()
    return job


def at_step(n_steps: int, *, checkpoints: Iterable[int] = (), **fields: Any) -> Job:
    """A job that has committed `n_steps` steps and serves the newest version."""
    job = running(**fields)
    for step in range(1, n_steps + 1):
        while job.state.training is None:
            job.finish_all()
        job.commit(checkpoint_step=max((c for c in checkpoints if c <= step), default=0))
        job.load()
    return job
