"""Which worker runs a request: task tag to pools, then the worker that holds the prefix, else the least loaded.

A worker passes four gates, in this order:

    version   an unpinned request takes a worker at or above the floor, a pinned one only its own version
    pin       evaluation prefers workers held for it; training leaves them alone unless no other worker is live
    pool      the first pool of the task's list that has a live worker; every pool when none has (fallback)
    room      open now and fewer running requests than lanes; for a trajectory that will be bound: takes new ones

A worker that is live but full or swapping weights makes the request wait; only a worker that is gone, or that will
not serve an allowed version, makes a pool unavailable. The choice is made anew for each request, so work returns to
its own pool as soon as that pool is back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.core.profile import AffinityProfile


class WorkerView(Protocol):
    """What a router may know about a worker."""

    @property
    def worker_id(self) -> str: ...
    @property
    def pool(self) -> str: ...
    @property
    def serving_version(self) -> int | None: ...
    @property
    def next_version(self) -> int | None:
        """The version it is about to load, or None."""

    @property
    def n_running(self) -> int: ...
    @property
    def max_running(self) -> int: ...
    @property
    def is_open(self) -> bool:
        """Takes requests now: it serves a version, and is neither draining nor loading."""

    @property
    def is_leaving(self) -> bool:
        """Takes no request any more."""

    @property
    def is_pinned(self) -> bool: ...
    @property
    def n_bound(self) -> int:
        """Trajectories that are bound to it, running or in their environment; 0 where none are."""

    @property
    def takes_new(self) -> bool:
        """Begins trajectories; looked at only for those that will be bound to it."""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """A worker as a plain value, for simulation and tests; the request table routes over its own records."""

    worker_id: str
    pool: str = "default"
    serving_version: int | None = 0
    next_version: int | None = None
    n_running: int = 0
    max_running: int = 32
    is_open: bool = True
    is_leaving: bool = False
    is_pinned: bool = False
    n_bound: int = 0
    takes_new: bool = True


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """What a router may know about a request. `home` is the worker that holds its prefix, if one does.

    `is_new`: it begins a trajectory that will be bound to its worker.
    """

    task: str
    is_eval: bool = False
    pinned_version: int | None = None
    home: str | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """The answer. No worker and available: wait for room. No worker and not available: nobody could ever take it."""

    worker_id: str | None
    is_available: bool = True
    is_fallback: bool = False


class Router(Protocol):
    """One decision: a worker for a request among the live ones. `min_version` is the floor for unpinned requests."""

    def route(self, query: RouteQuery, workers: Iterable[WorkerView], min_version: int) -> Route: ...


UNAVAILABLE = Route(None, is_available=False)


@dataclass(frozen=True, slots=True)
class AffinityRouter:
    """Static affinity (RollArt's hw_mapping): `tags` gives a task's tag, `pools` a tag's pools by preference.

    A task without a tag is its own tag; a tag without pools goes anywhere.
    """

    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    def route(self, query: RouteQuery, workers: Iterable[WorkerView], min_version: int) -> Route:
        """The worker for `query`; ties by load go to the lower worker id."""
        live = [worker for worker in workers if _will_serve(worker, query, min_version)]
        if not live:
            return UNAVAILABLE
        pooled, is_fallback = self._in_pools(query.task, _by_pin(live, query.is_eval))
        best: WorkerView | None = None
        for worker in pooled:
            if not _can_take(worker, query, min_version):
                continue
            if worker.worker_id == query.home:
                return Route(worker.worker_id, is_fallback=is_fallback)
            if best is None or _load(worker) < _load(best):
                best = worker
        return Route(best.worker_id if best else None, is_fallback=is_fallback)

    def pool_of(self, task: str, live_pools: Iterable[str]) -> str | None:
        """The pool that the tags name among those that are there; None where they name none."""
        there = set(live_pools)
        return next((pool for pool in self.pools.get(self.tags.get(task, task), ()) if pool in there), None)

    def _in_pools(self, task: str, live: list[WorkerView]) -> tuple[list[WorkerView], bool]:
        wanted = self.pools.get(self.tags.get(task, task), ())
        for rank, pool in enumerate(wanted):
            members = [worker for worker in live if worker.pool == pool]
            if members:
                return members, rank > 0
        return live, bool(wanted)


@dataclass(frozen=True, slots=True)
class LearnedRouter:
    """Affinity by what pools have cost a task so far (`affinity: learned`); the same gates as the static one.

    The worker that holds the prefix comes first, in whatever pool it is: only where a trajectory begins, or lost its
    worker, does the profile choose. A pool without room is passed over for the next best.
    """

    profile: AffinityProfile
    explore_every: int = 20

    def route(self, query: RouteQuery, workers: Iterable[WorkerView], min_version: int) -> Route:
        """The worker for `query`; within a pool the least loaded, ties by worker id."""
        live = [worker for worker in workers if _will_serve(worker, query, min_version)]
        if not live:
            return UNAVAILABLE
        open_now = [worker for worker in _by_pin(live, query.is_eval) if _can_take(worker, query, min_version)]
        if any(worker.worker_id == query.home for worker in open_now):
            return Route(query.home)
        pools = self.profile.ranked(query.task, (worker.pool for worker in open_now), explore_every=self.explore_every)
        if not pools:
            return Route(None)
        return Route(min((worker for worker in open_now if worker.pool == pools[0]), key=_load).worker_id)


def _allows(version: int | None, query: RouteQuery, min_version: int) -> bool:
    if version is None:
        return False
    return version >= min_version if query.pinned_version is None else version == query.pinned_version


def _will_serve(worker: WorkerView, query: RouteQuery, min_version: int) -> bool:
    if worker.is_leaving:
        return False
    if _allows(worker.next_version, query, min_version):
        return True
    return worker.next_version is None and _allows(worker.serving_version, query, min_version)


def _by_pin(live: list[WorkerView], is_eval: bool) -> list[WorkerView]:
    preferred = [worker for worker in live if worker.is_pinned == is_eval]
    return preferred or live


def _can_take(worker: WorkerView, query: RouteQuery, min_version: int) -> bool:
    has_room = worker.is_open and worker.n_running < worker.max_running
    is_allowed = _allows(worker.serving_version, query, min_version)
    return has_room and is_allowed and (worker.takes_new or not query.is_new)


def _load(worker: WorkerView) -> tuple[float, str]:
    return max(worker.n_running, worker.n_bound) / worker.max_running, worker.worker_id
