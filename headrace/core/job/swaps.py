"""A version reaches the workers: prefetch in the background, then suspend, load, resume, when the policy says so.

    committed ──► resident on every live worker (or the deadline) ──► load condition ──► loading ──► served: settled

A worker that misses the prefetch deadline leaves the routing and the barrier until it holds the version.
Workers held for an evaluation are outside the barrier and load when it ends.
"""

from headrace.core.job.actions import Action, PinVersion, PrefetchWeights, RetainVersions, UpdateWeights
from headrace.core.job.events import ProxyOpened, WeightsPrefetched, WeightsUpdated, WorkerReported, WorkersChanged
from headrace.core.job.rows import GroupState
from headrace.core.job.state import JobState, RolloutWorker
from headrace.core.ledger import AttemptState
from headrace.core.staleness import is_alive

MAX_FAULTS = 5


def begin(state: JobState, now: float) -> list[Action]:
    """A new current version: workers prefetch it, the store keeps it and whatever is pinned."""
    version = state.lineage.current
    assert version is not None
    state.marks = {"committed": now, "prefetch_deadline": now + state.plan.limits.prefetch_s}
    return [RetainVersions(version, pinned(state)), PrefetchWeights(version)]


def pinned(state: JobState) -> frozenset[int]:
    """Versions beside the current one that the store must keep: under evaluation, the last checkpoint's, and, where a
    trajectory stays with one version, those of everything that runs (a lost worker's successor loads it)."""
    pinned = {state.evaluation.policy_version} if state.evaluation else set()
    if _drains(state):
        running = (a.start_version for a in state.attempts.values() if a.state is AttemptState.RUNNING)
        pinned |= {version for version in running if version is not None}
    checkpointed = state.lineage.live_version_of_step(state.checkpoint_step)
    if checkpointed is not None:
        pinned.add(checkpointed)
    return frozenset(pinned)


def held_workers(state: JobState) -> set[str]:
    """Workers that an evaluation keeps at its version: the first few, by id, that serve it."""
    if state.evaluation is None or state.evaluation.policy_version == state.lineage.current:
        return set()
    version = state.evaluation.policy_version
    serving = sorted(w.worker_id for w in state.workers.values() if w.serving_version == version)
    return set(serving[: state.plan.evaluation.workers])


def barrier(state: JobState) -> list[RolloutWorker]:
    """Workers that training rollouts run on: live, and not held by an evaluation."""
    held = held_workers(state)
    return [worker for worker in state.live_workers if worker.worker_id not in held]


def is_settled(state: JobState) -> bool:
    """Whether every worker of the barrier serves the current version, and there is at least one.

    Workers that drain on their own have no barrier: one that serves any live version is enough.
    """
    workers = barrier(state)
    if _drains(state):
        serving = (worker.serving_version for worker in workers)
        return any(version is not None and state.lineage.is_live(version) for version in serving)
    return bool(workers) and all(worker.serving_version == state.lineage.current for worker in workers)


def advance(state: JobState, now: float, *, can_fill: bool) -> list[Action]:
    """Starts the swap on every worker that holds the current version, once the barrier and the policy allow it."""
    version = state.lineage.current
    if version is None or not state.has_proxy:
        return []
    _expire(state, version, now)
    workers = barrier(state)
    if _drains(state):
        # A worker that serves nothing, or a dead branch, has nothing to drain; the others load when they have drained.
        workers = [w for w in workers if version in w.resident and not _serves_live(state, w)]
    if not workers or any(version not in worker.resident for worker in workers):
        return []
    state.marks.setdefault("resident", now)
    if not _may_load(state, can_fill=can_fill):
        # One that was held, and is too old by now, would keep the whole job from admitting anything.
        workers = [w for w in workers if w.serving_version is not None and not _is_useful(state, w)]
    behind = [w for w in workers if version not in (w.serving_version, w.updating_to)]
    for worker in behind:
        worker.updating_to = version
        worker.update_deadline = now + state.plan.limits.update_s
    if not behind:
        return []
    state.marks.setdefault("loading", now)
    mode = state.plan.policy.on_load if _is_rollout_open(state) else "continue"
    return [UpdateWeights(version, mode, tuple(sorted(worker.worker_id for worker in behind)))]


def _drains(state: JobState) -> bool:
    return state.plan.policy.load_at == "drain"


def _serves_live(state: JobState, worker: RolloutWorker) -> bool:
    return worker.serving_version is not None and state.lineage.is_live(worker.serving_version)


def _is_useful(state: JobState, worker: RolloutWorker) -> bool:
    """Whether what the worker starts under the version that it serves can be trained: live, and not too old."""
    lag = None if worker.serving_version is None else state.lineage.lag(worker.serving_version)
    return is_alive(lag, state.plan.policy.alpha, is_batch_out=state.is_batch_out)


def _expire(state: JobState, version: int, now: float) -> None:
    is_overdue = now >= state.marks.get("prefetch_deadline", now + 1)
    for worker in state.workers.values():
        is_missing = version not in worker.resident
        is_stuck = worker.updating_to is not None and now >= worker.update_deadline
        if is_stuck:
            worker.faults += 1
            worker.resident.discard(version)  # until it says again that it holds it
        if (is_missing and is_overdue) or is_stuck:
            worker.is_late = True
            worker.updating_to = None
        elif not is_missing and worker.faults <= MAX_FAULTS:
            worker.is_late = False


def _may_load(state: JobState, *, can_fill: bool) -> bool:
    if "loading" in state.marks:
        return True  # begun: from then on the proxy lets nothing run below this version, so a refused load is repeated
    if not any(_is_useful(state, worker) for worker in state.workers.values()):
        return True  # there is nothing to wait for
    match state.plan.policy.load_at:
        case "before_batch":
            return not _is_rollout_open(state)
        case "get_batch":
            return can_fill
        case _:
            return True


def _is_rollout_open(state: JobState) -> bool:
    return bool(state.train_groups(GroupState.OPEN))


def workers_changed(state: JobState, event: WorkersChanged) -> list[Action]:
    """Joins and leaves; a joiner prefetches the current version before it counts."""
    for gone in state.workers.keys() - event.worker_ids:
        del state.workers[gone]
    joined = sorted(event.worker_ids - state.workers.keys())
    is_late = bool(state.workers)  # those that come together are waited for together
    for worker_id in joined:
        state.workers[worker_id] = RolloutWorker(worker_id, is_late=is_late)
    return prefetch_again(state) if joined else []


def proxy_opened(state: JobState, event: ProxyOpened) -> list[Action]:
    """A new proxy, or one opened again: what was on its way is asked for again, and so is a hold, or its end."""
    state.has_proxy = True
    for worker in state.workers.values():
        worker.updating_to = None
    running = state.evaluation
    version = running.policy_version if running else state.lineage.current
    if version is None:
        return []
    return [PinVersion(version, state.plan.evaluation.workers if running else 0), *prefetch_again(state)]


def prefetch_again(state: JobState) -> list[Action]:
    """Whoever lacks the current version may fetch it; who has it says so."""
    if state.lineage.current is None or not state.has_proxy:
        return []
    return [PrefetchWeights(state.lineage.current)]


def fetch_missing(state: JobState) -> list[Action]:
    """Ask again for the current version where a worker lacks it."""
    version = state.lineage.current
    lacks = any(version not in worker.resident for worker in state.workers.values())
    return prefetch_again(state) if lacks else []


def reported(state: JobState, event: WorkerReported) -> list[Action]:
    worker = state.workers.get(event.worker_id)
    if worker is None:
        return []
    had_current = state.lineage.current in worker.resident
    if worker.serving_version is not None and event.serving_version is None:
        worker.updating_to = None  # its engine is gone, and the load with it
    worker.serving_version = event.serving_version
    worker.resident = set(event.resident_versions)
    if event.serving_version is not None:
        worker.resident.add(event.serving_version)
    return prefetch_again(state) if had_current and state.lineage.current not in worker.resident else []


def prefetched(state: JobState, event: WeightsPrefetched) -> list[Action]:
    worker = state.workers.get(event.worker_id)
    if worker is None:
        return []
    if not event.fault:
        worker.resident.add(event.policy_version)
        return []
    worker.faults += 1
    return prefetch_again(state) if worker.faults <= MAX_FAULTS else []


def updated(state: JobState, event: WeightsUpdated, now: float) -> list[Action]:
    worker = state.workers.get(event.worker_id)
    if worker is None:
        return []
    worker.updating_to = None
    if event.fault:
        worker.faults += 1
        worker.resident.discard(event.policy_version)
        worker.is_late = True
        return prefetch_again(state) if worker.faults <= MAX_FAULTS else []
    worker.faults = 0
    worker.serving_version = event.policy_version
    worker.resident.add(event.policy_version)
    if is_settled(state):
        state.marks.setdefault("loaded", now)
    return []
