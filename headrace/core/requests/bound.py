"""What events mean where trajectories are bound (`load_at: drain`): begin, end, wait for a version, move, drain."""

from collections.abc import Mapping

from headrace.core.repack import RolloutLoad, plan_repack
from headrace.core.requests.actions import Action
from headrace.core.requests.bindings import Binding, may_hold
from headrace.core.requests.dispatch import Dispatcher
from headrace.core.requests.draining import Drains
from headrace.core.requests.events import GenerationStarted, RepackDue, TrajectoriesNamed, WeightUpdateAsked
from headrace.core.requests.record import Fault, FinishReason, LogicalRequest, Purpose, RequestState
from headrace.core.requests.swap import SwapPhase, Worker

UNBOUNDED_TOKENS = 1 << 62


class BoundRollout:
    """Works on the dispatcher's requests, workers and bindings; does nothing while trajectories are not bound."""

    def __init__(self, desk: Dispatcher) -> None:
        self._desk = desk
        self._drains = Drains()

    def begin(self, is_bound: bool, local_batch: int | None) -> None:
        """The rules of a rollout; they do not change while it lasts, a new runner only says them again."""
        self._desk.is_bound = is_bound
        self._desk.fleet.local_batch = local_batch
        for worker in self._desk.fleet.workers.values():
            worker.local_batch = local_batch

    def advance(self, now: float) -> list[Action]:
        """Drained workers load, or are open again; what waited for that starts."""
        if not self._desk.is_bound:
            return []
        actions = self._drains.advance(self._desk.fleet, self._desk.bindings, now)
        return actions + self._desk.dispatch(now)

    def started(self, request: LogicalRequest, event: GenerationStarted, now: float) -> Fault | None:
        """A turn of a trajectory: it follows its binding, which a version that its caller names begins.

        Returns why the turn cannot be served, if its version was waited for in vain.
        """
        if not self._desk.is_bound or not request.prefix_key:
            return None
        self._desk.open_by_key[request.prefix_key] = request
        binding = self._desk.bindings.by_key.get(request.prefix_key)
        version = event.pinned_version if event.pinned_version is not None else event.start_version
        if binding is None and version is not None:
            binding = Binding(request.prefix_key, version, request.purpose, request.stream_id)
            binding.is_pinned = event.pinned_version is not None
            binding.has_tokens = event.start_version is not None
            binding.kv_tokens = len(request.prompt) + len(request.tokens)
            self._desk.bindings.add(binding, self._desk.fleet.workers.values(), now)
        if binding is None:
            return None
        self.reattached(request)
        self._desk.rehome(binding)
        return _unavailable(binding) if binding.is_given_up else None

    def reattached(self, request: LogicalRequest) -> None:
        """The caller speaks of the trajectory: it is alive."""
        binding = self._desk.binding_of(request)
        if binding is not None:
            binding.stream_id, binding.orphaned_at = request.stream_id, None

    def ended(self, prefix_key: str, now: float) -> list[Action]:
        """Forget a trajectory, and end what its caller left open of it."""
        request = self._desk.open_by_key.get(prefix_key)
        actions = self._desk.end(request, now, FinishReason.ABORTED) if request is not None else []
        self._desk.bindings.end(prefix_key, self._desk.fleet.workers)
        self._desk.forget_home(prefix_key)
        return actions + self._desk.dispatch(now)

    def named(self, event: TrajectoriesNamed, now: float) -> None:
        """A caller is back, or this proxy is new to it: what it names is alive, what it does not name expires."""
        if not self._desk.is_bound:
            return
        for live in event.trajectories:
            binding = self._desk.bindings.by_key.get(live.prefix_key)
            if binding is None:
                binding = Binding(live.prefix_key, live.start_version, Purpose.TRAIN, event.stream_id)
                binding.has_tokens, binding.kv_tokens = True, live.kv_tokens
                self._desk.bindings.add(binding, self._desk.fleet.workers.values(), now)
            binding.stream_id, binding.orphaned_at = event.stream_id, None

    def caller_left(self, stream_id: int, now: float) -> None:
        for binding in self._desk.bindings.by_key.values():
            if binding.stream_id == stream_id:
                binding.stream_id, binding.orphaned_at = None, now

    def opened(self, worker: Worker) -> None:
        """A worker serves a version: those that waited for it live there."""
        for binding in self._desk.bindings.adopt(worker) if self._desk.is_bound else []:
            self._desk.rehome(binding)

    def asked(self, event: WeightUpdateAsked, now: float) -> list[Action]:
        """The runner wants a version on workers: the empty ones load it, the others when they have drained."""
        actions: list[Action] = []
        for worker in self._desk.fleet.named(event):
            worker.resident.add(event.policy_version)
            if worker.phase is SwapPhase.UNLOADED:
                worker.asked = event.policy_version
            elif worker.serving_version == event.policy_version:
                actions += worker.report_again()
        return actions

    def ticked(self, now: float) -> list[Action]:
        """Deadlines of bindings."""
        limits, bindings = self._desk.limits, self._desk.bindings
        actions: list[Action] = []
        for binding in list(bindings.homeless.values()):
            if now - binding.homeless_since >= limits.version_wait_s:
                binding.is_given_up = True
                actions += self._fail(binding, now)
        for binding in list(bindings.by_key.values()):
            if binding.orphaned_at is not None and now - binding.orphaned_at >= limits.binding_grace_s:
                actions += self.ended(binding.key, now)
        return actions

    def repack(self, event: RepackDue, now: float) -> list[Action]:
        """Merge tails; turns that run are aborted at the source and go on from their prefix at the destination."""
        self._desk.counts.repack_looks += 1
        fleet = self._desk.fleet.workers
        moves = plan_repack(_load_of(worker, event.kv_total_tokens) for worker in fleet.values() if _may_move(worker))
        actions: list[Action] = []
        for move in moves:
            source, destination = fleet[move.source], fleet[move.destination]
            bytes_per_token = event.kv_bytes_per_token.get(move.source) or 1
            for binding in list(source.bound.values()):
                self._desk.counts.moved_kv_bytes += binding.kv_tokens * bytes_per_token
                actions += self._move(binding, source, destination, now)
        self._desk.counts.repacks += bool(moves)
        self._desk.counts.released_workers += len(moves)
        return actions + self._desk.dispatch(now) if moves else []

    def _move(self, binding: Binding, source: Worker, destination: Worker, now: float) -> list[Action]:
        counts = self._desk.counts
        counts.moved_trajectories += 1
        counts.moved_tokens += binding.kv_tokens
        request = self._desk.open_by_key.get(binding.key)
        is_running = request is not None and request.state is RequestState.RUNNING
        self._desk.bindings.move(binding, source, destination)
        actions: list[Action] = []
        if request is not None and is_running:
            actions = self._desk.leave_worker(request, now)
            request.moved_at = now
            counts.moved_requests += 1
        self._desk.rehome(binding)
        if request is not None and is_running:
            self._desk.enqueue(request, f"repacked onto {destination.worker_id}", now)
        return actions

    def _fail(self, binding: Binding, now: float) -> list[Action]:
        request = self._desk.open_by_key.get(binding.key)
        if request is None or request.stream_id is None:
            return []
        return self._desk.end(request, now, FinishReason.FAILED, _unavailable(binding))


def _may_move(worker: Worker) -> bool:
    is_serving = worker.serving_version is not None and may_hold(worker, worker.serving_version)
    return is_serving and not worker.is_pinned


def _load_of(worker: Worker, kv_total_tokens: Mapping[str, int]) -> RolloutLoad:
    """C_prev is the most that the worker has held under its version: a tail that grows between looks is still one."""
    assert worker.serving_version is not None
    return RolloutLoad(
        worker.worker_id,
        worker.serving_version,
        kv_used_tokens=worker.kv_bound,
        kv_prev_tokens=worker.kv_peak,
        kv_max_tokens=kv_total_tokens.get(worker.worker_id) or UNBOUNDED_TOKENS,
        n_requests=worker.n_bound,
        max_requests=worker.max_running,
        can_release=not worker.takes_new,
    )


def _unavailable(binding: Binding) -> Fault:
    detail = f"no worker could serve version {binding.policy_version}, which the trajectory began under"
    return Fault("version_unavailable", "infra", detail, retryable=True)
