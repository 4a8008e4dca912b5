"""Staleness and the take: what may still be trained, and when the next batch leaves the buffer.

The check at the take is the guarantee that max L <= alpha over everything trained; see headrace.core.staleness.
"""

import hashlib
import json
from collections import Counter

from headrace.core.buffer import ReadyGroup, check_order
from headrace.core.job import accounting
from headrace.core.job import groups as group_rules
from headrace.core.job.actions import Action, Announce, TrainStep
from headrace.core.job.admission import current_quotas, has_prompts
from headrace.core.job.rows import Attempt, BatchGroup, BatchMember, Group, GroupState, Key, Step
from headrace.core.job.state import JobState, Phase
from headrace.core.job.swaps import is_settled
from headrace.core.ledger import AttemptState
from headrace.core.staleness import is_alive, may_take

_WAITING = (GroupState.OPEN, GroupState.COMPLETE, GroupState.READY)


def evict(state: JobState, now: float) -> list[Action]:
    """Drops every group that can no longer be taken: some sibling off the lineage, or the oldest too old."""
    actions: list[Action] = []
    alpha, is_out = state.plan.policy.alpha, state.is_batch_out
    for group in state.train_groups(*_WAITING):
        lags = state.lags(group)
        if None in lags:
            reason = "started under a version that is off the live lineage"
            actions += group_rules.drop(state, group, now, AttemptState.OFF_LINEAGE, reason, is_requeued=True)
        elif lags and not is_alive(max(_known(lags)), alpha, is_batch_out=is_out):
            reason = f"lag {max(_known(lags)) + is_out} at the next take, alpha {alpha}"
            actions += group_rules.drop(state, group, now, AttemptState.EVICTED_STALE, reason, is_requeued=True)
    return actions


def _known(lags: list[int | None]) -> list[int]:
    return [lag for lag in lags if lag is not None]


def take(state: JobState, now: float) -> list[Action]:
    """Takes the next batch, or its next part, if everything allows it: one step out, weights settled, quotas filled."""
    step = state.step_out
    if not _may_take(state):
        return []
    chosen = _choose(state, step, now)
    if chosen is None or (state.plan.policy.on_stale == "wait" and step is None and _must_wait(state, now)):
        return []
    _count_lent(state, step, chosen)
    step = _begin(state, now) if step is None else step
    _sample(state, step, chosen, now)
    actions: list[Action] = [parts_of(state, step)[-1]]
    if not step.is_full(state.plan.groups):
        return actions
    data = {"step": step.step, "groups": len(step.groups), "policy_version": step.policy_version}
    return [*actions, Announce("step.sampled", data), *evict(state, now)]


def _may_take(state: JobState) -> bool:
    return (
        state.phase is Phase.RUNNING
        and bool(state.trainer_id)
        and state.publishing is None
        and not state.is_batch_out
        and state.step < state.plan.max_steps
        and state.lineage.current is not None
        and is_settled(state)
    )


def takeable(state: JobState) -> list[Group]:
    """Ready groups with L <= alpha, in the order of the job's sampler."""
    found: dict[str, Group] = {}
    seen: list[ReadyGroup] = []
    for group in state.train_groups(GroupState.READY):
        lags = state.lags(group)
        if lags and all(may_take(lag, state.plan.policy.alpha) for lag in lags):
            members = group.in_state(AttemptState.READY)
            rewards = tuple(member.reward or 0.0 for member in members)
            n_tokens = sum(member.n_tokens for member in members)
            found[group.id] = group
            seen.append(ReadyGroup(group.id, group.task, max(_known(lags)), group.ready_order or 0, rewards, n_tokens))
    order = state.plan.sampler.order(seen)
    check_order(seen, order)
    return [found[group_id] for group_id in order]


def can_fill(state: JobState, now: float) -> bool:
    """Whether the ready groups fill what is taken next, by the quotas or with what tasks lend.

    While a batch is out it has been filled: whoever still lacks the version that it was taken at may load that.
    """
    return state.is_batch_out or _choose(state, state.step_out, now) is not None


def _wanted(state: JobState, step: Step | None) -> dict[str, int]:
    """Groups of each task that the next part takes: its share of the quotas, less what the step already has."""
    sizes, taken = state.plan.part_sizes, Counter(group.task for group in step.groups) if step else Counter()
    index = _parts_taken(sizes, taken.total())
    until, whole = sum(sizes[: index + 1]), state.plan.groups
    quotas = current_quotas(state)
    exact = {task: quota * until / whole for task, quota in quotas.items()}
    rounded = {task: int(share) for task, share in exact.items()}
    by_remainder = sorted(exact, key=lambda task: (rounded[task] - exact[task], task))
    for task in by_remainder[: until - sum(rounded.values())]:
        rounded[task] += 1
    return {task: max(0, rounded[task] - taken[task]) for task in quotas}


def _parts_taken(sizes: tuple[int, ...], n_groups: int) -> int:
    return next(index for index in range(len(sizes) + 1) if sum(sizes[:index]) >= n_groups)


def _choose(state: JobState, step: Step | None, now: float) -> list[Group] | None:
    ready = takeable(state)
    size = state.plan.part_sizes[_parts_taken(state.plan.part_sizes, len(step.groups) if step else 0)]
    chosen: list[Group] = []
    for task, wanted in _wanted(state, step).items():
        chosen += [group for group in ready if group.task == task][:wanted]
    if len(chosen) == size:
        state.marks.pop("quota_short", None)
        return chosen
    since = state.marks.setdefault("quota_short", now)
    if len(ready) < size or now - since < state.plan.limits.quota_patience_s:
        return None
    taken = {group.id for group in chosen}
    lenders = [group for group in ready if group.id not in taken]
    return (chosen + lenders)[:size]


def _count_lent(state: JobState, step: Step | None, chosen: list[Group]) -> None:
    """Called before the groups are in the step."""
    beyond = Counter(group.task for group in chosen)
    beyond.subtract(_wanted(state, step))
    state.counters["quota_lent"] += sum(count for count in beyond.values() if count > 0)
    state.marks.pop("quota_short", None)


def _must_wait(state: JobState, now: float) -> bool:
    """`on_stale: wait`: groups that this take would push past alpha are still on their way and not yet late."""
    alpha = state.plan.policy.alpha
    deadline = state.marks.get("committed", now) + state.plan.limits.stale_deadline_s
    if alpha is None or now >= deadline:
        return False
    on_their_way = state.train_groups(GroupState.OPEN, GroupState.COMPLETE)
    return any(alpha in state.lags(group) for group in on_their_way)


def _begin(state: JobState, now: float) -> Step:
    version = state.lineage.current
    assert version is not None
    step = Step(
        step=state.step + 1,
        batch_digest="",
        policy_version=version,
        publish_version=state.next_version,
        groups=(),
        n_tokens=0,
        sampled_at=now,
    )
    state.next_version += 1
    state.training = step.step
    state.filtered_since_step = 0
    _record_waits(state, step, now)
    return step


def _sample(state: JobState, step: Step, chosen: list[Group], now: float) -> None:
    """Adds the groups to the step's batch: their members are `sampled`."""
    members = [member for group in chosen for member in group.in_state(AttemptState.READY)]
    weights = _weights(state, members)
    step.groups += tuple(_batch_group(state, group, step, weights, now) for group in chosen)
    step.n_tokens += sum(member.n_generated_tokens for member in members)
    step.batch_digest = batch_digest(step.groups)
    step.seconds["sampling"] = now - step.sampled_at  # from the first part to the last
    state.store_step(step)


def _weights(state: JobState, members: list[Attempt]) -> dict[Key, float]:
    """Inverse-propensity weights against what redundancy and staleness selected; none where the job wants none."""
    cap = state.plan.selection_cap
    if cap is None:
        return {}
    found = state.censoring.weights([(member.task, member.n_generated_tokens) for member in members], cap)
    return {member.key: weight for member, weight in zip(members, found, strict=True)}


def _batch_group(state: JobState, group: Group, step: Step, weights: dict[Key, float], now: float) -> BatchGroup:
    members = []
    spread = accounting.version_spread(group, state)
    state.histograms[f"{group.task}/trained/version_spread/{spread}"] += 1
    for member in sorted(group.in_state(AttemptState.READY), key=lambda m: m.sibling):
        lag = state.lineage.lag(member.start_version) if member.start_version is not None else None
        assert may_take(lag, state.plan.policy.alpha) and lag is not None, (member.key, lag)
        state.counters["max_trained_lag"] = max(state.counters["max_trained_lag"], lag)
        member.sample_version = state.lineage.current  # of this part: a restore may lie between two
        member.step = step.step
        state.move(member, AttemptState.SAMPLED, now)
        accounting.sampled(state, member)
        member.weight = weights.get(member.key, 1.0)
        row = (member.key, member.sibling, member.token_blob, member.reward, member.is_truncated, lag, member.weight)
        members.append(BatchMember(*row))
    group.step = step.step
    state.move_group(group, GroupState.TAKEN, now)
    return BatchGroup(group.id, group.task, tuple(members))


def parts_of(state: JobState, step: Step) -> list[TrainStep]:
    """The commands that hand the step's batch to the trainer, as far as it has been taken."""
    version = state.lineage.current
    assert version is not None
    sizes = state.plan.part_sizes
    parts, begin = [], 0
    for index, size in enumerate(sizes):
        if begin >= len(step.groups):
            break
        end = begin + size
        digest = step.batch_digest if end >= len(step.groups) else batch_digest(step.groups[:end])
        groups = step.groups[begin:end]
        parts.append(TrainStep(step.step, digest, version, step.publish_version, groups, index, len(sizes)))
        begin = end
    return parts


def _record_waits(state: JobState, step: Step, now: float) -> None:
    """The wall time between the last commit and this take, in consecutive parts.

    Workers that load on their own keep nobody waiting: there all of it is the wait for a batch.
    """
    marks = {} if state.plan.policy.load_at == "drain" else state.marks
    committed = state.marks.get("committed", now)
    resident = marks.get("resident", committed)
    loaded = marks.get("loaded", resident)
    step.seconds["exposed_pull"] = max(0.0, resident - committed)
    step.seconds["load"] = max(0.0, loaded - resident)
    step.seconds["buffer_wait"] = max(0.0, now - loaded)


def batch_digest(batch: tuple[BatchGroup, ...]) -> str:
    """sha256 over what the trainer will use: group and member ids, token blobs, rewards and weights."""
    rows = [
        [group.group_id, [[*member.key, member.token_blob, member.reward, member.weight] for member in group.members]]
        for group in batch
    ]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def has_ended(state: JobState) -> bool:
    """No further batch can ever be filled: the tasks ran out of prompts and nothing that runs could fill one.

    A step that was taken in part then stays without its last groups.
    """
    if state.is_batch_out or any(has_prompts(state, task.name) for task in state.plan.tasks):
        return False
    n_taken = len(state.step_out.groups) if state.step_out else 0
    return n_taken + len(state.train_groups(*_WAITING)) < state.plan.groups
