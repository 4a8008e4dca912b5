"""Trajectories bound to one version and one worker from the first dispatch to the end, environment time included.

    (unknown) ──dispatch, or named by its caller──► PLACED ──ended, expired──► (forgotten)
                                                    │   ▲ └─repack─► PLACED elsewhere, same version
                                    its worker went │   │ a worker serves the version
                                                    ▼   │
                                                  HOMELESS ──version_wait_s──► given up: its next turn fails

One without a kept token may still change its version: it is forgotten when its worker goes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.core.requests.record import Purpose, TableError
from headrace.core.requests.swap import Worker


@dataclass(slots=True, eq=False)
class Binding:
    """`kv_tokens`: prompt and tokens so far, what its next turn needs. `is_pinned`: its caller named the version."""

    key: str
    policy_version: int
    purpose: Purpose
    stream_id: int | None
    worker_id: str | None = None
    kv_tokens: int = 0
    is_pinned: bool = False
    has_tokens: bool = False
    is_given_up: bool = False
    homeless_since: float = 0.0
    orphaned_at: float | None = None
    repeat_tokens: int = 0  # prefilled before, to be prefilled again where it was moved to
    token_versions: set[int] = field(default_factory=set)

    @property
    def keeps_version(self) -> bool:
        return self.has_tokens or self.is_pinned


@dataclass(slots=True)
class Bindings:
    """All bound trajectories, by `trajectory_id/attempt`; each worker knows its own."""

    by_key: dict[str, Binding] = field(default_factory=dict)
    homeless: dict[str, Binding] = field(default_factory=dict)

    def add(self, binding: Binding, workers: Iterable[Worker], now: float) -> None:
        """Know a trajectory that has a version, and place it if a worker serves that."""
        self.by_key[binding.key] = binding
        self._settle(binding, workers, now)

    def bind(self, binding: Binding, worker: Worker) -> None:
        """A trajectory begins on a worker, under what it serves."""
        self.by_key[binding.key] = binding
        self._put(binding, worker)

    def lift(self, binding: Binding, worker: Worker | None) -> None:
        """Take it off its worker."""
        if worker is not None and worker.bound.pop(binding.key, None) is not None:
            worker.kv_bound -= binding.kv_tokens
        binding.worker_id = None

    def move(self, binding: Binding, source: Worker, destination: Worker) -> None:
        """To another worker of the same version."""
        self.lift(binding, source)
        binding.repeat_tokens = binding.kv_tokens
        self._put(binding, destination)

    def lost(self, binding: Binding, workers: Iterable[Worker], now: float) -> None:
        """Its worker went: forget it, place it again, or let it wait for its version."""
        binding.worker_id = None
        if binding.keeps_version:
            self._settle(binding, workers, now)
        else:
            del self.by_key[binding.key]

    def end(self, key: str, workers: dict[str, Worker]) -> None:
        """Forget a trajectory; unknown ones are none."""
        binding = self.by_key.pop(key, None)
        if binding is None:
            return
        self.homeless.pop(key, None)
        if binding.worker_id is not None:
            self.lift(binding, workers.get(binding.worker_id))

    def adopt(self, worker: Worker) -> list[Binding]:
        """Those without a home that this worker's version serves are placed on it."""
        fit = [binding for binding in self.homeless.values() if may_hold(worker, binding.policy_version)]
        for binding in fit:
            del self.homeless[binding.key]
            binding.is_given_up = False
            self._put(binding, worker)
        return fit

    def grow(self, binding: Binding, kv_tokens: int, worker: Worker | None) -> None:
        """Its context has so many tokens now."""
        if worker is not None and binding.key in worker.bound:
            worker.kv_bound += kv_tokens - binding.kv_tokens
            worker.kv_peak = max(worker.kv_peak, worker.kv_bound)
        binding.kv_tokens = kv_tokens

    def wanted(self) -> list[int]:
        """Versions that trajectories without a home wait for, oldest first."""
        return sorted({b.policy_version for b in self.homeless.values() if not b.is_given_up})

    def check(self, workers: dict[str, Worker]) -> None:
        """Raises TableError: one version and one place for every trajectory."""
        for binding in self.by_key.values():
            worker = workers.get(binding.worker_id) if binding.worker_id is not None else None
            problems = {
                "has tokens of another version": not binding.token_versions <= {binding.policy_version},
                "placed and homeless": (binding.worker_id is None) != (binding.key in self.homeless),
                "on a worker that does not know it": binding.worker_id is not None
                and (worker is None or worker.bound.get(binding.key) is not binding),
                "on a worker of another version": worker is not None
                and worker.serving_version != binding.policy_version,
            }
            if broken := [problem for problem, is_true in problems.items() if is_true]:
                raise TableError(f"trajectory {binding.key} of version {binding.policy_version}: {', '.join(broken)}")
        for worker in workers.values():
            held = [binding for key, binding in worker.bound.items() if self.by_key.get(key) is binding]
            if len(held) != len(worker.bound) or worker.kv_bound != sum(binding.kv_tokens for binding in held):
                raise TableError(f"worker {worker.worker_id} miscounts what is bound to it")

    def _settle(self, binding: Binding, workers: Iterable[Worker], now: float) -> None:
        """On the least bound worker of its version; evaluation prefers those held for it, training the others."""
        is_eval = binding.purpose is Purpose.EVAL
        fit = [worker for worker in workers if may_hold(worker, binding.policy_version)]
        if fit:
            self._put(
                binding,
                min(fit, key=lambda w: (w.is_pinned != is_eval, len(w.bound) / w.max_running, w.worker_id)),
            )
        else:
            binding.homeless_since = now
            self.homeless[binding.key] = binding

    @staticmethod
    def _put(binding: Binding, worker: Worker) -> None:
        binding.worker_id = worker.worker_id
        worker.bound[binding.key] = binding
        worker.kv_bound += binding.kv_tokens
        worker.kv_peak = max(worker.kv_peak, worker.kv_bound)


def may_hold(worker: Worker, policy_version: int) -> bool:
    """Whether trajectories of the version can live on the worker: it serves it and is not about to change."""
    return worker.is_open and worker.target is None and worker.serving_version == policy_version
