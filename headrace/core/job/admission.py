"""Which groups start, and on which environment process each attempt runs.

New groups are gated by staleness, demand and room; siblings, refills and evaluation go first and are never gated.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

from headrace.core.buffer import BYTES_PER_TOKEN
from headrace.core.job import swaps
from headrace.core.job.actions import Action, AssignAttempt
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Attempt, Group, GroupState, Key
from headrace.core.job.state import JobState, Phase, Requeue
from headrace.core.seeds import derive, sampling_seed
from headrace.core.staleness import admission_bound

_WAITING = (GroupState.OPEN, GroupState.COMPLETE, GroupState.READY)


def admit(state: JobState, now: float) -> list[Action]:
    """Starts as many groups as may start, least-filled task first, then hands queued attempts to processes."""
    if state.phase is not Phase.RUNNING:
        return []
    _admit_groups(state, now)
    if state.groups:
        state.totals.setdefault("rollouts_began", now)
    return dispatch(state)


def _admit_groups(state: JobState, now: float) -> None:
    version = _rollout_version(state)
    if version is None:
        return
    quotas = _lent(state, current_quotas(state), now)
    waiting = _waiting_by_task(state)
    room = {task: _room(state, version, quota, waiting[task]) for task, quota in quotas.items()}
    # The sum is bounded by itself: quotas move when a task runs out of prompts, and back when one of them returns.
    lent = sum(quotas.values()) - state.plan.groups
    left = _room(state, version, state.plan.groups, sum(waiting.values())) + lent
    # Ready groups are the buffer's, not in the making: counted here, they would keep a small limit from ever filling B.
    inflight = state.plan.issued * len(state.train_groups(GroupState.OPEN, GroupState.COMPLETE))
    limit, reserved = state.plan.policy.max_inflight, _reserved(state)
    # Lockstep: what starts on an empty pipeline is one cohort; a replacement that starts later steps alone.
    is_cohort = state.plan.policy.interaction == "lockstep" and not any(waiting.values())
    cohort = f"step-{_steps_taken(state) + 1}" if is_cohort else ""
    while left > 0 and (open_tasks := [name for name, spare in room.items() if spare > 0 and has_prompts(state, name)]):
        if limit is not None and inflight + state.plan.issued > limit:
            return
        if not reserved.admit(state.plan, is_batch_due=sum(waiting.values()) < state.plan.groups):
            state.counters["admission_blocked_by_buffer"] += 1
            return
        task = min(open_tasks, key=lambda name: (waiting[name] / quotas[name], name))
        _open_group(state, _next_prompt(state, task), version, now, cohort)
        waiting[task] += 1
        room[task] -= 1
        left -= 1
        inflight += state.plan.issued


@dataclass(slots=True)
class _Reserved:
    """Trajectories and bytes that waiting groups hold, each group with room for all it may ever have."""

    trajectories: int
    n_bytes: float
    bytes_per_trajectory: float

    def admit(self, plan: JobPlan, *, is_batch_due: bool) -> bool:
        """Whether one more group fits; it is counted in when it does.

        A batch always fits in bytes: how long trajectories are is known too late to refuse the job.
        """
        wanted = plan.issued * self.bytes_per_trajectory
        fits = plan.room.has_room(
            held=self.trajectories,
            held_bytes=0 if is_batch_due else int(self.n_bytes),
            wanted=plan.issued,
            wanted_bytes=0 if is_batch_due else int(wanted),
        )
        if fits:
            self.trajectories += plan.issued
            self.n_bytes += wanted
        return fits


def _reserved(state: JobState) -> _Reserved:
    mean = state.totals.get("tokens", 0.0) / max(state.totals.get("trajectories", 0.0), 1.0) * BYTES_PER_TOKEN
    held, n_bytes = 0, 0.0
    for group in state.train_groups(*_WAITING):
        live = group.live
        reserved = len(live) if group.state is GroupState.READY else max(len(live), state.plan.issued)
        known = sum(member.n_tokens for member in live) * BYTES_PER_TOKEN
        held += reserved
        n_bytes += known + mean * (reserved - sum(1 for member in live if member.n_tokens))
    return _Reserved(held, n_bytes, mean)


def current_quotas(state: JobState) -> dict[str, int]:
    """Groups of each task in the next batch. A task that ran out of prompts lends what it cannot fill any more."""
    quotas = state.plan.quotas()
    open_tasks = [task for task in state.plan.tasks if has_prompts(state, task.name)]
    if len(open_tasks) == len(quotas) or not open_tasks:
        return quotas
    waiting = _waiting_by_task(state)
    names = {task.name for task in open_tasks}
    kept = {name: quota if name in names else min(quota, waiting[name]) for name, quota in quotas.items()}
    for index in range(state.plan.groups - sum(kept.values())):
        kept[open_tasks[index % len(open_tasks)].name] += 1
    return kept


def _lent(state: JobState, quotas: dict[str, int], now: float) -> dict[str, int]:
    """Past its patience a task that cannot fill its quota lends what it lacks to one that has filled its own.

    Where the staleness bound leaves room for a single batch, the lender's groups could not even start otherwise.
    """
    since = state.marks.get("quota_short", now)
    if now - since < state.plan.limits.quota_patience_s:
        return quotas
    ready = Counter(group.task for group in state.train_groups(GroupState.READY))
    lacking = sum(max(0, quota - ready[task]) for task, quota in quotas.items())
    lenders = [t for t, quota in quotas.items() if quota and ready[t] >= quota and has_prompts(state, t)]
    if not lenders or not lacking:
        return quotas
    return {task: quota + (lacking if task == lenders[0] else 0) for task, quota in quotas.items()}


def _waiting_by_task(state: JobState) -> dict[str, int]:
    """Groups not taken yet, and those of a step that is still being filled: both fill the batches that are due."""
    waiting = dict.fromkeys((task.name for task in state.plan.tasks), 0)
    for group in state.train_groups(*_WAITING):
        waiting[group.task] += 1
    if state.step_out is not None and not state.is_batch_out:
        for taken in state.step_out.groups:
            waiting[taken.task] += 1
    return waiting


def _rollout_version(state: JobState) -> int | None:
    """The oldest version that a routable worker serves: whoever takes the group lags at most by that.

    Where workers drain on their own, new trajectories go to those that have drained: the newest version served.
    """
    serving = [w.serving_version for w in swaps.barrier(state) if w.serving_version is not None]
    live = [version for version in serving if state.lineage.is_live(version)]
    return (max if state.plan.policy.load_at == "drain" else min)(live, default=None)


def _room(state: JobState, version: int, quota: int, waiting: int) -> int:
    policy = state.plan.policy
    lag = state.lineage.lag(version) or 0
    is_out = state.is_batch_out
    if policy.overlap == "none" and is_out:
        return 0
    bound = admission_bound(
        rollout_lag=lag, alpha=policy.alpha, is_batch_out=is_out, groups=quota, overcommit=policy.overcommit
    )
    if policy.overlap == "one_batch":
        bound = min(bound, quota)
    still_needed = (state.plan.max_steps - _steps_taken(state)) * quota
    return min(bound, still_needed) - waiting


def _steps_taken(state: JobState) -> int:
    """Steps whose batch is whole; one that is still being filled needs groups yet."""
    is_filling = state.step_out is not None and not state.is_batch_out
    return max([state.step, *state.steps], default=0) - is_filling


def _next_prompt(state: JobState, task: str) -> Requeue:
    """A requeued prompt of the task, or a fresh one; there is one, see `has_prompts`."""
    for index, requeue in enumerate(state.requeues):
        if requeue.task == task:
            return state.requeues.pop(index)
    seed = derive("prompt", state.plan.seed, task, state.cursors[task])
    state.cursors[task] += 1
    return Requeue(task, seed, "", 0)


def has_prompts(state: JobState, task: str) -> bool:
    limit = state.plan.task(task).n_prompts
    if limit is None or state.cursors[task] < limit:
        return True
    return any(requeue.task == task for requeue in state.requeues)


def _open_group(state: JobState, prompt: Requeue, version: int, now: float, cohort: str) -> None:
    plan = state.plan
    group_id = f"grp_{plan.job_id.removeprefix('job_')}_{state.ordinal:08d}"
    group = Group(
        group_id,
        state.ordinal,
        "train",
        prompt.task,
        prompt.env_seed,
        version,
        now,
        prompt.parent_group,
        prompt.requeues,
        cohort,
    )
    state.ordinal += 1
    state.add_group(group)
    for sibling in range(plan.issued):
        kind = "first" if sibling < plan.group_size else "redundant"
        issue_attempt(state, group, sibling, kind, "sampled", now)


def issue_attempt(state: JobState, group: Group, sibling: int, kind: str, mode: str, now: float) -> None:
    trajectory_id = f"trj_{group.id.removeprefix('grp_')}_{sibling:03d}"
    key = Key(trajectory_id, 1)
    state.issue(Attempt(key, group.id, group.purpose, group.task, sibling, kind, mode, issued_at=now))


def dispatch(state: JobState) -> list[Action]:
    """Hands queued attempts to the least loaded environment process with a free slot: evaluation, refills, the rest."""
    if not state.unassigned or not state.envs:
        return []
    order = sorted(
        state.unassigned.values(), key=lambda a: (a.purpose != "eval", a.kind != "refill", a.issued_at, a.key)
    )
    handed: list[Attempt] = []
    free = state.plan.env_slots - sum(len(env.assigned) for env in state.envs.values())
    for attempt in order[: max(free, 0)]:
        open_envs = [env for env in state.envs.values() if len(env.assigned) < env.slots]
        if not open_envs:
            break
        env = min(open_envs, key=lambda e: (len(e.assigned) / e.slots, e.worker_id))
        attempt.env_worker_id = env.worker_id
        env.assigned.add(attempt.key)
        del state.unassigned[attempt.key]
        state.touch(attempt)
        handed.append(attempt)
    cohorts = _cohorts(state, handed)
    return [assignment(state, attempt, *cohorts.get(attempt.key, ("", 0))) for attempt in handed]


def _cohorts(state: JobState, handed: list[Attempt]) -> dict[Key, tuple[str, int]]:
    """Names and sizes of those that step together: of one cohort, handed to one process at once, and not alone.

    Refills join late and step alone. Those that wait for a slot form a cohort of their own, under another name.
    """
    together: defaultdict[tuple[str, str], list[Key]] = defaultdict(list)
    for attempt in handed:
        if (cohort := state.groups[attempt.group_id].cohort) and attempt.kind != "refill":
            together[cohort, attempt.env_worker_id].append(attempt.key)
    return {
        key: (f"{cohort}/{env_worker_id}/{min(keys).trajectory_id}", len(keys))
        for (cohort, env_worker_id), keys in together.items()
        if len(keys) > 1
        for key in keys
    }


def assignment(state: JobState, attempt: Attempt, cohort: str = "", cohort_size: int = 0) -> AssignAttempt:
    """The whole of what an environment process needs to run the attempt."""
    plan, group = state.plan, state.groups[attempt.group_id]
    is_eval = attempt.purpose == "eval"
    return AssignAttempt(
        key=attempt.key,
        env_worker_id=attempt.env_worker_id,
        purpose=attempt.purpose,
        group_id=group.id,
        sibling=attempt.sibling,
        task=attempt.task,
        env_seed=group.env_seed,
        sampling_seed=sampling_seed(plan.seed, _sampling_scope(group), attempt.sibling, attempt.key.attempt, 0),
        is_greedy=attempt.mode == "greedy",
        pinned_version=group.admitted_version if is_eval else None,
        split="heldout" if is_eval else "train",
        cohort=cohort,
        cohort_size=cohort_size,
    )


def _sampling_scope(group: Group) -> str:
    """Evaluation draws are the same at every evaluation; training draws are the group's own."""
    if group.purpose == "eval":
        return f"eval/{group.task}/{group.env_seed}"
    return f"{group.ordinal}/{group.requeues}"
