"""Scripted workers and the proxy before them: swaps, holds, drains, lost workers; turns run on exactly one version.

A worker that swaps ends its turns; they go on elsewhere or on the new version, with or without the tokens they had.
Where trajectories are bound to a version, a lost worker's are continued on another one that serves it, or fail, and the
tails of several workers are merged as the real planner says.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from testkit.sim.links import Link

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.rows import Key, SegmentRow
from headrace.core.repack import RolloutLoad, plan_repack

if TYPE_CHECKING:
    from testkit.sim.world import World

TOKENS_PER_S = 10.0
VERSION_WAIT_S = 4.0
REPACK_EVERY_S = 0.3
MAX_BOUND = 8


@dataclass(eq=False)
class Turn:
    """A turn's request: `left_s` of generation are still to do."""

    key: Key
    pinned_version: int | None
    left_s: float
    on_first: Callable[[int], None]
    on_done: Callable[[], None]
    on_lost: Callable[[str], None]
    segments: list[SegmentRow]  # of the trajectory, appended to
    discarded: int = 0
    worker: "Worker | None" = None
    began_at: float = 0.0
    run: int = 0  # counts dispatches; a timer of an earlier one is void
    waits_since: float = 0.0


@dataclass(eq=False)
class Worker:
    worker_id: str
    serving: int | None = None
    resident: set[int] = field(default_factory=set)
    loading: int | None = None
    wanted: tuple[int, str] | None = None  # finish_first: loads when its turns have ended
    deferred: tuple[int, str] | None = None  # held
    is_held: bool = False
    turns: dict[Turn, None] = field(default_factory=dict)  # in the order of their begin, so that runs repeat
    bound: set[Key] = field(default_factory=set)
    begun: int = 0  # trajectories begun under the version that it serves
    peak: int = 0  # most trajectories bound at once under it

    @property
    def is_open(self) -> bool:
        return self.serving is not None and self.loading is None and self.wanted is None


class Proxy:
    """One incarnation of the proxy. Workers and what they hold outlive it; holds and pending swaps do not."""

    def __init__(self, world: "World", worker_id: str) -> None:
        self.world, self.worker_id = world, worker_id
        self.rng: random.Random = world.rng
        self.drains = world.plan.policy.load_at == "drain"
        self.is_alive = True
        self.epoch = 0
        self.link: Link | None = None
        self.floor = 0  # unpinned turns run on this version or a later one
        self.pin: tuple[int, int] = (0, 0)
        self.prefetch: int | None = None
        self.waiting: list[Turn] = []
        self.homes: dict[Key, Worker] = {}  # of trajectories bound to a version
        self.versions: dict[Key, int] = {}
        self.is_checking = False
        if world.plan.policy.repack:
            world.clock.after(REPACK_EVERY_S * world.pace, self._repack)

    # -- the runner's stream -----------------------------------------------------------------------------------------

    def open(self, link: Link) -> None:
        if not self.is_alive or link.epoch < self.epoch:
            return
        self.link, self.epoch = link, link.epoch
        self.tell(did.ProxyOpened(self.worker_id))
        for worker in self.world.workers.values():
            self.report(worker)

    def tell(self, event: did.Event) -> None:
        if self.is_alive and self.link is not None:
            self.link.answer(self.world.hear, self.link, event)

    def report(self, worker: Worker) -> None:
        self.tell(did.WorkerReported(worker.worker_id, worker.serving, frozenset(worker.resident)))

    def command(self, epoch: int, action: do.Action) -> None:
        if not self.is_alive or epoch < self.epoch:
            return
        workers = self.world.workers
        match action:
            case do.PrefetchWeights(version):
                if version not in self.world.store.sealed:
                    raise AssertionError(f"version {version} is prefetched, and was never pushed")
                self.prefetch = version
                for worker in workers.values():
                    self.fetch(worker)
            case do.UpdateWeights(version, mode, worker_ids):
                self.floor = max(self.floor, version) if not self.drains else 0
                for worker_id in worker_ids:
                    if worker_id in workers:
                        self.ask(workers[worker_id], version, mode)
            case do.PinVersion(version, n_workers):
                self.pin = (version, n_workers)
                self._hold()

    # -- weights -----------------------------------------------------------------------------------------------------

    def fetch(self, worker: Worker) -> None:
        """The newest version, in the background."""
        if self.prefetch is None:
            return
        delay = self.rng.uniform(0.01, 0.5) * self.world.pace
        if self.world.happens("slow_prefetch"):
            delay = self.rng.uniform(4.0, 20.0)
        self.world.clock.after(delay, self._fetched, worker, self.prefetch)

    def _fetched(self, worker: Worker, version: int) -> None:
        if worker.worker_id not in self.world.workers:
            return
        if version not in worker.resident and version not in self.world.store.here:
            self.tell(did.WeightsPrefetched(worker.worker_id, version, "node: not resident"))
            return
        if self.world.happens("load_fault"):
            self.tell(did.WeightsPrefetched(worker.worker_id, version, "node: unreachable"))
            return
        worker.resident.add(version)
        self.tell(did.WeightsPrefetched(worker.worker_id, version))
        self._drain(worker)
        self.dispatch()

    def ask(self, worker: Worker, version: int, mode: str) -> None:
        if worker.is_held:
            worker.deferred = (version, mode)
        elif worker.loading is None and worker.serving == version and worker.wanted is None:
            self.tell(did.WeightsUpdated(worker.worker_id, version))
        elif worker.loading is not None or (mode == "finish_first" and worker.turns):
            worker.wanted = (version, mode)
        else:
            self._load(worker, version, keeps=mode != "discard")

    def _load(self, worker: Worker, version: int, *, keeps: bool) -> None:
        worker.wanted, worker.loading = None, version
        for turn in list(worker.turns):
            self._suspend(turn, keeps=keeps)
        self.world.clock.after(self.rng.uniform(0.01, 0.3) * self.world.pace, self._loaded, worker, version)

    def _loaded(self, worker: Worker, version: int) -> None:
        if worker.worker_id not in self.world.workers:
            return
        worker.loading = None
        if version not in worker.resident or self.world.happens("load_fault"):
            self.tell(did.WeightsUpdated(worker.worker_id, version, "load: refused"))
        else:
            worker.serving, worker.begun, worker.peak = version, 0, 0
            self.tell(did.WeightsUpdated(worker.worker_id, version))
        self._hold()
        if worker.wanted is not None and not worker.is_held:
            self._load(worker, worker.wanted[0], keeps=worker.wanted[1] != "discard")
        self.dispatch()

    def _hold(self) -> None:
        """The first few workers that serve the pinned version keep it; whoever is let go takes up what it put off."""
        version, n_workers = self.pin
        serving = sorted(w.worker_id for w in self.world.workers.values() if w.serving == version and not w.loading)
        held = set(serving[:n_workers])
        for worker in self.world.workers.values():
            worker.is_held = worker.worker_id in held
            if worker.is_held and worker.wanted is not None:
                worker.deferred, worker.wanted = worker.wanted, None
            if not worker.is_held and worker.deferred is not None:
                deferred, worker.deferred = worker.deferred, None
                self.ask(worker, *deferred)
            self._drain(worker)

    def _drain(self, worker: Worker) -> None:
        """A drained worker loads the newest version that it holds."""
        if not self.drains or worker.is_held or worker.serving is None or worker.loading is not None:
            return
        newest = max(worker.resident, default=worker.serving)
        if worker.bound or worker.turns:
            return
        if newest > worker.serving:
            self._load(worker, newest, keeps=True)
        else:
            worker.begun = 0  # it had its local batch, and there is nothing newer to load

    def _repack(self) -> None:
        """Now and then. A cached token stands for a bound trajectory."""
        if not self.is_alive:
            return
        workers = {w.worker_id: w for w in self.world.workers.values() if w.is_open and not w.is_held and w.bound}
        for move in plan_repack(self._load_of(worker) for worker in workers.values()):
            self._move(workers[move.source], workers[move.destination])
        self.world.clock.after(REPACK_EVERY_S * self.world.pace, self._repack)

    def _load_of(self, worker: Worker) -> RolloutLoad:
        assert worker.serving is not None
        n_bound = len(worker.bound)
        can_release = not self._takes_new(worker)
        return RolloutLoad(
            worker.worker_id, worker.serving, n_bound, worker.peak, MAX_BOUND, n_bound, MAX_BOUND, can_release
        )

    def _move(self, source: Worker, destination: Worker) -> None:
        """Everything bound goes, with the tokens that it has; the source has drained."""
        self.world.n_moved += len(source.bound)
        for key in source.bound:
            self.homes[key] = destination
        destination.bound |= source.bound
        source.bound.clear()
        for turn in list(source.turns):
            self._suspend(turn, keeps=True)
        self._drain(source)
        self.dispatch()

    # -- turns -------------------------------------------------------------------------------------------------------

    def submit(self, turn: Turn) -> None:
        turn.waits_since = self.world.clock.now
        self.waiting.append(turn)
        self.dispatch()

    def dispatch(self) -> None:
        still: list[Turn] = []
        for turn in self.waiting:
            worker = self._route(turn)
            if worker is None:
                still.append(turn)
            else:
                self._run(turn, worker)
        self.waiting = still
        if still and not self.is_checking:
            self.is_checking = True
            self.world.clock.after(1.0, self._check)

    def _check(self) -> None:
        """What waits for a version that nobody serves any more fails."""
        self.is_checking = False
        now = self.world.clock.now
        lost = [t for t in self.waiting if self._bound_version(t) is not None and now - t.waits_since > VERSION_WAIT_S]
        self.waiting = [turn for turn in self.waiting if turn not in lost]
        for turn in lost:
            turn.on_lost("version_unavailable")
        self.dispatch()

    def _bound_version(self, turn: Turn) -> int | None:
        return turn.pinned_version if turn.pinned_version is not None else self.versions.get(turn.key)

    def _route(self, turn: Turn) -> Worker | None:
        version = self._bound_version(turn)
        home = self.homes.get(turn.key)
        if home is not None and home.worker_id in self.world.workers and home.is_open and home.serving == version:
            return home
        usable = [w for w in self.world.workers.values() if w.is_open]
        if version is not None:
            usable = [w for w in usable if w.serving == version]
        else:
            usable = [w for w in usable if not w.is_held and self._takes_new(w)]
        return min(usable, key=lambda w: len(w.turns), default=None)

    def _takes_new(self, worker: Worker) -> bool:
        assert worker.serving is not None
        if not self.drains:
            return worker.serving >= self.floor
        limit = self.world.plan.policy.local_batch
        is_full = limit is not None and worker.begun >= limit
        return not is_full and max(worker.resident, default=worker.serving) <= worker.serving

    def _run(self, turn: Turn, worker: Worker) -> None:
        assert worker.serving is not None
        turn.worker, turn.began_at = worker, self.world.clock.now
        turn.run += 1
        worker.turns[turn] = None
        if self.drains or turn.pinned_version is not None:
            if turn.key not in self.versions:
                worker.begun += 1
            self.homes[turn.key], self.versions[turn.key] = worker, worker.serving
            worker.bound.add(turn.key)
            worker.peak = max(worker.peak, len(worker.bound))
        if not turn.segments:
            self.world.clock.after(0.1 * turn.left_s, self._first_token, turn, turn.run, worker.serving)
        self.world.clock.after(turn.left_s, self._done, turn, turn.run)

    def _first_token(self, turn: Turn, run: int, version: int) -> None:
        if turn.run == run:
            turn.on_first(version)

    def _done(self, turn: Turn, run: int) -> None:
        if turn.run != run or turn.worker is None:
            return
        self._cut(turn, keeps=True)
        turn.on_done()

    def _cut(self, turn: Turn, *, keeps: bool) -> None:
        """The turn leaves its worker with the tokens that it made there, or without."""
        worker = turn.worker
        assert worker is not None and worker.serving is not None
        elapsed = self.world.clock.now - turn.began_at
        n_tokens = max(1, int(elapsed * TOKENS_PER_S)) if elapsed > 0.1 * turn.left_s else 0
        if keeps and n_tokens:
            turn.segments.append(SegmentRow(worker.serving, worker.worker_id, f"v{worker.serving}", n_tokens))
            turn.left_s = max(0.05, turn.left_s - elapsed)
        elif not keeps:
            turn.discarded += n_tokens
        turn.worker = None
        turn.run += 1
        worker.turns.pop(turn, None)
        if not worker.turns and worker.wanted is not None and worker.loading is None:
            self._load(worker, worker.wanted[0], keeps=True)

    def _suspend(self, turn: Turn, *, keeps: bool) -> None:
        self._cut(turn, keeps=keeps)
        self.submit(turn)

    def cancel(self, turn: Turn) -> None:
        if turn.worker is not None:
            self._cut(turn, keeps=True)
        if turn in self.waiting:
            self.waiting.remove(turn)

    def release(self, key: Key) -> None:
        """The trajectory has ended; its worker may have drained."""
        worker = self.homes.pop(key, None)
        self.versions.pop(key, None)
        if worker is not None:
            worker.bound.discard(key)
            self._drain(worker)
            self.dispatch()

    # -- losses ------------------------------------------------------------------------------------------------------

    def take_over(self, gone: "Proxy") -> None:
        """Environments send their requests again, each with its tokens and the version that it is bound to."""
        self.homes, self.versions = gone.homes, gone.versions
        self.waiting, gone.waiting = gone.waiting, []
        for worker in self.world.workers.values():
            worker.wanted = worker.deferred = None
            worker.is_held = False
            for turn in list(worker.turns):
                self._suspend(turn, keeps=True)

    def lose_worker(self, worker: Worker) -> None:
        for turn in list(worker.turns):
            self._cut(turn, keeps=True)
            self.submit(turn)
        self._hold()
