"""A small world around the request table: strict scripted engines and callers that check every token they get.

Token i of a request is a function of the request's name and i, so a caller knows what it must end up with whatever
happened on the way. Commands and events travel through queues, one item at a time, as the test decides.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

from headrace.core.requests import FinishReason, RequestLimits, RequestTable, Sampling
from headrace.core.requests.actions import Action, EmitChunk, SendAbort, SendAdd, WantVersion
from headrace.core.requests.events import (
    CallerLeft,
    ChunkReceived,
    GenerationAborted,
    GenerationStarted,
    Ticked,
    TrajectoryEnded,
    VersionsResident,
    WeightsLoaded,
    WorkerJoined,
    WorkerLost,
    WorkerReleased,
)
from headrace.core.requests.record import Fault, LoadMode, Purpose, RequestState
from headrace.core.requests.swap import CloseWorker, LoadWeights, PauseWorker, ReportUpdate, ResumeWorker
from headrace.core.router import AffinityRouter, RouteQuery

STOP = 9_999


def token_at(request_id: str, index: int, length: int) -> int:
    return STOP if index == length - 1 else crc32(f"{request_id}/{index}".encode()) % 1000


def digest_of(policy_version: int) -> str:
    return f"digest-{policy_version}"


@dataclass
class ScriptedEngine:
    """Refuses what a real engine refuses, by raising: the table must never ask for it."""

    worker_id: str
    max_running: int
    serving_version: int | None
    is_paused: bool = False
    refuses: set[int] = field(default_factory=set)
    running: dict[str, tuple[SendAdd, int]] = field(default_factory=dict)
    inbox: deque[Action] = field(default_factory=deque)
    outbox: deque[ChunkReceived | WeightsLoaded] = field(default_factory=deque)

    def obey(self) -> None:
        match self.inbox.popleft():
            case SendAdd() as add:
                assert self.serving_version is not None, "ADD before any weights"
                assert add.request_id not in self.running, f"{add.request_id} added twice"
                assert len(self.running) < self.max_running, "more requests than lanes"
                assert len(add.kept) < add.sampling.max_new_tokens, "nothing left to generate"
                self.running[add.request_id] = (add, len(add.kept))
            case SendAbort(_, request_id):
                self.running.pop(request_id, None)
            case PauseWorker():
                self.is_paused = True
            case ResumeWorker():
                self.is_paused = False
            case LoadWeights(_, policy_version):
                assert self.is_paused, "a load without a pause"
                self._load(policy_version)
            case other:
                raise AssertionError(f"an engine cannot do {other}")

    def _load(self, policy_version: int) -> None:
        for add, n_tokens in self.running.values():
            self._say(add, n_tokens, (), FinishReason.ABORTED)
        self.running.clear()
        fault = None
        if policy_version in self.refuses:
            fault = Fault("load_refused", "infra", "scripted", retryable=True)
        else:
            self.serving_version = policy_version
        self.outbox.append(WeightsLoaded(self.worker_id, policy_version, digest_of(policy_version), 0.01, fault))

    def generate(self, request_id: str, n_tokens: int, lengths: dict[str, int]) -> None:
        if self.is_paused or request_id not in self.running:
            return
        add, start = self.running[request_id]
        length = lengths[request_id]
        end = min(start + n_tokens, length, add.sampling.max_new_tokens)
        ids = tuple(token_at(request_id, index, length) for index in range(start, end))
        finish = None
        if end == length:
            finish = FinishReason.STOP
        elif end == add.sampling.max_new_tokens:
            finish = FinishReason.LENGTH
        self._say(add, start, ids, finish)
        if finish:
            del self.running[request_id]
        else:
            self.running[request_id] = (add, end)

    def _say(self, add: SendAdd, offset: int, ids: tuple[int, ...], finish: FinishReason | None) -> None:
        version = self.serving_version or 0
        logprobs = tuple(-float(token) for token in ids)
        self.outbox.append(
            ChunkReceived(
                self.worker_id,
                add.request_id,
                add.dispatch_epoch,
                offset,
                ids,
                logprobs,
                version,
                digest_of(version),
                finish,
            )
        )


@dataclass
class Call:
    """What a caller knows of one request."""

    start: GenerationStarted
    length: int
    tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    fault: Fault | None = None
    is_aborted: bool = False
    is_given_up: bool = False
    brings_tokens: bool = False  # it came with tokens to a table that did not hold them: their versions are its own

    @property
    def expected(self) -> list[int]:
        request_id, limit = self.start.request_id, self.start.sampling.max_new_tokens
        return [token_at(request_id, index, self.length) for index in range(min(self.length, limit))]

    def receive(self, chunk: EmitChunk) -> None:
        assert self.finish is None, f"a chunk after the end: {chunk}"
        assert not self.is_given_up, "a chunk for a caller that left"
        asked = (self.start.stream_id, self.start.assignment_epoch)
        assert (chunk.stream_id, chunk.assignment_epoch) == asked, "a chunk for an earlier ask"
        if chunk.n_discarded:
            assert chunk.n_discarded == len(self.tokens), "discards something else than all"
            self.tokens, self.versions = [], []
        assert chunk.offset == len(self.tokens), f"{chunk} where {len(self.tokens)} tokens are held"
        assert len(chunk.token_ids) == len(chunk.logprobs)
        assert [-float(token) for token in chunk.token_ids] == list(chunk.logprobs)
        self.tokens += chunk.token_ids
        self.versions += [chunk.policy_version] * len(chunk.token_ids)
        assert self.tokens == self.expected[: len(self.tokens)]
        if chunk.token_ids:
            assert chunk.weight_digest == digest_of(chunk.policy_version)
            pinned = self.start.pinned_version
            assert pinned is None or pinned == chunk.policy_version, "a token of a forbidden version"
        self.finish, self.fault = chunk.finish_reason, chunk.fault
        if self.finish in (FinishReason.STOP, FinishReason.LENGTH):
            assert self.tokens == self.expected


class World:
    """The table, its workers and its callers. Every event is followed by `check()`."""

    def __init__(self, router: AffinityRouter | None = None, limits: RequestLimits | None = None) -> None:
        self.table = RequestTable(router, limits)
        self.now = 0.0
        self.engines: dict[str, ScriptedEngine] = {}
        self.calls: dict[str, Call] = {}
        self.lengths: dict[str, int] = {}
        self.live_dispatch: dict[str, str] = {}
        self.reports: list[ReportUpdate] = []
        self.adds: list[SendAdd] = []
        self.wanted: list[int] = []
        self.versions_of: dict[str, set[int]] = {}  # of every trajectory, over all its turns

    def feed(self, event: object) -> list[Action]:
        self._note_ended_dispatches(event)
        actions = self.table.handle(event, self.now)  # type: ignore[arg-type]
        for action in actions:
            self._perform(action)
        self.table.check()
        self._check_nobody_waits_beside_a_free_lane()
        idle = [worker.worker_id for worker in self.table.workers if worker.is_leaving and not worker.requests]
        assert not idle, f"left out and idle, but not closed: {idle}"
        return actions

    def _check_nobody_waits_beside_a_free_lane(self) -> None:
        """Whatever happened: what waits could not run anywhere now."""
        desk = self.table._desk
        for request in self.table.requests:
            if request.state is not RequestState.QUEUED or (desk.is_paused and not request.is_continuation):
                continue
            if request.home:
                home = self.table.worker(request.home)
                assert home is None or not home.is_open or home.n_running >= home.max_running, request.story()
                continue
            is_new = desk.is_bound and bool(request.prefix_key)
            query = RouteQuery(request.task, request.purpose is Purpose.EVAL, request.pinned_version, is_new=is_new)
            route = desk.router.route(query, self.table.workers, self.table.min_version)
            assert route.worker_id is None, (request.request_id, request.story(), route)

    def _note_ended_dispatches(self, event: object) -> None:
        match event:
            case WeightsLoaded(worker_id) | WorkerLost(worker_id) | WorkerJoined(worker_id):
                self._end_dispatches_on(worker_id)
            case ChunkReceived(_, request_id) if event.finish_reason is not None:
                request = next((r for r in self.table.requests if r.request_id == request_id), None)
                if request and request.dispatch_epoch == event.dispatch_epoch:
                    self.live_dispatch.pop(request_id, None)

    def _end_dispatches_on(self, worker_id: str) -> None:
        self.live_dispatch = {r: w for r, w in self.live_dispatch.items() if w != worker_id}

    def _perform(self, action: Action) -> None:
        match action:
            case EmitChunk():
                self.calls[action.request_id].receive(action)
                if action.token_ids:
                    key = self.calls[action.request_id].start.prefix_key
                    self.versions_of.setdefault(key, set()).add(action.policy_version)
            case WantVersion(policy_version):
                self.wanted.append(policy_version)
            case ReportUpdate():
                self.reports.append(action)
            case CloseWorker(worker_id):
                self.engines.pop(worker_id, None)
                self._end_dispatches_on(worker_id)
            case SendAdd(worker_id, request_id):
                assert request_id not in self.live_dispatch, f"{request_id} has two live dispatches"
                self.live_dispatch[request_id] = worker_id
                self.adds.append(action)
                self._check_version(action)
                self.engines[worker_id].inbox.append(action)
            case SendAbort(worker_id, request_id):
                self.live_dispatch.pop(request_id, None)
                self.engines[worker_id].inbox.append(action)
            case _:
                self.engines[action.worker_id].inbox.append(action)

    def _check_version(self, add: SendAdd) -> None:
        worker = self.table.worker(add.worker_id)
        assert worker is not None and worker.serving_version is not None
        pinned = self.calls[add.request_id].start.pinned_version
        if pinned is None:
            assert worker.serving_version >= self.table.min_version
        else:
            assert worker.serving_version == pinned

    # Moves

    def join(
        self,
        worker_id: str,
        serving_version: int | None = 0,
        max_running: int = 2,
        pool: str = "default",
        resident: tuple[int, ...] = (),
    ) -> None:
        self.engines[worker_id] = ScriptedEngine(worker_id, max_running, serving_version)
        digest = "" if serving_version is None else digest_of(serving_version)
        self.feed(WorkerJoined(worker_id, max_running, pool, serving_version, digest, resident))

    def kill(self, worker_id: str) -> None:
        del self.engines[worker_id]
        self.feed(WorkerLost(worker_id, "killed"))

    def start(
        self, request_id: str, length: int, *, stream_id: int = 1, max_new_tokens: int = 64, **fields: object
    ) -> Call:
        start = GenerationStarted(
            stream_id,
            request_id,
            1,
            (1, 2, 3),
            Sampling(max_new_tokens, stop_token_ids=(STOP,)),
            **{"prefix_key": request_id.rpartition("/")[0] or request_id, **fields},  # type: ignore[arg-type]
        )
        self.lengths[request_id] = length
        self.calls[request_id] = Call(start, length)
        self.feed(start)
        return self.calls[request_id]

    def make_resident(self, *policy_versions: int, workers: tuple[str, ...] = ()) -> None:
        """Workers hold these beside what they held."""
        for worker_id in workers or tuple(self.engines):
            worker = self.table.worker(worker_id)
            assert worker is not None
            self.feed(VersionsResident(worker_id, tuple(worker.resident | set(policy_versions))))

    def end(self, prefix_key: str) -> None:
        """The episode is over; what was left open of it counts as aborted."""
        for call in self.calls.values():
            if call.start.prefix_key == prefix_key and call.finish is None:
                call.is_aborted = True
        self.feed(TrajectoryEnded(prefix_key))

    def serving(self) -> dict[str, int | None]:
        return {worker.worker_id: worker.serving_version for worker in self.table.workers}

    def abort(self, request_id: str) -> None:
        call = self.calls[request_id]
        call.is_aborted = True
        self.feed(GenerationAborted(call.start.stream_id, request_id))

    def ask_again(self, request_id: str, n_kept: int) -> None:
        """The caller repeats itself on the stream that it has, and may have lost the last of its tokens."""
        call = self.calls[request_id]
        del call.tokens[n_kept:], call.versions[n_kept:]
        self._ask(call, kept=tuple(call.tokens))

    def ask_anew(self, request_id: str, n_kept: int, max_new_tokens: int) -> None:
        """The caller begins an epoch of the request, with a copy of its tokens and another limit."""
        call = self.calls[request_id]
        del call.tokens[n_kept:], call.versions[n_kept:]
        sampling = replace(call.start.sampling, max_new_tokens=max_new_tokens)
        epoch = call.start.assignment_epoch + 1
        self._ask(call, assignment_epoch=epoch, sampling=sampling, kept=tuple(call.tokens))

    def leave(self, stream_id: int) -> None:
        self.feed(CallerLeft(stream_id))

    def come_back(self, stream_id: int, new_stream_id: int) -> None:
        """The caller of a broken stream asks again for what it lacks, with the tokens that it holds."""
        for call in self.calls.values():
            if call.start.stream_id == stream_id and call.finish is None:
                begun = call.versions[0] if call.versions else call.start.start_version
                self._ask(call, stream_id=new_stream_id, kept=tuple(call.tokens), start_version=begun)

    def _ask(self, call: Call, **fields: object) -> None:
        call.start = replace(call.start, **fields)  # type: ignore[arg-type]
        held = next((r for r in self.table.requests if r.request_id == call.start.request_id), None)
        is_new = held is None or held.sampling != call.start.sampling
        call.brings_tokens |= is_new and bool(call.tokens)
        self.feed(call.start)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.feed(Ticked())

    def step(self, worker_id: str, n_tokens: int = 3) -> None:
        """One worker does all that it can do now, and everything it says is delivered."""
        engine = self.engines[worker_id]
        while engine.inbox:
            engine.obey()
        for request_id in list(engine.running):
            engine.generate(request_id, n_tokens, self.lengths)
        while engine.outbox and worker_id in self.engines:
            self.feed(engine.outbox.popleft())

    def settle(self, rounds: int = 400) -> None:
        """Run every worker until all calls ended; fails when they do not."""
        for _ in range(rounds):
            if all(call.finish is not None or call.is_given_up for call in self.calls.values()):
                return
            self.now += 0.01
            for worker_id in list(self.engines):
                if worker_id in self.engines:
                    self.step(worker_id)
        stuck = {r.request_id: (r.state, r.story()) for r in self.table.requests}
        raise AssertionError(f"requests that never end: {stuck}")


class EngineMoves:
    """Random but legal moves of workers; `world` and `rng` are the subclass's."""

    world: World
    rng: Random
    is_caller_away: bool

    def pick(self, upper: int) -> int:
        return self.rng.randrange(upper)

    def any_worker(self) -> str | None:
        names = sorted(self.world.engines)
        return names[self.pick(len(names))] if names else None

    def obey(self) -> None:
        worker = self.any_worker()
        if worker and self.world.engines[worker].inbox:
            self.world.engines[worker].obey()

    def generate(self) -> None:
        worker = self.any_worker()
        if worker and (running := sorted(self.world.engines[worker].running)):
            engine = self.world.engines[worker]
            engine.generate(running[self.pick(len(running))], 1 + self.pick(4), self.world.lengths)

    def deliver(self) -> None:
        worker = self.any_worker()
        if worker and self.world.engines[worker].outbox:
            self.world.feed(self.world.engines[worker].outbox.popleft())

    def deliver_twice(self) -> None:
        worker = self.any_worker()
        if worker and self.world.engines[worker].outbox:
            said = self.world.engines[worker].outbox.popleft()
            self.world.feed(said)
            self.world.feed(said)

    def kill(self) -> None:
        if worker := self.any_worker():
            self.world.kill(worker)

    def leave_out(self) -> None:
        if (worker := self.any_worker()) and len(self.world.engines) > 1:
            self.world.feed(WorkerReleased(worker))

    def tick(self) -> None:
        self.world.tick(self.pick(10) / 10)


__all__ = ["STOP", "Call", "EngineMoves", "LoadMode", "Purpose", "ScriptedEngine", "World", "digest_of", "token_at"]
