"""Where requests are: waiting, on a worker, parked or gone; and every movement between these places."""

from dataclasses import dataclass
from typing import Any

from headrace.core.profile import AffinityProfile
from headrace.core.requests.actions import Action, EmitChunk, SendAbort, SendAdd
from headrace.core.requests.bindings import Binding, Bindings
from headrace.core.requests.fleet import Fleet
from headrace.core.requests.limits import RequestLimits
from headrace.core.requests.queue import DispatchQueue, RequestClass, class_of
from headrace.core.requests.record import (
    ON_WORKER,
    Fault,
    FinishReason,
    LoadMode,
    LogicalRequest,
    Purpose,
    RequestState,
    Segment,
    TableError,
)
from headrace.core.requests.swap import SwapPhase, Worker
from headrace.core.router import AffinityRouter, Route, RouteQuery, Router

MAX_HOMES = 65_536
"""Trajectories whose last worker is remembered; the oldest are forgotten first."""


@dataclass(slots=True)
class TableCounts:
    """Cumulative. `regenerated_tokens` were sampled and will be sampled again; `foreign_chunks` broke the protocol.

    Of repack: `repacks` are the looks that moved something, `moved_requests` turns that were being generated;
    `repack_pause_s` sums the time from their abort to their dispatch, `first_token_after_s` to their first token.
    """

    started: int = 0
    ended: int = 0
    routed: int = 0
    fallback_routed: int = 0
    continued: int = 0
    discarded_tokens: int = 0
    fenced_chunks: int = 0
    foreign_chunks: int = 0
    regenerated_tokens: int = 0
    accepted_tokens: int = 0
    repack_looks: int = 0
    repacks: int = 0
    released_workers: int = 0
    moved_trajectories: int = 0
    moved_requests: int = 0
    moved_tokens: int = 0
    moved_kv_bytes: int = 0
    repeated_prefill_tokens: int = 0
    repack_pause_s: float = 0.0
    first_token_after_s: float = 0.0


class Dispatcher:
    """Requests, queue and workers as one consistent whole; the table says what is to happen, this makes it so."""

    def __init__(self, router: Router, limits: RequestLimits) -> None:
        self.router = router
        self.limits = limits
        self.counts = TableCounts()
        self.is_paused = False
        self.on_load = LoadMode.CONTINUE
        self.is_bound = False  # trajectories stay with one version and worker (`load_at: drain`)
        self.fleet = Fleet()
        self.bindings = Bindings()
        self.profile = AffinityProfile()
        self.static = AffinityRouter()
        self.open_by_key: dict[str, LogicalRequest] = {}
        self.requests: dict[str, LogicalRequest] = {}
        self.orphans: dict[str, LogicalRequest] = {}
        self._queue = DispatchQueue()
        self._homes: dict[str, tuple[str, int | None]] = {}
        self._unserved_since: dict[RequestClass, float] = {}
        self._epoch = 0

    def lose(self, worker_id: str, now: float) -> list[Action]:
        """Forget a worker; what ran on it goes on elsewhere, up to `max_worker_losses` times."""
        actions: list[Action] = []
        worker = self.fleet.workers.get(worker_id)
        requests = self.fleet.remove(worker_id, now)
        for binding in list(worker.bound.values()) if worker else []:
            self.bindings.lost(binding, self.fleet.workers.values(), now)
            self.rehome(binding)
        for request in requests:
            request.n_worker_losses += 1
            if request.n_worker_losses > self.limits.max_worker_losses:
                detail = f"{request.n_worker_losses} workers were lost with it"
                actions += self.end(request, now, FinishReason.FAILED, Fault("worker_lost", "infra", detail))
            else:
                self.enqueue(request, f"{worker_id} was lost", now)
        return actions + self.dispatch(now)

    def dispatch(self, now: float) -> list[Action]:
        """Send what can be sent, in the queue's order."""
        actions: list[Action] = []

        def take(request: LogicalRequest) -> bool:
            if self.is_paused and not request.is_continuation:
                return False
            if (finish := request.finish_of_held()) is not None:
                actions.extend(self.end(request, now, finish))
                return True
            route = self._route(request)
            if route.worker_id is None:
                return False
            self.counts.fallback_routed += route.is_fallback
            actions.append(self.send_to(request, self.fleet.workers[route.worker_id], now))
            return True

        self._queue.drain(take)
        return actions

    def _route(self, request: LogicalRequest) -> Route:
        binding = self.binding_of(request)
        if binding is None:
            return self.router.route(self._query(request), self.fleet.workers.values(), self.fleet.min_version)
        worker = self.fleet.workers.get(binding.worker_id or "")
        has_room = worker is not None and worker.is_open and worker.n_running < worker.max_running
        return Route(binding.worker_id if has_room else None)

    def binding_of(self, request: LogicalRequest) -> Binding | None:
        return self.bindings.by_key.get(request.prefix_key) if self.is_bound else None

    def worker_of(self, binding: Binding | None) -> Worker | None:
        return self.fleet.workers.get(binding.worker_id) if binding and binding.worker_id else None

    def rehome(self, binding: Binding) -> None:
        """The trajectory's place changed: its open turn follows, in the queue too."""
        request = self.open_by_key.get(binding.key)
        if request is None:
            return
        is_forgotten = self.bindings.by_key.get(binding.key) is not binding
        request.home = "" if is_forgotten else binding.worker_id or "nowhere"
        request.pinned_version = None if is_forgotten else binding.policy_version
        if request.state is RequestState.QUEUED:
            self._queue.add(request)

    def _query(self, request: LogicalRequest) -> RouteQuery:
        worker_id, policy_version = self._homes.get(request.prefix_key, ("", None))
        worker = self.fleet.workers.get(worker_id)
        # A load drops the cache: a worker under other weights holds no prefix.
        home = worker_id if worker is not None and worker.serving_version == policy_version else None
        is_new = self.is_bound and bool(request.prefix_key)
        return RouteQuery(request.task, request.purpose is Purpose.EVAL, request.pinned_version, home, is_new)

    def send_to(self, request: LogicalRequest, worker: Worker, now: float) -> SendAdd:
        """Begin a dispatch. Unless the policy continues across versions, tokens of another version are thrown away."""
        if self.on_load is not LoadMode.CONTINUE and any(
            segment.policy_version != worker.serving_version for segment in request.segments
        ):
            self.counts.discarded_tokens += request.discard()
        self._epoch += 1
        self.counts.routed += 1
        request.move(RequestState.RUNNING, f"dispatch {self._epoch} to {worker.worker_id}")
        request.worker_id, request.dispatch_epoch = worker.worker_id, self._epoch
        request.n_dispatches += 1
        request.dispatched_at, request.n_at_dispatch = now, len(request.tokens)
        worker.take(request)
        self.profile.routed(request.task, worker.pool)
        if self.is_bound and request.prefix_key:
            self._bind(request, worker, now)
        elif request.prefix_key:
            self._homes.pop(request.prefix_key, None)
            self._homes[request.prefix_key] = worker.worker_id, worker.serving_version
            if len(self._homes) > MAX_HOMES:
                del self._homes[next(iter(self._homes))]
        return SendAdd(
            worker.worker_id,
            request.request_id,
            self._epoch,
            request.prompt,
            tuple(request.tokens),
            request.sampling,
            request.prefix_key,
        )

    def forget_home(self, prefix_key: str) -> None:
        self._homes.pop(prefix_key, None)

    def _bind(self, request: LogicalRequest, worker: Worker, now: float) -> None:
        """The turn's trajectory lives here from now on, if it did not before."""
        binding = self.binding_of(request)
        assert worker.serving_version is not None
        if binding is None:
            version = worker.serving_version
            binding = Binding(request.prefix_key, version, request.purpose, request.stream_id)
            self.bindings.bind(binding, worker)
            request.home, request.pinned_version = worker.worker_id, version
            worker.n_begun += 1
        n_context = len(request.prompt) + len(request.tokens)
        self.counts.repeated_prefill_tokens += min(binding.repeat_tokens, n_context)
        binding.repeat_tokens = 0
        self.bindings.grow(binding, n_context, worker)
        if request.moved_at is not None:
            self.counts.repack_pause_s += now - request.moved_at

    def leave_worker(self, request: LogicalRequest, now: float) -> list[Action]:
        """End the current dispatch, if there is one; the caller of this moves the request on."""
        worker = self.fleet.workers.get(request.worker_id) if request.worker_id else None
        if worker is None:
            return []
        return [SendAbort(worker.worker_id, request.request_id), *worker.release(request.request_id, now)]

    def admit(self, request: LogicalRequest) -> None:
        """Queue a new request."""
        self._queue.add(request)

    def tokens_came(self, request: LogicalRequest, n_tokens: int, policy_version: int, now: float) -> None:
        """What accepted tokens mean to the request's trajectory."""
        binding = self.binding_of(request)
        if binding is not None:
            binding.has_tokens = True
            binding.token_versions.add(policy_version)
            self.bindings.grow(binding, binding.kv_tokens + n_tokens, self.worker_of(binding))
        if request.moved_at is not None:
            self.counts.first_token_after_s += now - request.moved_at
            request.moved_at = None

    def enqueue(self, request: LogicalRequest, why: str, now: float) -> None:
        """Back to the queue; an orphan is parked instead."""
        if request.orphaned_at is not None:
            request.move(RequestState.PARKED, why)
            return
        request.move(RequestState.QUEUED, why)
        request.queued_at = now
        self._queue.add(request)

    def park(self, request: LogicalRequest, why: str, now: float) -> list[Action]:
        actions = self.leave_worker(request, now)
        request.move(RequestState.PARKED, why)
        return actions

    def end(
        self,
        request: LogicalRequest,
        now: float,
        finish: FinishReason | None = None,
        fault: Fault | None = None,
        *,
        last: tuple[int, Any, Any, Segment] | None = None,
    ) -> list[Action]:
        """The request is over; its caller is told when `finish` is given. `last` are tokens that go out with it."""
        ended_by_engine = finish in (FinishReason.STOP, FinishReason.LENGTH)
        if ended_by_engine and request.worker_id is not None:
            self._observe(request, self.fleet.workers[request.worker_id].pool, now)
        actions = self.leave_worker(request, now)
        if ended_by_engine:
            actions = [action for action in actions if not isinstance(action, SendAbort)]
        request.move(RequestState.ENDED, fault.code if fault else finish or "replaced or given up")
        del self.requests[request.request_id]
        if self.open_by_key.get(request.prefix_key) is request:
            del self.open_by_key[request.prefix_key]
        self.orphans.pop(request.request_id, None)
        self.counts.ended += 1
        if finish is not None and request.stream_id is not None:
            offset, ids, logprobs, source = last or (len(request.tokens), (), (), Segment(0, "", "", 0))
            actions.append(emission(request, offset, ids, logprobs, source, finish=finish, fault=fault))
        return actions

    def _observe(self, request: LogicalRequest, pool: str, now: float) -> None:
        static = self.static.pool_of(request.task, (worker.pool for worker in self.fleet.workers.values()))
        n_tokens = len(request.tokens) - request.n_at_dispatch
        self.profile.observe(request.task, pool, n_tokens, now - request.dispatched_at, static_pool=static)

    def fail_unserved(self, now: float) -> list[Action]:
        """Fail what waits for a worker that does not exist, past its deadline."""
        waiting: dict[RequestClass, list[LogicalRequest]] = {}
        for request in self.requests.values():
            if request.state is RequestState.QUEUED and self.binding_of(request) is None:
                waiting.setdefault(class_of(request), []).append(request)
        since = {
            key: self._unserved_since.get(key, now)
            for key, requests in waiting.items()
            if not self._route(requests[0]).is_available
        }
        self._unserved_since = since
        return [
            action
            for key, began in since.items()
            for request in waiting[key]
            for action in self._fail_if_late(request, now - max(began, request.queued_at), now)
        ]

    def _fail_if_late(self, request: LogicalRequest, waited_s: float, now: float) -> list[Action]:
        if request.pinned_version is None:
            code, limit_s = "no_worker", self.limits.worker_wait_s
            detail = f"no live worker could take it for {limit_s} s"
        else:
            code, limit_s = "version_unavailable", self.limits.version_wait_s
            detail = f"no live worker served version {request.pinned_version} for {limit_s} s"
        if waited_s < limit_s:
            return []
        return self.end(request, now, FinishReason.FAILED, Fault(code, "infra", detail, retryable=True))

    def check_place(self, request: LogicalRequest) -> None:
        worker = self.fleet.workers.get(request.worker_id) if request.worker_id else None
        is_loading = worker is not None and worker.phase is SwapPhase.LOADING
        problems = {
            "on a worker that does not know it": request.state in ON_WORKER
            and (worker is None or worker.requests.get(request.request_id) is not request),
            "running on a worker that loads": request.state is RequestState.RUNNING and is_loading,
            "suspended without a load": request.state is RequestState.SUSPENDED and not is_loading,
            "queued in no queue": request.state is RequestState.QUEUED and not self._queue.holds(request),
            "orphan out of place": (request.orphaned_at is not None) != (request.request_id in self.orphans),
            "queued without a caller": request.state is RequestState.QUEUED and request.orphaned_at is not None,
            "parked with a caller": request.state is RequestState.PARKED and request.orphaned_at is None,
            "tokens of another version than its trajectory's": (binding := self.binding_of(request)) is not None
            and any(segment.policy_version != binding.policy_version for segment in request.segments),
            "not where its trajectory is": binding is not None
            and request.state is RequestState.RUNNING
            and self.open_by_key.get(request.prefix_key) is request
            and request.worker_id != binding.worker_id,
            "longer than asked": len(request.tokens) > request.sampling.max_new_tokens,
            "running under a forbidden version": request.state is RequestState.RUNNING
            and worker is not None
            and request.pinned_version is not None
            and worker.serving_version != request.pinned_version,
        }
        if broken := [problem for problem, is_true in problems.items() if is_true]:
            raise TableError(f"request {request.request_id}: {', '.join(broken)}, after {request.story()}")


def emission(
    request: LogicalRequest,
    offset: int,
    ids: Any,
    logprobs: Any,
    source: Segment,
    *,
    finish: FinishReason | None = None,
    fault: Fault | None = None,
) -> EmitChunk:
    """A chunk for the request's caller; takes along what the caller has to drop first."""
    assert request.stream_id is not None
    n_discarded, request.n_discarded_unsaid = request.n_discarded_unsaid, 0
    return EmitChunk(
        request.stream_id,
        request.request_id,
        request.assignment_epoch,
        offset,
        ids,
        logprobs,
        source.policy_version,
        source.worker_id,
        source.weight_digest,
        finish,
        fault,
        n_discarded,
    )
