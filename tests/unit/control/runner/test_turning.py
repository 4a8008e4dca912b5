"""Turns over a memory repository: decide, commit, then perform; a crash before or after any commit costs nothing."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from testkit.memory_repository import MemoryRepository, MemoryTables
from testkit.specs import make_spec
from testkit.turns import manifest

from control_plane.runner.lease import LeaseLost
from control_plane.runner.planning import plan_of
from control_plane.runner.turn import Turn
from control_plane.runner.turning import TurnTaker, ended
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.machine import JobMachine
from headrace.core.job.rows import SegmentRow
from headrace.core.job.snapshot import restore

SPEC = make_spec(**{"async": {"preset": "bounded", "alpha": 0}, "max_steps": 2})
PLAN = plan_of("job_t", SPEC, export_path="/models/out")
ENV, WORKER = "env-0@a", "inference-0@a"


class Processes:
    """Answers actions as the services would, one event at a time, and notes what was sent when."""

    def __init__(self, tables: MemoryTables) -> None:
        self.tables = tables
        self.waiting: list[did.Event] = []
        self.performed: list[do.Action] = []
        self.is_broker_up = True
        self.sent: list[int] = []
        self.trainer_step = 0

    async def perform(self, actions: Sequence[do.Action]) -> None:
        self.performed += actions
        for action in actions:
            self.waiting += self._answer(action)

    async def send_rewards(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
        if not self.is_broker_up:
            return False
        for entry_id, payload in entries:
            self.sent.append(entry_id)
            for item in payload["items"]:
                key = next(a.key for a in of(self.performed, do.AssignAttempt) if a.key[0] == item["trajectory_id"])
                self.waiting.append(did.RewardReported(key, item["reward_name"], 1.0))
        return True

    def _answer(self, action: do.Action) -> list[did.Event]:
        match action:
            case do.PublishState(version):
                return [did.StatePublished(version, f"digest-{version}", 10)]
            case do.PrefetchWeights(version):
                return [did.WeightsPrefetched(WORKER, version)]
            case do.UpdateWeights(version):
                return [did.WeightsUpdated(WORKER, version)]
            case do.AssignAttempt(key):
                return [self._finished(key, action.task)]
            case do.TrainStep(step, digest, _, publish):
                self.trainer_step = step
                return [did.StepFinished(step, digest, publish, f"digest-{publish}", 10, {"loss": 0.5})]
            case do.CloseTraining(path):
                return [did.TrainingClosed(path)]
            case _:
                return []

    def _finished(self, key: Any, task: str) -> did.AttemptFinished:
        version = max(self.tables.versions)
        segments = (SegmentRow(version, WORKER, f"digest-{version}", 8),)
        reward = 1.0 if task == "lake" else None
        return did.AttemptFinished(key, "tokens", "grading", 12, 8, 1, segments, reward, "completed", False, ENV)


class Crash(Exception):
    pass


class CrashingStore:
    """A repository that dies at one commit, before it is written or after."""

    def __init__(self, repository: MemoryRepository, at: int, *, is_written: bool) -> None:
        self._repository, self._at, self._is_written = repository, at, is_written
        self.n_commits = 0

    async def commit(self, turn: Turn) -> list[int]:
        self.n_commits += 1
        if self.n_commits == self._at and not self._is_written:
            raise Crash
        ids = await self._repository.commit(turn)
        if self.n_commits == self._at:
            raise Crash
        return ids


def of(actions: Sequence[do.Action], kind: type) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def document(tables: MemoryTables, name: str) -> dict[str, Any]:
    """A JSON column of the job's row."""
    value: dict[str, Any] = json.loads(tables.job[name])
    return value


CONNECTED = [
    did.EnvOpened(ENV, 16, frozenset()),
    did.WorkersChanged(frozenset({WORKER})),
    did.ProxyOpened("proxy@a"),
    did.TrainerOpened("trainer@a", 0, is_attached=True),
]


def fresh() -> tuple[MemoryTables, MemoryRepository, Processes]:
    tables = MemoryTables()
    epoch = tables.acquire("runner-a", 1e9)
    assert epoch is not None
    return tables, MemoryRepository(tables, "job_t", epoch, 1e9), Processes(tables)


def taker(machine: JobMachine, store: Any, processes: Processes) -> TurnTaker:
    turns = TurnTaker(machine, store, processes, SPEC)
    turns.manifests = {version: manifest(version) for version in range(12)}
    return turns


async def run(turns: TurnTaker, processes: Processes, first: Sequence[did.Event], now: float = 100.0) -> float:
    """Until the job has ended; the time then."""
    arrived = list(first)
    for _ in range(200):
        now += 1.0
        actions = await turns.take(arrived, now)
        if ended(actions):
            return now
        arrived, processes.waiting = processes.waiting[:3], processes.waiting[3:]
    raise AssertionError(f"no end: {turns.machine.state.phase}")


async def test_a_job_from_its_first_turn_to_its_last() -> None:
    tables, repository, processes = fresh()
    turns = taker(JobMachine.fresh(PLAN), repository, processes)
    await run(turns, processes, CONNECTED)
    assert (tables.job["phase"], tables.job["step"], tables.job["current_version"]) == ("succeeded", 2, 2)
    result = document(tables, "result")
    assert (result["ledger_balanced"], result["model"]) == (True, "/models/out")
    assert {row["state"] for row in tables.attempts.values()} <= {"trained", "aborted"}
    assert tables.metrics["loss", 1] == 0.5
    assert [row["state"] for _, row in sorted(tables.steps.items())] == ["committed", "committed"]


async def test_phases_are_told_as_they_change() -> None:
    tables, repository, processes = fresh()
    await run(taker(JobMachine.fresh(PLAN), repository, processes), processes, CONNECTED)
    phases = [data["phase"] for type_, data in tables.events if type_ == "job.phase"]
    assert phases == ["running", "succeeded"]


async def test_effects_follow_the_commit() -> None:
    """What is performed was decided by a turn that is already in the tables."""
    tables, repository, processes = fresh()
    turns = taker(JobMachine.fresh(PLAN), repository, processes)
    seen: list[str] = []

    async def perform(actions: Sequence[do.Action]) -> None:
        for action in of(actions, do.TrainStep):
            seen.append(tables.steps[action.step]["state"])
        await Processes.perform(processes, actions)

    processes.perform = perform  # type: ignore[method-assign]
    await run(turns, processes, CONNECTED)
    assert seen == ["sampled", "sampled"]


async def test_a_turn_under_a_lost_lease_performs_nothing() -> None:
    tables, repository, processes = fresh()
    turns = taker(JobMachine.fresh(PLAN), repository, processes)
    tables.now += 2e9
    tables.acquire("runner-b", 1e9)
    with pytest.raises(LeaseLost):
        await turns.take(CONNECTED, 100.0)
    assert processes.performed == []
    assert document(tables, "runner_state") == {}


class TestRewards:
    async def test_entries_that_left_are_marked_in_the_next_turn(self) -> None:
        tables, repository, processes = fresh()
        turns = taker(JobMachine.fresh(PLAN), repository, processes)
        await run(turns, processes, CONNECTED)
        assert processes.sent
        assert [row["is_sent"] for row in tables.outbox] == [True] * len(processes.sent)

    async def test_a_broker_that_is_down_costs_only_time(self) -> None:
        """Nothing is marked; the machine sends again when the reward's deadline passes."""
        tables, repository, processes = fresh()
        processes.is_broker_up = False
        turns = taker(JobMachine.fresh(PLAN), repository, processes)
        arrived, now = list(CONNECTED), 100.0
        while not tables.outbox:
            now += 1.0
            await turns.take(arrived, now)
            arrived, processes.waiting = processes.waiting, []
        await turns.take(arrived, now)
        assert not any(row["is_sent"] for row in tables.outbox)
        processes.is_broker_up = True
        await run(turns, processes, [], now + 40.0)
        assert tables.job["phase"] == "succeeded"

    async def test_a_new_runner_finds_what_was_not_sent(self) -> None:
        tables, repository, processes = fresh()
        processes.is_broker_up = False
        turns = taker(JobMachine.fresh(PLAN), repository, processes)
        arrived, now = list(CONNECTED), 100.0
        while not tables.outbox:
            now += 1.0
            await turns.take(arrived, now)
            arrived, processes.waiting = processes.waiting, []
        processes.is_broker_up = True
        stored = await repository.load(PLAN)
        assert stored is not None
        again = taker(restore(stored), repository, processes)
        await again.send_rewards(await repository.unsent())
        assert processes.sent == [row["id"] for row in tables.outbox]


class TestCrashes:
    """The runner dies at each commit of a job, before it is written or after; another one takes the job up."""

    async def n_commits(self) -> int:
        _, repository, processes = fresh()
        store = CrashingStore(repository, 0, is_written=True)
        await run(taker(JobMachine.fresh(PLAN), store, processes), processes, CONNECTED)
        return store.n_commits

    @pytest.mark.parametrize("is_written", [False, True])
    async def test_the_job_ends_the_same(self, is_written: bool) -> None:
        for at in range(1, await self.n_commits() + 1):
            tables, repository, processes = fresh()
            store = CrashingStore(repository, at, is_written=is_written)
            turns = taker(JobMachine.fresh(PLAN), store, processes)
            with pytest.raises(Crash):
                await run(turns, processes, CONNECTED)
            if tables.job["phase"] != "succeeded":
                await self._take_up(tables, repository, processes)
            assert (tables.job["phase"], tables.job["step"]) == ("succeeded", 2), at
            trained = [key for key, row in tables.attempts.items() if row["state"] == "trained"]
            assert len(trained) == 2 * 2 * 2, at
            issued = document(tables, "ledger")["issued"]["train"]
            assert sum(issued.values()) == len(tables.attempts), at

    async def _take_up(self, tables: MemoryTables, repository: MemoryRepository, processes: Processes) -> None:
        stored = await repository.load(PLAN)
        machine = JobMachine.fresh(PLAN) if stored is None else restore(copy.deepcopy(stored))
        turns = taker(machine, repository, processes)
        await turns.send_rewards(await repository.unsent())
        current = machine.state.lineage.current
        step = 0 if current is None else machine.state.lineage.versions[current].step
        served = did.WorkerReported(WORKER, None, frozenset())
        trainer = did.TrainerOpened("trainer@a", step, is_attached=True)
        await run(turns, processes, [*CONNECTED[:3], served, trainer], now=300.0)
