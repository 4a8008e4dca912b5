"""The workers together: which are live, which are held at a version, and the floor that an update sets.

The floor is the version below which unpinned requests are not dispatched any more. A barrier update raises it at once,
so a worker that missed the update, or refused the load, gets no training traffic until it has caught up. While every
worker is held, the floor waits for the end of the hold.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.requests.events import VersionPinned, WeightUpdateAsked, WorkerJoined
from headrace.core.requests.limits import RequestLimits
from headrace.core.requests.record import LogicalRequest, TableError
from headrace.core.requests.swap import SwapAction, SwapPhase, Update, Worker


@dataclass(slots=True)
class Fleet:
    workers: dict[str, Worker] = field(default_factory=dict)
    min_version: int = 0
    local_batch: int | None = None
    asked_early: dict[str, WeightUpdateAsked] = field(default_factory=dict)  # of workers that have not joined yet
    _floor_after_hold: int = 0
    _pin: VersionPinned | None = None

    def join(self, event: WorkerJoined, now: float) -> None:
        """Raises ValueError for a worker without lanes."""
        if event.max_running < 1:
            raise ValueError(f"worker {event.worker_id}: max_running must be >= 1, got {event.max_running}")
        phase = SwapPhase.UNLOADED if event.serving_version is None else SwapPhase.SERVING
        self.workers[event.worker_id] = Worker(
            event.worker_id,
            event.pool,
            event.max_running,
            event.serving_version,
            event.weight_digest,
            phase,
            since=now,
            resident={*event.resident_versions, *([] if event.serving_version is None else [event.serving_version])},
            local_batch=self.local_batch,
        )
        self.refill_hold(now)

    def remove(self, worker_id: str, now: float) -> list[LogicalRequest]:
        """Forget a worker; returns what was on it."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return []
        self.refill_hold(now)
        return list(worker.requests.values())

    def update(self, event: WeightUpdateAsked, now: float) -> list[SwapAction]:
        """Ask the named workers, or all. What is asked of one that has not joined yet is kept until it does: a runner
        knows the workers of a new proxy before their streams are open."""
        asked = self.named(event)
        if event.is_barrier:
            self._raise_floor(event.policy_version, asked)
        change = Update(event.policy_version, event.mode)
        return [action for worker in asked for action in worker.ask(change, now)]

    def named(self, event: WeightUpdateAsked) -> list[Worker]:
        """The workers that an update is for; it is kept for those that are to come."""
        names = event.worker_ids or tuple(self.workers)
        self.asked_early |= {name: event for name in names if name not in self.workers}
        return [self.workers[name] for name in names if name in self.workers]

    def hold(self, event: VersionPinned, now: float) -> list[SwapAction]:
        """Replace the hold; workers that it frees take up the update that they put off."""
        self._pin = event if event.n_workers else None
        actions: list[SwapAction] = []
        n_kept = 0
        for worker in self.workers.values():
            if not worker.is_pinned:
                continue
            if n_kept < event.n_workers and worker.serving_version == event.policy_version:
                n_kept += 1
            else:
                self.min_version = max(self.min_version, self._floor_after_hold)
                actions += worker.hold(False, now)
        self.refill_hold(now)
        return actions

    def release(self, worker_id: str, now: float) -> list[SwapAction]:
        """Let a worker go once it is idle."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return []
        actions = worker.hold(False, now) + worker.leave()
        self.refill_hold(now)
        return actions

    def overdue(self, limits: RequestLimits, now: float) -> list[SwapAction]:
        spans = {"load_s": limits.load_s, "drain_s": limits.drain_s, "rebuild_s": limits.rebuild_s}
        return [action for worker in self.workers.values() for action in worker.overdue(now, **spans)]

    def may_stay(self, request: LogicalRequest, worker: Worker) -> bool:
        """Whether a request may go on where it is, by version."""
        version = worker.serving_version
        if version is None:
            return False
        return version >= self.min_version if request.pinned_version is None else version == request.pinned_version

    def check(self) -> None:
        for worker in self.workers.values():
            worker.check()
        pinned = [worker for worker in self.workers.values() if worker.is_pinned]
        wanted = (self._pin.policy_version, self._pin.n_workers) if self._pin else (None, 0)
        if len(pinned) > wanted[1] or any(worker.serving_version != wanted[0] for worker in pinned):
            raise TableError(f"held: {[(w.worker_id, w.serving_version) for w in pinned]}, wanted: {wanted}")

    def _raise_floor(self, policy_version: int, asked: Iterable[Worker]) -> None:
        if any(not worker.is_pinned for worker in asked):
            self.min_version = max(self.min_version, policy_version)
        else:
            self._floor_after_hold = max(self._floor_after_hold, policy_version)

    def refill_hold(self, now: float) -> None:
        """Hold more workers while fewer are held than asked for and some serve the version."""
        if self._pin is None:
            return
        missing = self._pin.n_workers - sum(worker.is_pinned for worker in self.workers.values())
        fit = [
            worker
            for worker in self.workers.values()
            if worker.is_open
            and not worker.is_pinned
            and worker.target is None
            and worker.serving_version == self._pin.policy_version
        ]
        fit.sort(key=lambda worker: worker.worker_id)
        for worker in fit[: max(0, missing)]:
            worker.hold(True, now)
