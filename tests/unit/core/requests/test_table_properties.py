"""After any sequence of events: nothing is lost, repeated or mislabelled, and everything ends."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.request_world import EngineMoves, World

from headrace.core.requests import FinishReason, LoadMode, Purpose, RequestLimits
from headrace.core.requests.events import (
    RolloutPaused,
    RolloutResumed,
    VersionPinned,
    WeightUpdateAsked,
)
from headrace.core.router import AffinityRouter

ROUTER = AffinityRouter(pools={"lake": ("a", "b"), "tool": ("b",)})
LIMITS = RequestLimits(version_wait_s=1.0, worker_wait_s=5.0, max_worker_losses=100, max_refusals=100)
MODES = st.sampled_from(list(LoadMode))


class Chaos(EngineMoves):
    """Random but legal moves; the world checks every consequence."""

    def __init__(self, rng: Random, mode: LoadMode) -> None:
        self.world = World(ROUTER, LIMITS)
        self.mode = mode
        self.rng = rng
        self.newest = 0
        self.n_workers = self.n_requests = 0
        self.stream_id = 1
        self.is_caller_away = False
        for _ in range(2):
            self.join()

    def join(self) -> None:
        self.n_workers += 1
        version = self.pick(self.newest + 2) - 1
        self.world.join(f"w{self.n_workers}@1", None if version < 0 else version, 1 + self.pick(3), "ab"[self.pick(2)])

    def start(self) -> None:
        if self.is_caller_away:
            return
        self.n_requests += 1
        is_eval = self.pick(4) == 0
        self.world.start(
            f"t{self.pick(3)}/{self.n_requests}",
            1 + self.pick(12),
            stream_id=self.stream_id,
            max_new_tokens=1 + self.pick(10),
            task=("lake", "tool", "other")[self.pick(3)],
            turn=self.pick(3),
            purpose=Purpose.EVAL if is_eval else Purpose.TRAIN,
            pinned_version=self.pick(self.newest + 1) if is_eval else None,
        )

    def rejoin(self) -> None:
        """A worker opens a new stream before anybody missed the old one."""
        if worker := self.any_worker():
            engine = self.world.engines[worker]
            self.world.join(worker, engine.serving_version, engine.max_running, "ab"[self.pick(2)])

    def ask_again(self) -> None:
        held = [name for name, call in self.world.calls.items() if call.finish is None and not self.is_caller_away]
        if held:
            name = held[self.pick(len(held))]
            self.world.ask_again(name, self.pick(len(self.world.calls[name].tokens) + 1))

    def ask_anew(self) -> None:
        held = [name for name, call in self.world.calls.items() if call.finish is None and not self.is_caller_away]
        if held:
            name = held[self.pick(len(held))]
            n_kept = self.pick(len(self.world.calls[name].tokens) + 1)
            self.world.ask_anew(name, n_kept, max(1, n_kept) + self.pick(4))

    def update(self) -> None:
        self.newest += 1
        named = (self.any_worker(),) if self.pick(3) == 0 else ()
        if self.pick(5) == 0 and (worker := self.any_worker()):
            self.world.engines[worker].refuses.add(self.newest)
        self.world.feed(
            WeightUpdateAsked(self.newest, self.mode, tuple(name for name in named if name), self.pick(2) == 0)
        )

    def pin(self) -> None:
        self.world.feed(VersionPinned(self.pick(self.newest + 1), self.pick(3)))

    def abort(self) -> None:
        open_calls = [
            name for name, call in self.world.calls.items() if call.finish is None and not self.is_caller_away
        ]
        if open_calls:
            self.world.abort(open_calls[self.pick(len(open_calls))])

    def caller_leaves_or_returns(self) -> None:
        if self.is_caller_away:
            self.world.come_back(self.stream_id, self.stream_id + 1)
            self.stream_id += 1
        else:
            self.world.leave(self.stream_id)
        self.is_caller_away = not self.is_caller_away

    def pause_or_resume(self) -> None:
        self.world.feed(RolloutResumed() if self.world.table.is_paused else RolloutPaused())

    def finish(self) -> None:
        """With workers that answer, a caller that listens and the newest version loadable, everything ends."""
        if self.is_caller_away:
            self.caller_leaves_or_returns()
        self.world.feed(RolloutResumed())
        self.world.feed(VersionPinned(0, 0))
        for engine in self.world.engines.values():
            engine.refuses.clear()
        self.join()
        self.newest += 1
        self.world.feed(WeightUpdateAsked(self.newest, self.mode))
        for _ in range(80):
            self.world.tick(0.1)
            for worker in list(self.world.engines):
                if worker in self.world.engines:
                    self.world.step(worker)
        self.world.settle()


WEIGHTS = {
    Chaos.start: 4,
    Chaos.obey: 6,
    Chaos.generate: 8,
    Chaos.deliver: 8,
    Chaos.tick: 2,
    Chaos.update: 1,
    Chaos.kill: 1,
    Chaos.join: 1,
    Chaos.deliver_twice: 1,
    Chaos.rejoin: 1,
    Chaos.leave_out: 1,
    Chaos.ask_again: 1,
    Chaos.ask_anew: 1,
    Chaos.pin: 1,
    Chaos.abort: 1,
    Chaos.caller_leaves_or_returns: 1,
    Chaos.pause_or_resume: 1,
}
MOVES = [move for move, weight in WEIGHTS.items() for _ in range(weight)]


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), mode=MODES, moves=st.lists(st.sampled_from(MOVES), min_size=60, max_size=200))
def test_any_sequence_of_events_keeps_every_promise(seed: int, mode: LoadMode, moves: list) -> None:
    chaos = Chaos(Random(seed), mode)
    for move in moves:
        move(chaos)
    chaos.finish()
    world = chaos.world
    assert world.table.n_open == 0
    for call in world.calls.values():
        if call.finish is FinishReason.FAILED:
            assert call.fault is not None and call.fault.code in ("version_unavailable", "no_worker")
        elif call.finish is FinishReason.ABORTED:
            assert call.is_aborted
        if mode is not LoadMode.CONTINUE and call.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert len(set(call.versions)) == 1 or call.brings_tokens
