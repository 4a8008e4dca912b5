"""Whatever happens where trajectories are bound: one version each, every token once, and all workers drain at last."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.request_world import EngineMoves, World

from headrace.core.requests import FinishReason, Purpose, RequestLimits
from headrace.core.requests.actions import Action
from headrace.core.requests.events import (
    LiveTrajectory,
    RepackDue,
    TrajectoriesNamed,
    VersionPinned,
    WeightUpdateAsked,
)

LIMITS = RequestLimits(
    version_wait_s=1.0, worker_wait_s=5.0, binding_grace_s=3.0, max_worker_losses=100, max_refusals=100
)


@dataclass
class Episode:
    """One trajectory: turns one after another, with pauses in its environment."""

    key: str
    is_eval: bool = False
    pinned_version: int | None = None
    n_turns: int = 0
    is_over: bool = False
    turns: list[str] = field(default_factory=list)


class WatchedWorld(World):
    """Sees that only workers that take new trajectories begin some."""

    def __init__(self, local_batch: int | None) -> None:
        super().__init__(limits=LIMITS)
        self.local_batch = local_batch
        self.table.bind_trajectories(True, local_batch)

    def feed(self, event: object) -> list[Action]:
        before = {worker.worker_id: (worker, worker.n_begun) for worker in self.table.workers}
        actions = super().feed(event)
        for worker in self.table.workers:
            same, n_begun = before.get(worker.worker_id, (worker, 0))
            if same is not worker or worker.n_begun <= n_begun:
                continue
            assert self.local_batch is None or worker.n_begun <= self.local_batch
            assert worker.is_open and (worker.newest_resident or 0) <= (worker.serving_version or 0)
        return actions


class Rollout(EngineMoves):
    """Random but legal moves of callers, workers and the runner."""

    def __init__(self, rng: Random, local_batch: int | None, has_repack: bool) -> None:
        self.world = WatchedWorld(local_batch)
        self.rng, self.has_repack = rng, has_repack
        self.newest = 0
        self.n_workers = self.n_outsiders = 0
        self.stream_id = 1
        self.is_caller_away = False
        self.episodes: list[Episode] = []
        for _ in range(3):
            self.join()

    def join(self) -> None:
        self.n_workers += 1
        serving = (None, self.newest, max(0, self.newest - 1))[self.pick(3)] if self.n_workers > 3 else 0
        resident = tuple(range(max(0, self.newest - 1), self.newest + 1)) if self.pick(2) else ()
        self.world.join(f"w{self.n_workers}@1", serving, 1 + self.pick(3), resident=resident)

    def begin(self) -> None:
        is_eval = self.pick(6) == 0
        version = self.pick(self.newest + 1) if is_eval else None
        self.episodes.append(Episode(f"t{len(self.episodes)}/1", is_eval, version))
        self.turn(self.episodes[-1])

    def outsider(self) -> None:
        """A request of no trajectory: bound to nothing, it may run anywhere."""
        if not self.is_caller_away:
            self.n_outsiders += 1
            self.world.start(f"o{self.n_outsiders}", 1 + self.pick(8), stream_id=self.stream_id, prefix_key="")

    def turn(self, episode: Episode) -> None:
        if self.is_caller_away or episode.is_over or not self.is_resting(episode):
            return
        versions = [v for name in episode.turns for v in self.world.calls[name].versions]
        request_id = f"{episode.key}/{episode.n_turns}"
        episode.turns.append(request_id)
        self.world.start(
            request_id,
            1 + self.pick(8),
            stream_id=self.stream_id,
            turn=episode.n_turns,
            purpose=Purpose.EVAL if episode.is_eval else Purpose.TRAIN,
            pinned_version=episode.pinned_version,
            start_version=versions[0] if versions else None,
        )
        episode.n_turns += 1

    def is_resting(self, episode: Episode) -> bool:
        return not episode.turns or self.world.calls[episode.turns[-1]].finish is not None

    def go_on(self) -> None:
        resting = [episode for episode in self.episodes if not episode.is_over and self.is_resting(episode)]
        if not resting or self.is_caller_away:
            return
        episode = resting[self.pick(len(resting))]
        failed = any(self.world.calls[name].finish is FinishReason.FAILED for name in episode.turns)
        if failed or self.pick(3) == 0:
            self.end(episode)
        else:
            self.turn(episode)

    def end(self, episode: Episode) -> None:
        episode.is_over = True
        self.world.end(episode.key)

    def abort(self) -> None:
        live = [episode for episode in self.episodes if not episode.is_over]
        if live and not self.is_caller_away:
            self.end(live[self.pick(len(live))])

    def rejoin(self) -> None:
        """A worker opens a new stream before anybody missed the old one; it runs nothing and may have lost its host."""
        if worker := self.any_worker():
            engine = self.world.engines[worker]
            resident = () if self.pick(2) else tuple(range(self.newest + 1))
            self.world.join(worker, engine.serving_version, engine.max_running, resident=resident)

    def ask_again(self) -> None:
        held = [name for name, call in self.world.calls.items() if call.finish is None and not self.is_caller_away]
        if held:
            name = held[self.pick(len(held))]
            n_kept = self.pick(len(self.world.calls[name].tokens) + 1)
            if self.pick(2):
                self.world.ask_again(name, n_kept)
            else:
                self.world.ask_anew(name, n_kept, 64 - self.pick(8))

    def publish(self) -> None:
        self.newest += 1
        for worker in list(self.world.engines):
            if self.pick(5) == 0:
                self.world.engines[worker].refuses.add(self.newest)
            self.world.make_resident(self.newest, workers=(worker,))

    def fetch_wanted(self) -> None:
        """The runner answers: some worker gets the version that was asked for last."""
        if self.world.wanted and (worker := self.any_worker()):
            self.world.make_resident(self.world.wanted[-1], workers=(worker,))

    def ask(self) -> None:
        empty = tuple(name for name, version in self.world.serving().items() if version is None)
        if empty:
            self.world.feed(WeightUpdateAsked(self.newest, worker_ids=empty, is_barrier=False))

    def pin(self) -> None:
        self.world.feed(VersionPinned(self.pick(self.newest + 1), self.pick(2)))

    def repack(self) -> None:
        if self.has_repack:
            kv = {name: (0, 12, 30)[self.pick(3)] for name in self.world.engines}
            before = {worker.worker_id: worker.n_bound for worker in self.world.table.workers}
            self.world.feed(RepackDue(kv))
            for worker in self.world.table.workers:
                if worker.n_bound > before[worker.worker_id]:
                    assert worker.n_bound <= worker.max_running
                    assert worker.kv_bound <= (kv.get(worker.worker_id) or worker.kv_bound)

    def caller_leaves_or_returns(self) -> None:
        if not self.is_caller_away:
            self.world.leave(self.stream_id)
        else:
            named = []
            for episode in self.episodes:
                versions = [v for name in episode.turns for v in self.world.calls[name].versions]
                if versions and not episode.is_over:
                    named.append(LiveTrajectory(episode.key, versions[0], 5))
            self.world.feed(TrajectoriesNamed(self.stream_id + 1, tuple(named)))
            self.world.come_back(self.stream_id, self.stream_id + 1)
            self.stream_id += 1
        self.is_caller_away = not self.is_caller_away

    def finish(self) -> None:
        """With workers that answer, a runner that fetches, and episodes that end, every worker ends at the newest."""
        if self.is_caller_away:
            self.caller_leaves_or_returns()
        self.world.feed(VersionPinned(0, 0))
        for engine in self.world.engines.values():
            engine.refuses.clear()
        self.join()
        for _ in range(60):
            self.world.tick(0.1)
            self.world.make_resident(self.newest, *self.world.wanted[-1:])
            self.ask()
            for worker in list(self.world.engines):
                if worker in self.world.engines:
                    self.world.step(worker)
            for episode in self.episodes:
                if not episode.is_over and self.is_resting(episode):
                    self.end(episode)
        self.world.settle()
        assert all(episode.is_over or self.is_resting(episode) for episode in self.episodes)
        for episode in self.episodes:
            if not episode.is_over:
                self.end(episode)
        for _ in range(4):
            self.world.tick(0.1)
            self.ask()
            for worker in list(self.world.engines):
                self.world.step(worker)


WEIGHTS = {
    Rollout.begin: 4,
    Rollout.outsider: 1,
    Rollout.go_on: 6,
    Rollout.obey: 6,
    Rollout.generate: 8,
    Rollout.deliver: 8,
    Rollout.tick: 2,
    Rollout.publish: 1,
    Rollout.fetch_wanted: 1,
    Rollout.ask: 1,
    Rollout.kill: 1,
    Rollout.join: 1,
    Rollout.deliver_twice: 1,
    Rollout.rejoin: 1,
    Rollout.ask_again: 1,
    Rollout.leave_out: 1,
    Rollout.pin: 1,
    Rollout.abort: 1,
    Rollout.repack: 3,
    Rollout.caller_leaves_or_returns: 1,
}
MOVES = [move for move, weight in WEIGHTS.items() for _ in range(weight)]


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    local_batch=st.sampled_from([None, 1, 3]),
    has_repack=st.booleans(),
    moves=st.lists(st.sampled_from(MOVES), min_size=60, max_size=220),
)
def test_one_version_each_and_every_token_once(
    seed: int, local_batch: int | None, has_repack: bool, moves: list
) -> None:
    """Callers check every token; `check()` runs after every event."""
    rollout = Rollout(Random(seed), local_batch, has_repack)
    for move in moves:
        move(rollout)
    rollout.finish()
    world = rollout.world
    assert (world.table.n_open, world.table.n_bound, world.table.n_homeless) == (0, 0, 0)
    assert all(len(versions) == 1 for key, versions in world.versions_of.items() if key)
    assert set(world.serving().values()) <= {rollout.newest}
    for call in world.calls.values():
        if call.finish is FinishReason.FAILED:
            assert call.fault is not None and call.fault.code in ("version_unavailable", "no_worker")
        elif call.finish is FinishReason.ABORTED:
            assert call.is_aborted
    counts = world.table.counts
    assert counts.moved_requests <= counts.moved_trajectories and (has_repack or not counts.repacks)
