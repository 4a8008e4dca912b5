"""The proxy's request table: a pure machine from events to actions.

Invariants, raised by `check()` and proved by the property tests:

1. A chunk counts iff its dispatch epoch is the request's current one and its offset equals the tokens held.
2. A request has at most one current dispatch, on a live worker that knows of it, under a version it is allowed.
3. Every accepted token is kept once, in order, with logprob, version, worker and digest.
4. A started request ends exactly once: by stop, length, abort or a named fault.
5. Where trajectories are bound, all tokens of one are of one version, over all its turns.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from headrace.core.profile import AffinityProfile
from headrace.core.requests.actions import Action, EmitChunk
from headrace.core.requests.bound import BoundRollout
from headrace.core.requests.dispatch import Dispatcher, TableCounts, emission
from headrace.core.requests.events import (
    CallerLeft,
    ChunkReceived,
    Event,
    GenerationAborted,
    GenerationStarted,
    RepackDue,
    RolloutClosed,
    RolloutPaused,
    RolloutResumed,
    Ticked,
    TrajectoriesNamed,
    TrajectoryEnded,
    VersionPinned,
    VersionsResident,
    WeightsLoaded,
    WeightUpdateAsked,
    WorkerJoined,
    WorkerLost,
    WorkerReleased,
)
from headrace.core.requests.limits import RequestLimits
from headrace.core.requests.record import (
    Fault,
    FinishReason,
    LoadMode,
    LogicalRequest,
    RequestState,
    Segment,
    TableError,
)
from headrace.core.requests.swap import CloseWorker, SwapPhase, Worker
from headrace.core.router import AffinityRouter, Router

_DRAIN_NOTHING = (ChunkReceived, GenerationStarted, CallerLeft)
"""Events, the frequent ones, after which no worker is drained that was not before."""


class RequestTable:
    """`handle` an event at a time; perform the actions in order. `now` is any monotonic clock in seconds."""

    def __init__(self, router: Router | None = None, limits: RequestLimits | None = None) -> None:
        self._desk = Dispatcher(router or AffinityRouter(), limits or RequestLimits())
        self._bound = BoundRollout(self._desk)
        self._arrivals = 0
        self._handlers: dict[type[Any], Callable[[Any, float], list[Action]]] = {
            ChunkReceived: self._on_chunk,
            GenerationStarted: self._on_started,
            GenerationAborted: self._on_aborted,
            CallerLeft: self._on_caller_left,
            TrajectoryEnded: self._on_trajectory_ended,
            TrajectoriesNamed: self._on_trajectories_named,
            WorkerJoined: self._on_joined,
            WorkerLost: self._on_lost,
            WorkerReleased: self._on_released,
            WeightUpdateAsked: self._on_update,
            WeightsLoaded: self._on_loaded,
            VersionPinned: self._on_pinned,
            VersionsResident: self._on_resident,
            RepackDue: self._on_repack,
            RolloutPaused: self._on_paused,
            RolloutResumed: self._on_resumed,
            RolloutClosed: self._on_closed,
            Ticked: self._on_ticked,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """What follows from `event`. Raises TableError when an invariant would break, ValueError on a bad event."""
        actions = self._handlers[type(event)](event, now)
        for action in tuple(actions):
            if isinstance(action, CloseWorker):
                actions += self._desk.lose(action.worker_id, now)
        if not isinstance(event, _DRAIN_NOTHING):
            actions += self._bound.advance(now)
        return actions

    def set_policy(self, router: Router, limits: RequestLimits, on_load: LoadMode) -> None:
        """Route, wait and continue differently from now on."""
        self._desk.router, self._desk.limits, self._desk.on_load = router, limits, on_load

    def bind_trajectories(self, is_bound: bool, local_batch: int | None = None) -> None:
        """Whether each trajectory stays with one version and worker, and how many a worker begins under a version."""
        self._bound.begin(is_bound, local_batch)

    def set_static_tags(self, tags: AffinityRouter) -> None:
        """What routing by tags alone would do: the profile's regret compares with it."""
        self._desk.static = tags

    @property
    def profile(self) -> AffinityProfile:
        return self._desk.profile

    @property
    def n_bound(self) -> int:
        return len(self._desk.bindings.by_key)

    @property
    def n_homeless(self) -> int:
        return len(self._desk.bindings.homeless)

    @property
    def counts(self) -> TableCounts:
        return self._desk.counts

    @property
    def is_paused(self) -> bool:
        return self._desk.is_paused

    @property
    def workers(self) -> Iterable[Worker]:
        return self._desk.fleet.workers.values()

    @property
    def requests(self) -> Iterable[LogicalRequest]:
        return self._desk.requests.values()

    @property
    def min_version(self) -> int:
        return self._desk.fleet.min_version

    @property
    def n_open(self) -> int:
        return len(self._desk.requests)

    @property
    def n_queued(self) -> int:
        return sum(request.state is RequestState.QUEUED for request in self._desk.requests.values())

    def worker(self, worker_id: str) -> Worker | None:
        return self._desk.fleet.workers.get(worker_id)

    def check(self) -> None:
        """Raises TableError when an invariant is broken; linear in requests and workers."""
        self._desk.fleet.check()
        self._desk.bindings.check(self._desk.fleet.workers)
        for request in self._desk.requests.values():
            request.check()
            self._desk.check_place(request)
        for worker in self.workers:
            for request_id, request in worker.requests.items():
                if self._desk.requests.get(request_id) is not request or request.worker_id != worker.worker_id:
                    raise TableError(f"{worker.worker_id} holds {request_id}, which went: {request.story()}")
        if self._desk.counts.started != self._desk.counts.ended + len(self._desk.requests):
            raise TableError(f"requests are not conserved: {self._desk.counts}, {len(self._desk.requests)} open")

    # Callers

    def _on_started(self, event: GenerationStarted, now: float) -> list[Action]:
        held = self._desk.requests.get(event.request_id)
        actions: list[Action] = []
        if held is not None:
            if event.assignment_epoch < held.assignment_epoch:
                return [_refusal(event, "stale_epoch", f"a newer epoch, {held.assignment_epoch}, holds this request")]
            if _continues(held, event):
                return self._reattach(held, event, now)
            # The caller's copy wins: what we hold beyond it is sampled again.
            self._desk.counts.regenerated_tokens += max(0, len(held.tokens) - len(event.kept))
            actions += self._desk.end(held, now)
        return [*actions, *self._begin(event, now), *self._desk.dispatch(now)]

    def _begin(self, event: GenerationStarted, now: float) -> list[Action]:
        """Queue the request, or answer it at once."""
        if not event.prompt:
            return [_refusal(event, "empty_prompt", "prompt_token_ids holds no token")]
        if event.sampling.max_new_tokens < 1:
            return [_refusal(event, "bad_max_new_tokens", "sampling.max_new_tokens must be at least 1")]
        request = self._admit(event, now)
        if (fault := self._bound.started(request, event, now)) is not None:
            return self._desk.end(request, now, FinishReason.FAILED, fault)
        if (finish := request.finish_of_held()) is not None:
            return self._desk.end(request, now, finish)
        self._desk.admit(request)
        return []

    def _admit(self, event: GenerationStarted, now: float) -> LogicalRequest:
        self._arrivals += 1
        self._desk.counts.started += 1
        request = LogicalRequest(
            request_id=event.request_id,
            assignment_epoch=event.assignment_epoch,
            stream_id=event.stream_id,
            prompt=event.prompt,
            sampling=event.sampling,
            task=event.task,
            purpose=event.purpose,
            turn=event.turn,
            prefix_key=event.prefix_key,
            pinned_version=event.pinned_version,
            arrival=self._arrivals,
            queued_at=now,
            n_caller_kept=len(event.kept),
            tokens=list(event.kept),
        )
        self._desk.requests[event.request_id] = request
        return request

    def _reattach(self, request: LogicalRequest, event: GenerationStarted, now: float) -> list[Action]:
        """The caller came back for a request that we still hold: tell what it lacks, go on."""
        request.stream_id, request.assignment_epoch = event.stream_id, event.assignment_epoch
        request.orphaned_at = None
        self._desk.orphans.pop(request.request_id, None)
        self._bound.reattached(request)
        offset = len(event.kept)
        if request.n_discarded_unsaid:
            offset, request.n_discarded_unsaid = 0, len(event.kept)
        actions: list[Action] = []
        for start, piece in request.pieces_from(offset):
            ids = request.tokens[start : start + piece.n_tokens]
            first = start - request.n_caller_kept
            logprobs = request.logprobs[first : first + piece.n_tokens]
            actions.append(emission(request, start, ids, logprobs, piece))
        if request.state is RequestState.PARKED:
            if (finish := request.finish_of_held()) is not None:
                return actions + self._desk.end(request, now, finish)
            self._desk.enqueue(request, "its caller came back", now)
            actions += self._desk.dispatch(now)
        return actions

    def _on_aborted(self, event: GenerationAborted, now: float) -> list[Action]:
        request = self._desk.requests.get(event.request_id)
        if request is None or request.stream_id != event.stream_id:
            return []
        return self._desk.end(request, now, FinishReason.ABORTED) + self._desk.dispatch(now)

    def _on_caller_left(self, event: CallerLeft, now: float) -> list[Action]:
        for request in self._desk.requests.values():
            if request.stream_id == event.stream_id:
                request.stream_id, request.orphaned_at = None, now
                self._desk.orphans[request.request_id] = request
                if request.state is RequestState.QUEUED:
                    request.move(RequestState.PARKED, "its caller left while it waited")
        self._bound.caller_left(event.stream_id, now)
        return []

    def _on_trajectory_ended(self, event: TrajectoryEnded, now: float) -> list[Action]:
        return self._bound.ended(event.prefix_key, now)

    def _on_trajectories_named(self, event: TrajectoriesNamed, now: float) -> list[Action]:
        self._bound.named(event, now)
        return self._desk.dispatch(now)

    # Tokens

    def _on_chunk(self, event: ChunkReceived, now: float) -> list[Action]:
        request = self._desk.requests.get(event.request_id)
        if request is None or request.dispatch_epoch != event.dispatch_epoch or request.worker_id != event.worker_id:
            # A dispatch that was ended says ABORTED, without tokens, as its last word: nothing is lost by that.
            self._desk.counts.fenced_chunks += bool(event.token_ids)
            if request is not None:
                self._desk.counts.regenerated_tokens += len(event.token_ids)
            return []
        worker = self._desk.fleet.workers[event.worker_id]
        if (wrong := _protocol_error(event, request, worker)) is not None:
            return self._refuse_chunk(event, request, wrong, now)
        actions: list[Action] = []
        n_tokens = len(event.token_ids)
        finish = event.finish_reason
        if n_tokens:
            offset = len(request.tokens)
            source = Segment(event.policy_version, event.worker_id, event.weight_digest, n_tokens)
            request.append(event.token_ids, event.logprobs, source)
            self._desk.counts.accepted_tokens += n_tokens
            self._desk.tokens_came(request, n_tokens, event.policy_version, now)
            if finish is FinishReason.STOP or finish is FinishReason.LENGTH:
                return self._finish(request, finish, now, (offset, event.token_ids, event.logprobs, source))
            if request.stream_id is not None:
                actions.append(emission(request, offset, event.token_ids, event.logprobs, source))
            if worker.awaited:
                actions += worker.token_came(request.request_id, now)
        if finish is None:
            return actions
        return actions + self._on_engine_end(request, finish, event.fault, now)

    def _on_engine_end(
        self, request: LogicalRequest, finish: FinishReason, fault: Fault | None, now: float
    ) -> list[Action]:
        """The engine ended the dispatch; whether the request ends is another matter."""
        if finish is FinishReason.FAILED and not (fault and fault.retryable):
            fault = fault or Fault("engine_failed", "infra", "the engine failed without saying why")
            return self._desk.end(request, now, finish, fault) + self._desk.dispatch(now)
        if finish is FinishReason.ABORTED and request.state is RequestState.SUSPENDED:
            return []  # it ended for the load, which continues it
        if finish is FinishReason.STOP or finish is FinishReason.LENGTH:
            return self._finish(request, finish, now, None)
        return self._give_back(request, fault.detail if fault else "the engine gave it back", now)

    def _finish(
        self,
        request: LogicalRequest,
        finish: FinishReason,
        now: float,
        last: tuple[int, Any, Any, Segment] | None,
    ) -> list[Action]:
        if request.orphaned_at is not None:
            return self._desk.park(request, "finished while its caller was away", now) + self._desk.dispatch(now)
        return self._desk.end(request, now, finish, last=last) + self._desk.dispatch(now)

    def _refuse_chunk(self, event: ChunkReceived, request: LogicalRequest, wrong: str, now: float) -> list[Action]:
        """Drop a chunk of the current dispatch. A mere repetition harms nothing; otherwise the dispatch is void."""
        self._desk.counts.foreign_chunks += 1
        self._desk.counts.fenced_chunks += 1
        self._desk.counts.regenerated_tokens += len(event.token_ids)
        if event.offset + len(event.token_ids) <= len(request.tokens) and event.finish_reason is None:
            return []
        return self._give_back(request, wrong, now)

    def _give_back(self, request: LogicalRequest, why: str, now: float) -> list[Action]:
        request.n_refusals += 1
        if request.n_refusals > self._desk.limits.max_refusals:
            fault = Fault("engine_refused", "infra", f"{request.n_refusals} times, last: {why}", retryable=True)
            return self._desk.end(request, now, FinishReason.FAILED, fault) + self._desk.dispatch(now)
        actions = self._desk.leave_worker(request, now)
        self._desk.enqueue(request, why, now)
        return actions + self._desk.dispatch(now)

    # Workers

    def _on_joined(self, event: WorkerJoined, now: float) -> list[Action]:
        actions = self._desk.lose(event.worker_id, now)
        self._desk.fleet.join(event, now)
        self._bound.opened(self._desk.fleet.workers[event.worker_id])
        early = self._desk.fleet.asked_early.pop(event.worker_id, None)
        if early is not None:
            actions += self._on_update(replace(early, worker_ids=(event.worker_id,)), now)
        return actions + self._desk.dispatch(now)

    def _on_lost(self, event: WorkerLost, now: float) -> list[Action]:
        return self._desk.lose(event.worker_id, now)

    def _on_released(self, event: WorkerReleased, now: float) -> list[Action]:
        return [*self._desk.fleet.release(event.worker_id, now), *self._desk.dispatch(now)]

    def _on_update(self, event: WeightUpdateAsked, now: float) -> list[Action]:
        if self._desk.is_bound:
            return self._bound.asked(event, now)
        self._desk.on_load = event.mode
        return [*self._desk.fleet.update(event, now), *self._desk.dispatch(now)]

    def _on_pinned(self, event: VersionPinned, now: float) -> list[Action]:
        return [*self._desk.fleet.hold(event, now), *self._desk.dispatch(now)]

    def _on_resident(self, event: VersionsResident, now: float) -> list[Action]:
        worker = self._desk.fleet.workers.get(event.worker_id)
        if worker is not None:
            worker.resident = set(event.policy_versions)
        return []

    def _on_repack(self, event: RepackDue, now: float) -> list[Action]:
        return self._bound.repack(event, now)

    def _on_loaded(self, event: WeightsLoaded, now: float) -> list[Action]:
        worker = self._desk.fleet.workers.get(event.worker_id)
        if worker is None:
            return []
        answer = worker.answered(
            event.policy_version, event.weight_digest, load_s=event.load_s, fault=event.fault, now=now
        )
        if not answer or worker.phase is SwapPhase.LOADING:
            return [*answer]
        suspended = list(worker.requests.values())
        if event.fault is not None:
            left = [action for request in suspended for action in self._desk.leave_worker(request, now)]
            for request in suspended:
                self._desk.enqueue(request, f"{worker.worker_id} could not load {event.policy_version}", now)
            # The engine is rid of them before it goes on; one that was left out closes after all that it is told.
            actions = sorted([*left, *answer], key=lambda action: isinstance(action, CloseWorker))
            return [*actions, *self._desk.dispatch(now)]
        actions = [*answer, *self._continue_on(worker, suspended, now)]
        self._desk.fleet.refill_hold(now)
        self._bound.opened(worker)
        return actions + self._desk.dispatch(now)

    def _continue_on(self, worker: Worker, suspended: list[LogicalRequest], now: float) -> list[Action]:
        actions: list[Action] = []
        continued: list[LogicalRequest] = []
        for request in suspended:
            if (finish := request.finish_of_held()) is not None:
                actions += self._finish(request, finish, now, None)
            elif request.orphaned_at is not None or not self._desk.fleet.may_stay(request, worker):
                actions += worker.release(request.request_id, now)
                self._desk.enqueue(request, f"may not go on under {worker.serving_version}", now)
            else:
                actions.append(self._desk.send_to(request, worker, now))
                self._desk.counts.continued += 1
                continued.append(request)
        return [*actions, *worker.await_tokens(continued, now)]

    # Rollout

    def _on_paused(self, _event: RolloutPaused, _now: float) -> list[Action]:
        self._desk.is_paused = True
        return []

    def _on_resumed(self, _event: RolloutResumed, now: float) -> list[Action]:
        self._desk.is_paused = False
        return self._desk.dispatch(now)

    def _on_closed(self, event: RolloutClosed, now: float) -> list[Action]:
        fault = Fault("rollout_closed", "infra", event.detail)
        return [
            action
            for request in list(self._desk.requests.values())
            for action in self._desk.end(request, now, FinishReason.FAILED, fault)
        ]

    def _on_ticked(self, _event: Ticked, now: float) -> list[Action]:
        actions: list[Action] = [*self._desk.fleet.overdue(self._desk.limits, now)]
        for request in list(self._desk.orphans.values()):
            age_s = 0.0 if request.orphaned_at is None else now - request.orphaned_at
            if age_s >= self._desk.limits.orphan_grace_s:
                actions += self._desk.end(request, now)
            elif age_s >= self._desk.limits.orphan_abort_s and request.state is not RequestState.PARKED:
                actions += self._desk.park(request, "its caller is gone", now)
        actions += self._bound.ticked(now)
        actions += self._desk.fail_unserved(now)
        return actions + self._desk.dispatch(now)


def _continues(held: LogicalRequest, event: GenerationStarted) -> bool:
    """Whether the caller's copy is a prefix of ours, so that nothing has to be sampled again."""
    if held.sampling != event.sampling or list(held.prompt) != list(event.prompt):
        return False
    if held.n_discarded_unsaid:
        return True
    n_kept = len(event.kept)
    return held.n_caller_kept <= n_kept <= len(held.tokens) and held.tokens[:n_kept] == list(event.kept)


def _protocol_error(event: ChunkReceived, request: LogicalRequest, worker: Worker) -> str | None:
    n_tokens, n_held = len(event.token_ids), len(request.tokens)
    if event.offset != n_held:
        return f"a chunk at offset {event.offset} where {n_held} tokens are held"
    if not n_tokens:
        return None
    if n_tokens != len(event.logprobs):
        return f"{n_tokens} tokens with {len(event.logprobs)} logprobs"
    if n_held + n_tokens > request.sampling.max_new_tokens:
        return f"{n_held + n_tokens} tokens where at most {request.sampling.max_new_tokens} were asked for"
    if event.policy_version != worker.serving_version or event.weight_digest != worker.weight_digest:
        return (
            f"tokens of version {event.policy_version} ({event.weight_digest[:12]}) from a worker that serves "
            f"{worker.serving_version} ({worker.weight_digest[:12]})"
        )
    return None


def _refusal(event: GenerationStarted, code: str, detail: str) -> EmitChunk:
    return EmitChunk(
        event.stream_id,
        event.request_id,
        event.assignment_epoch,
        len(event.kept),
        finish_reason=FinishReason.FAILED,
        fault=Fault(code, "infra", detail),
    )
