"""A world for the job machine on virtual time: environments, graders, a proxy with workers and a trainer, all scripted.

Latencies, losses and kills come from one seeded generator, so a failing schedule is reproduced by its number. The
machine's rows live in a memory store and a crash of the runner rebuilds the machine from them alone.
"""

import copy
import heapq
import json
import random
from dataclasses import dataclass, field

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.machine import JobMachine
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Attempt, Group, Key, SegmentRow, Step
from headrace.core.job.snapshot import StoredJob, dump, restore
from headrace.core.job.state import Changes, Phase
from headrace.core.ledger import AttemptState
from headrace.core.versions import Version


@dataclass
class Store:
    """Rows of one job in memory, copied on the way in and out as a database would.

    What the database does not keep of an attempt (its tries at a reward and their deadline) is not kept here either.
    """

    attempts: dict[Key, Attempt] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    versions: dict[int, Version] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    state: str = ""
    ledger: str = ""
    phase: Phase = Phase.STARTING
    reason: str = ""

    def save(self, machine: JobMachine) -> Changes:
        """Stores what changed since the last call, and returns it."""
        changes = machine.state.changes()
        for group in changes.groups:
            stored = copy.copy(group)
            stored.members = {}
            self.groups[group.id] = stored
        for attempt in changes.attempts:
            self.attempts[attempt.key] = copy.deepcopy(attempt)
        self.versions.update({version.policy_version: version for version in changes.versions})
        self.steps.update({step.step: copy.deepcopy(step) for step in changes.steps})
        self.state = json.dumps(dump(machine.state))
        live = ((a.purpose, a.task, a.state.value) for a in machine.state.attempts.values() if a.is_in_flight)
        self.ledger = json.dumps(machine.state.ledger.to_json(live))
        self.phase, self.reason = machine.state.phase, machine.state.reason
        return changes

    def load(self, plan: JobPlan) -> JobMachine:
        groups = {}
        for group in self.groups.values():
            if group.closed_at is None:
                groups[group.id] = copy.copy(group)
                groups[group.id].members = {}
        for attempt in sorted(self.attempts.values(), key=lambda a: a.key):
            if attempt.group_id in groups:
                groups[attempt.group_id].members[attempt.key] = stored_attempt(attempt, plan)
        state = json.loads(self.state)
        steps = [s for s in self.steps.values() if s.state == "sampled" or s.step > state["checkpoint_step"]]
        return restore(
            StoredJob(
                plan,
                self.phase,
                self.reason,
                state,
                json.loads(self.ledger),
                list(self.versions.values()),
                list(groups.values()),
                copy.deepcopy(steps),
            )
        )


def stored_attempt(attempt: Attempt, plan: JobPlan) -> Attempt:
    """As it comes back from its row: pending are the rewards of its task that have no score yet."""
    loaded = copy.deepcopy(attempt)
    is_scoring = loaded.state is AttemptState.SCORING
    names = set(plan.task(loaded.task).reward_names) if is_scoring else set()
    loaded.pending_rewards = names - loaded.reward_components.keys()
    loaded.reward_try, loaded.reward_deadline, loaded.segments = 0, None, ()
    return loaded


@dataclass(frozen=True)
class Chances:
    """Probabilities per attempt, or per kill opportunity (one a virtual second)."""

    env_failure: float = 0.0
    infra_failure: float = 0.0
    unscorable: float = 0.0
    reward_lost: float = 0.0
    kill_env: float = 0.0
    kill_worker: float = 0.0
    kill_trainer: float = 0.0
    kill_runner: float = 0.0
    pause: float = 0.0
    tail: float = 0.0  # chance of an episode ten times as long


class World:
    """Runs one job to its end. `step()` delivers the next event; every event is followed by `check()`."""

    def __init__(self, plan: JobPlan, seed: int, chances: Chances = Chances(), n_workers: int = 2) -> None:
        self.plan, self.chances = plan, chances
        self.rng = random.Random(seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, object]] = []
        self.sequence = 0
        self.store = Store()
        self.machine = JobMachine.fresh(plan)
        self.trained: list[tuple[Key, int]] = []
        self.serving: dict[str, int | None] = {}
        self.resident: dict[str, set[int]] = {}
        self.env, self.env_running = "env@0", dict[Key, do.AssignAttempt]()
        self.trainer, self.trainer_step, self.checkpoints = "trainer@0", 0, {0}
        self.is_trainer_up = True
        self.recorded: dict[int, did.StepFinished] = {}
        self.parts: dict[tuple[str, int], set[int]] = {}
        self.ended: do.EndJob | None = None
        self.generation = 0
        self.n_events = 0
        self.workers = {f"inference-{i}@0" for i in range(n_workers)}
        for worker in self.workers:
            self.serving[worker], self.resident[worker] = None, set()
        self._connect()
        self.later(1.0, "tick")

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, limit_s: float = 20_000.0) -> "World":
        while self.ended is None:
            assert self.queue and self.now < limit_s, f"no end: {self.machine.state.phase} at {self.now}"
            self.step()
        return self

    def step(self) -> None:
        self.now, _, what = heapq.heappop(self.queue)
        if what == "tick":
            self._tick()
        elif callable(what):
            what()
        else:
            self.deliver(what)

    def deliver(self, event: object) -> None:
        self.n_events += 1
        before = {key: a.state for key, a in self.machine.state.attempts.items()}
        done = self.machine.handle(event, self.now)  # type: ignore[arg-type]
        self.machine.check()
        for key, state in before.items():
            stored = self.machine.state.attempts.get(key)
            if state == "sampled" and stored is None and isinstance(event, did.StepFinished):
                self.trained.append((key, event.step))
        self.store.save(self.machine)
        for action in done:
            self.perform(action)

    def later(self, delay: float, what: object) -> None:
        self.sequence += 1
        heapq.heappush(self.queue, (self.now + delay, self.sequence, what))

    def _tick(self) -> None:
        self.deliver(did.TimePassed())
        self.later(1.0, "tick")
        chances, roll = self.chances, self.rng.random
        if roll() < chances.kill_env:
            self.kill_env()
        if roll() < chances.kill_worker:
            self.kill_worker()
        if roll() < chances.kill_trainer:
            self.kill_trainer()
        if roll() < chances.kill_runner:
            self.kill_runner()
        if roll() < chances.pause and self.machine.state.phase is Phase.RUNNING:
            self.deliver(did.PauseRequested())
            self.later(3.0, did.ResumeRequested())

    # -- the other processes -----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        self.later(0.1, lambda: self._open_env(self.env))
        self.later(0.2, did.WorkersChanged(frozenset(self.workers)))
        self.later(0.2, did.ProxyOpened("proxy@0"))
        self.later(0.3, self._attach_trainer)
        for worker in self.workers:
            self.later(0.25, lambda w=worker: self._report(w))

    def _open_env(self, env: str) -> None:
        if env == self.env:  # not killed again before it could open
            self.deliver(did.EnvOpened(env, 64, frozenset(self.env_running)))

    def _attach_trainer(self) -> None:
        if self.is_trainer_up:
            self.deliver(did.TrainerOpened(self.trainer, self.trainer_step, True))

    def _report(self, worker: str) -> None:
        if worker in self.workers:
            self.deliver(did.WorkerReported(worker, self.serving[worker], frozenset(self.resident[worker])))

    def kill_env(self) -> None:
        self.generation += 1
        lost, self.env, self.env_running = self.env, f"env@{self.generation}", {}
        self.deliver(did.EnvLost(lost))
        self.later(1.0, lambda fresh=self.env: self._open_env(fresh))

    def kill_worker(self) -> None:
        self.generation += 1
        gone = self.rng.choice(sorted(self.workers))
        self.workers.discard(gone)
        self.deliver(did.WorkersChanged(frozenset(self.workers)))
        fresh = f"inference-x@{self.generation}"

        def join() -> None:
            self.workers.add(fresh)
            self.serving[fresh], self.resident[fresh] = None, set()
            self.deliver(did.WorkersChanged(frozenset(self.workers)))
            self._report(fresh)

        self.later(2.0, join)

    def kill_trainer(self) -> None:
        self.generation += 1
        lost, self.trainer = self.trainer, f"trainer@{self.generation}"
        self.recorded.clear()
        self.is_trainer_up = False
        self.deliver(did.TrainerLost(lost))
        fresh = self.trainer

        def open_again() -> None:
            if fresh != self.trainer:
                return
            allowed = [c for c in self.checkpoints if c <= self.machine.state.step]
            self.trainer_step = max(allowed)
            self.is_trainer_up = True
            self.deliver(did.TrainerOpened(fresh, self.trainer_step, False))

        self.later(2.0, open_again)

    def kill_runner(self) -> None:
        """The machine is lost with everything not stored; actions that were not performed yet are lost too."""
        self.machine = self.store.load(self.plan)
        self.machine.check()
        self._connect()

    # -- actions -----------------------------------------------------------------------------------------------------

    def perform(self, action: do.Action) -> None:
        match action:
            case do.AssignAttempt():
                self._assign(action)
            case do.AbortAttempt(key, _, _):
                self.env_running.pop(key, None)
            case do.ScoreAttempt():
                self._score(action)
            case do.PublishState(version, _, step):
                self.trainer_step = step
                trainer = self.trainer
                event = did.StatePublished(version, f"digest-{version}", 10)
                self.later(0.1, lambda: self.deliver(event) if trainer == self.trainer else None)
            case do.TrainStep():
                self._train(action)
            case do.PrefetchWeights(version):
                for worker in sorted(self.workers):
                    self.later(self.rng.uniform(0.01, 0.5), lambda w=worker: self._prefetched(w, version))
            case do.UpdateWeights(version, _, workers):
                for worker in workers:
                    self.later(self.rng.uniform(0.01, 0.3), lambda w=worker: self._updated(w, version))
            case do.CloseTraining(path):
                self.later(0.1, did.TrainingClosed(path))
            case do.EndJob():
                self.ended = action
            case _:
                pass

    def _prefetched(self, worker: str, version: int) -> None:
        if worker in self.workers:
            self.resident[worker].add(version)
            self.deliver(did.WeightsPrefetched(worker, version))
            if self.plan.policy.load_at == "drain" and self.serving[worker] is not None:
                self.later(self.rng.uniform(0.2, 3.0), lambda: self._drained(worker))

    def _drained(self, worker: str) -> None:
        """A worker that has drained loads the newest version that it holds."""
        if worker in self.workers and (self.serving[worker] or 0) < max(self.resident[worker]):
            self._updated(worker, max(self.resident[worker]))

    def _updated(self, worker: str, version: int) -> None:
        if worker in self.workers:
            self.serving[worker] = version
            self.deliver(did.WeightsUpdated(worker, version))

    def _assign(self, action: do.AssignAttempt) -> None:
        if action.env_worker_id != self.env or action.key in self.env_running:
            return
        self.env_running[action.key] = action
        self.later(self.rng.uniform(0.05, 0.3), lambda: self._start(action))

    def _start(self, action: do.AssignAttempt) -> None:
        if self.env_running.get(action.key) is not action:
            return
        serving = [self.serving[w] for w in sorted(self.workers) if self.serving[w] is not None]
        if action.pinned_version is not None and action.pinned_version not in serving:
            self._fail(action, "infra", "version_unavailable")
            return
        if not serving:
            self.later(0.5, lambda: self._start(action))
            return
        # As the proxy routes: a pinned attempt to a worker at its version, any other never to one held for evaluation.
        version = (
            action.pinned_version if action.pinned_version is not None else max(v for v in serving if v is not None)
        )
        length = self.rng.uniform(0.2, 2.0) * (10 if self.rng.random() < self.chances.tail else 1)
        self.deliver(did.AttemptStarted(action.key, version))
        self.later(length, lambda: self._finish(action, version))

    def _finish(self, action: do.AssignAttempt, version: int) -> None:
        if self.env_running.get(action.key) is not action:
            return
        if self.rng.random() < self.chances.env_failure:
            self._fail(action, "env", "step_timeout")
            return
        if self.rng.random() < self.chances.infra_failure:
            self._fail(action, "infra", "stream_lost")
            return
        del self.env_running[action.key]
        has_env_reward = self.plan.task(action.task).has_env_reward
        self.deliver(
            did.AttemptFinished(
                action.key,
                f"blob-{action.key}",
                f"grading-{action.key}",
                12,
                8,
                2,
                (SegmentRow(version, "inference-0", f"digest-{version}", 8),),
                self.rng.choice([0.0, 1.0]) if has_env_reward else None,
                "completed",
                False,
                self.env,
            )
        )

    def _fail(self, action: do.AssignAttempt, kind: str, code: str) -> None:
        del self.env_running[action.key]
        self.deliver(did.AttemptFailed(action.key, kind, code, "scripted", env_worker_id=self.env))

    def _score(self, action: do.ScoreAttempt) -> None:
        for name in action.reward_names:
            if self.rng.random() >= self.chances.reward_lost:
                score = None if self.rng.random() < self.chances.unscorable else self.rng.choice([0.0, 1.0])
                self.later(self.rng.uniform(0.05, 1.0), did.RewardReported(action.key, name, score))

    def _train(self, action: do.TrainStep) -> None:
        """Parts of a step may come one by one, or again; the step finishes with its last one."""
        trainer = self.trainer
        known = self.recorded.get(action.publish_version)
        if known is not None:
            self.later(0.05, lambda: self.deliver(known) if trainer == self.trainer else None)
            return
        parts = self.parts.setdefault((trainer, action.publish_version), set())
        is_new = action.part not in parts
        parts.add(action.part)
        if is_new and action.part == action.n_parts - 1:
            assert parts == set(range(action.n_parts)), (action.step, parts)
            self.later(self.rng.uniform(0.5, 2.0), lambda: self._finish_step(action, trainer))

    def _finish_step(self, action: do.TrainStep, trainer: str) -> None:
        if trainer != self.trainer or action.publish_version in self.recorded:
            return
        assert self.trainer_step == action.step - 1, (self.trainer_step, action.step)
        self.trainer_step = action.step
        every = self.plan.checkpoint_every
        if every and action.step % every == 0:
            self.checkpoints.add(action.step)
        event = did.StepFinished(
            action.step,
            action.batch_digest,
            action.publish_version,
            f"digest-{action.publish_version}",
            10,
            checkpoint_step=max(c for c in self.checkpoints if c <= action.step),
        )
        self.recorded[action.publish_version] = event
        self.deliver(event)
