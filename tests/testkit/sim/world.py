"""A job from its start to its end on virtual time: real machine, real TurnTaker, stored rows; everything else scripted.

Whoever looks at a failure gets the schedule and the last events; the same number makes the same run.
"""

import inspect
import random
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from testkit.sim.audit import Audit
from testkit.sim.database import Database
from testkit.sim.environments import EnvironmentProcess
from testkit.sim.graders import Graders
from testkit.sim.inference import Proxy, Worker
from testkit.sim.links import Clock, Link
from testkit.sim.runner import POINTS, Runner, RunnerCrashed
from testkit.sim.schedule import ENDS_WITHIN_S, FAULTS_UNTIL_S, Schedule
from testkit.sim.trainer import Store, Trainer

from control_plane.runner.lease import LeaseLost
from control_plane.runner.turn import Turn
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.state import TERMINAL

REPEATED = (
    did.AttemptStarted,
    did.AttemptFinished,
    did.AttemptFailed,
    did.RewardReported,
    did.StepFinished,
    did.StatePublished,
    did.WeightsPrefetched,
    did.TrainerLost,
)


class World:
    """`run` returns when the job has reached its end, and raises where anything is not as it must be."""

    def __init__(self, schedule: Schedule, database: Database) -> None:
        self.schedule, self.plan, self.database = schedule, schedule.plan, database
        self.chances, self.pace = schedule.chances, schedule.pace
        self.rng = random.Random(f"world/{schedule.number}")
        self.clock = Clock()
        self.audit = Audit(schedule.plan)
        self.history: deque[tuple[float, object]] = deque(maxlen=60)
        self.n_events = self.n_turns = self.n_lost_leases = self.n_in_step = self.n_moved = 0
        self.phase: Any = None
        self.generation = 0
        self.store = Store()
        self.graders = Graders(self)
        self.runner: Runner | None = None
        self.workers = {f"inference-{i}@0": Worker(f"inference-{i}@0") for i in range(schedule.n_workers)}
        self.envs = {f"env-{i}@0": EnvironmentProcess(self, f"env-{i}@0") for i in range(schedule.n_envs)}
        self.proxy = Proxy(self, "proxy@0")
        self.trainer = Trainer(self, "trainer@0")

    async def run(self) -> "World":
        self.clock.at(0.0, self._start_runner)
        for fault in self.schedule.faults:
            self.clock.at(fault.at_s, self._strike, fault.kind)
        while self.phase not in TERMINAL:
            assert self.clock.now < FAULTS_UNTIL_S + ENDS_WITHIN_S, f"no end in sight: {self._standstill()}"
            call, args = self.clock.pop()
            called = call(*args)
            if inspect.iscoroutine(called):
                await called
        self.audit.ended(self.phase, await self.database.rows(), self.schedule)
        return self

    def _standstill(self) -> str:
        state = self.runner.state if self.runner else None
        if state is None:
            return "no runner"
        groups = {
            g.id: (g.task, g.state.value, [m.state.value for m in g.members.values()]) for g in state.groups.values()
        }
        return f"{state.phase} step {state.step} {groups} workers {state.workers} steps {state.steps} {state.counters}"

    def happens(self, chance: str) -> bool:
        probability = getattr(self.chances, chance)
        return bool(probability) and self.clock.now < FAULTS_UNTIL_S and self.rng.random() < probability

    def note(self, what: object) -> None:
        self.history.append((self.clock.now, what))

    # -- turns -------------------------------------------------------------------------------------------------------

    async def _start_runner(self) -> None:
        """Whoever takes the job over; the lease of the one before has passed."""
        if self.phase in TERMINAL:
            return
        epoch, repository = await self.database.acquire()
        if epoch > 1:
            await self._audit_everything()
        self.runner = Runner(self, epoch, repository)
        self.note(f"runner {epoch} takes up")
        await self.runner.start()

    async def _audit_everything(self) -> None:
        rows = await self.database.rows()
        if rows.job.get("ledger"):
            self.audit.again(rows)

    async def take_turn(self, runner: Runner, arrived: Sequence[did.Event]) -> None:
        self.n_events += len(arrived)
        self.n_turns += 1
        for event in arrived:
            self.note(event)
        try:
            if runner is self.runner:
                await runner.taker.take(arrived, self.clock.now)
            else:
                await self._take_in_vain(runner, arrived)
        except RunnerCrashed as crash:
            self.note(f"runner {runner.epoch} dies {crash}")
            runner.stop()
            self.runner = None
            self.clock.after(self.rng.uniform(0.05, 2.0), self._start_runner)

    async def _take_in_vain(self, runner: Runner, arrived: Sequence[did.Event]) -> None:
        """One that has lost its lease finds out, and leaves no trace."""
        runner.point = ""
        before, n_effects = await self.database.fingerprint(), runner.n_effects
        try:
            await runner.taker.take([*arrived, did.CancelRequested("the old runner's")], self.clock.now)
        except LeaseLost:
            self.note(f"runner {runner.epoch} has lost its lease")
        else:
            raise AssertionError(f"runner {runner.epoch} wrote after its lease had passed on")
        assert await self.database.fingerprint() == before, "a runner without its lease wrote rows"
        assert runner.n_effects == n_effects, "a runner without its lease had effects"
        self.n_lost_leases += 1
        runner.stop()

    async def committed(self, turn: Turn) -> None:
        self.phase = turn.phase
        if self.database.is_read_each_turn:
            self.audit.turn(turn, await self.database.rows(), self.clock.now)

    # -- streams -----------------------------------------------------------------------------------------------------

    def connect(self, runner: Runner) -> None:
        runner.put(did.WorkersChanged(frozenset(self.workers)))
        for gone in sorted(runner.env_ids() - self.envs.keys()):
            runner.put(did.EnvLost(gone))
        for name in ("proxy", "trainer", *self.envs):
            self.clock.after(self.rng.uniform(0.0, 0.3), self._open, runner, name)

    def _open(self, runner: Runner, name: str) -> None:
        if not runner.is_alive or (name not in ("proxy", "trainer") and name not in self.envs):
            return
        if name in runner.links:
            runner.links[name].is_cut = True
        peer: Any = {"proxy": self.proxy, "trainer": self.trainer}.get(name) or self.envs[name]
        link = runner.links[name] = Link(self.clock, self.rng, runner, peer)
        if name == "proxy":
            link.send(peer.open, link)
        elif name == "trainer":
            link.send(peer.open, link, runner.restore_step())
        else:
            link.send(peer.open, link, runner.is_paused())

    def hear(self, link: Link, event: did.Event) -> None:
        link.runner.hear(event)
        if isinstance(event, REPEATED) and self.happens("duplicate"):
            self.clock.after(self.rng.uniform(0.0, 3.0), self._repeat, event)

    def _repeat(self, event: did.Event) -> None:
        if self.runner is not None:
            self.note("again:")
            self.runner.hear(event)

    def perform(self, runner: Runner, action: do.Action) -> None:
        """Onto the stream of whoever it is for; lost while that is down."""
        match action:
            case do.AssignAttempt() | do.AbortAttempt() | do.AcknowledgeAttempt():
                self._send(runner, action.env_worker_id, action)
            case do.PauseRollout() | do.ResumeRollout():
                for name in self.envs:
                    self._send(runner, name, action)
            case do.PrefetchWeights(version) if version in self.store.sealed and version not in self.store.here:
                self._send(runner, "trainer", self._lost(runner, version))
            case do.PrefetchWeights() | do.UpdateWeights() | do.PinVersion():
                self._send(runner, "proxy", action)
            case do.PublishState() | do.TrainStep() | do.CloseTraining():
                self._send(runner, "trainer", action)

    @staticmethod
    def _lost(runner: Runner, version: int) -> do.PublishState:
        """Asked of the trainer instead, as the performer does when the node says that it does not have the version."""
        known = runner.state.lineage.versions[version]
        return do.PublishState(version, known.parent, known.step)

    def _send(self, runner: Runner, name: str, action: do.Action) -> None:
        link = runner.links.get(name)
        if link is not None and not link.is_cut:
            link.send(link.peer.command, runner.epoch, action)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _strike(self, kind: str) -> Any:
        self.note(f"fault: {kind}")
        self.generation += 1
        return getattr(self, f"_lose_{kind}")()

    def _lose_env(self) -> None:
        if not self.envs:
            return
        gone = self.envs.pop(self.rng.choice(sorted(self.envs)))
        gone.die()
        fresh = f"env@{self.generation}"
        self.clock.after(self.rng.uniform(0.1, 3.0), self._tell_lost_env, gone.worker_id)
        self.clock.after(self.rng.uniform(0.1, 4.0), self._join_env, fresh)

    def _tell_lost_env(self, worker_id: str) -> None:
        if self.runner is not None:
            self.runner.put(did.EnvLost(worker_id))

    def _join_env(self, worker_id: str) -> None:
        self.envs[worker_id] = EnvironmentProcess(self, worker_id)
        if self.runner is not None:
            self._open(self.runner, worker_id)

    def _lose_worker(self) -> None:
        if not self.workers:
            return
        gone = self.workers.pop(self.rng.choice(sorted(self.workers)))
        self.proxy.lose_worker(gone)
        self._tell_workers()
        self.clock.after(self.rng.uniform(0.5, 5.0), self._join_worker, f"inference@{self.generation}")

    def _join_worker(self, worker_id: str) -> None:
        self.workers[worker_id] = Worker(worker_id)
        self._tell_workers()
        self.proxy.report(self.workers[worker_id])
        self.proxy.fetch(self.workers[worker_id])

    def _tell_workers(self) -> None:
        if self.runner is not None:
            self.runner.put(did.WorkersChanged(frozenset(self.workers)))

    def _lose_trainer(self) -> None:
        gone, self.trainer = self.trainer, Trainer(self, f"trainer@{self.generation}")
        gone.is_alive = False
        self.clock.after(self.rng.uniform(0.05, 1.0), self._tell_lost_trainer, gone.worker_id)

    def _tell_lost_trainer(self, worker_id: str) -> None:
        if self.runner is not None:
            self.runner.put(did.TrainerLost(worker_id))
            self.clock.after(self.rng.uniform(0.05, 3.0), self._open, self.runner, "trainer")

    def _lose_proxy(self) -> None:
        """Its turns come again from the environments, with the tokens that they hold."""
        gone, self.proxy = self.proxy, Proxy(self, f"proxy@{self.generation}")
        gone.is_alive = False
        self.proxy.take_over(gone)
        if self.runner is not None:
            self.clock.after(self.rng.uniform(0.05, 2.0), self._open, self.runner, "proxy")

    def _lose_runner(self) -> None:
        if self.runner is not None:
            self.runner.point = self.rng.choice(POINTS)

    def _lose_stall(self) -> Coroutine[Any, Any, None] | None:
        """The runner stands still until another one has its job; then it goes on, in vain."""
        if self.runner is None:
            return None
        self.clock.after(self.rng.uniform(0.1, 2.0), self.runner.turn)
        return self._start_runner()

    def _lose_node(self) -> None:
        """The weight node's bytes; workers keep what is resident."""
        self.store.here.clear()

    def _lose_env_link(self) -> None:
        self._cut(self.rng.choice(sorted(self.envs)) if self.envs else "")

    def _lose_proxy_link(self) -> None:
        self._cut("proxy")

    def _lose_trainer_link(self) -> None:
        self._cut("trainer")

    def _cut(self, name: str) -> None:
        if self.runner is not None and name in self.runner.links:
            self.runner.links[name].is_cut = True
            self.clock.after(self.rng.uniform(0.05, 1.0), self._open, self.runner, name)

    def _lose_pause(self) -> Coroutine[Any, Any, None]:
        return self._pause(self.rng.uniform(0.1, 5.0))

    def _lose_long_pause(self) -> Coroutine[Any, Any, None]:
        return self._pause(self.plan.limits.pause_ttl_s + 5.0)

    async def _pause(self, duration_s: float) -> None:
        await self._wish("pause")
        self.clock.after(duration_s, self._wish, "resume")

    async def _wish(self, desired: str) -> None:
        await self.database.wish(desired)
        if self.runner is not None:
            await self.runner.look()

    def _lose_cancel(self) -> Coroutine[Any, Any, None]:
        return self._wish("cancel")

    def _lose_trainer_fault(self) -> None:
        self.trainer.answer(did.TrainingFailed("out_of_memory", "scripted"))
