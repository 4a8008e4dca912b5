"""Staleness and the take: what may still be trained, and when the next batch leaves the buffer.

The check at the take is the guarantee that max L <= alpha over everything trained; see headrace.core.staleness.
"""

import hashlib
import json

from headrace.core.job import groups as group_rules
from headrace.core.job.actions import Action, Announce, TrainStep
from headrace.core.job.admission import current_quotas, has_prompts
from headrace.core.job.rows import BatchGroup, BatchMember, Group, GroupState, Step
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
    """Takes the next batch if everything allows it: one step out at a time, weights settled, quotas filled."""
    if not _may_take(state):
        return []
    chosen = _choose(state, now)
    if chosen is None or (state.plan.policy.on_stale == "wait" and _must_wait(state, now)):
        return []
    step = _sample(state, chosen, now)
    return [
        TrainStep(step.step, step.batch_digest, step.policy_version, step.publish_version, step.groups),
        Announce("step.sampled", {"step": step.step, "groups": len(chosen), "policy_version": step.policy_version}),
        *evict(state, now),
    ]


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
    """Ready groups with L <= alpha, earliest v0 first, then arrival."""
    found = []
    for group in state.train_groups(GroupState.READY):
        lags = state.lags(group)
        if lags and all(may_take(lag, state.plan.policy.alpha) for lag in lags):
            found.append((-max(_known(lags)), group.ready_order or 0, group))
    return [group for _, _, group in sorted(found, key=lambda entry: entry[:2])]


def can_fill(state: JobState) -> bool:
    """Whether the ready groups fill every task's quota."""
    ready = takeable(state)
    return all(sum(group.task == task for group in ready) >= quota for task, quota in current_quotas(state).items())


def _choose(state: JobState, now: float) -> list[Group] | None:
    ready = takeable(state)
    chosen: list[Group] = []
    for task, quota in current_quotas(state).items():
        chosen += [group for group in ready if group.task == task][:quota]
    if len(chosen) == state.plan.groups:
        state.marks.pop("quota_short", None)
        return chosen
    if len(ready) < state.plan.groups:
        return None
    since = state.marks.setdefault("quota_short", now)
    if now - since < state.plan.limits.quota_patience_s:
        return None
    taken = {group.id for group in chosen}
    lenders = [group for group in ready if group.id not in taken]
    state.counters["quota_lent"] += state.plan.groups - len(chosen)
    state.marks.pop("quota_short", None)
    return chosen + lenders[: state.plan.groups - len(chosen)]


def _must_wait(state: JobState, now: float) -> bool:
    """`on_stale: wait`: groups that this take would push past alpha are still on their way and not yet late."""
    alpha = state.plan.policy.alpha
    deadline = state.marks.get("committed", now) + state.plan.limits.stale_deadline_s
    if alpha is None or now >= deadline:
        return False
    on_their_way = state.train_groups(GroupState.OPEN, GroupState.COMPLETE)
    return any(alpha in state.lags(group) for group in on_their_way)


def _sample(state: JobState, chosen: list[Group], now: float) -> Step:
    version = state.lineage.current
    assert version is not None
    step_number = state.step + 1
    batch = tuple(_batch_group(state, group, version, step_number, now) for group in chosen)
    step = Step(
        step=step_number,
        batch_digest=batch_digest(batch),
        policy_version=version,
        publish_version=state.next_version,
        groups=batch,
        n_tokens=sum(m.n_generated_tokens for g in chosen for m in g.in_state(AttemptState.SAMPLED)),
        sampled_at=now,
    )
    state.next_version += 1
    state.training = step_number
    state.filtered_since_step = 0
    _record_waits(state, step, now)
    state.store_step(step)
    return step


def _batch_group(state: JobState, group: Group, version: int, step: int, now: float) -> BatchGroup:
    members = []
    for member in sorted(group.in_state(AttemptState.READY), key=lambda m: m.sibling):
        lag = state.lineage.lag(member.start_version) if member.start_version is not None else None
        assert may_take(lag, state.plan.policy.alpha) and lag is not None, (member.key, lag)
        state.counters["max_trained_lag"] = max(state.counters["max_trained_lag"], lag)
        member.sample_version = version
        member.step = step
        state.move(member, AttemptState.SAMPLED, now)
        members.append(
            BatchMember(member.key, member.sibling, member.token_blob, member.reward, member.is_truncated, lag)
        )
    group.step = step
    state.move_group(group, GroupState.TAKEN, now)
    return BatchGroup(group.id, group.task, tuple(members))


def _record_waits(state: JobState, step: Step, now: float) -> None:
    """The wall time between the last commit and this take, in consecutive parts."""
    committed = state.marks.get("committed", now)
    resident = state.marks.get("resident", committed)
    loaded = state.marks.get("loaded", resident)
    step.seconds["exposed_pull"] = max(0.0, resident - committed)
    step.seconds["load"] = max(0.0, loaded - resident)
    step.seconds["buffer_wait"] = max(0.0, now - loaded)


def batch_digest(batch: tuple[BatchGroup, ...]) -> str:
    """sha256 over what the trainer will use: group and member ids, token blobs and rewards."""
    rows = [
        [group.group_id, [[*member.key, member.token_blob, member.reward] for member in group.members]]
        for group in batch
    ]
    return hashlib.sha256(json.dumps(rows, separators=(",", ":")).encode()).hexdigest()


def has_ended(state: JobState) -> bool:
    """No further batch can ever be filled: the tasks ran out of prompts and nothing that runs could fill one."""
    if state.is_batch_out or any(has_prompts(state, task.name) for task in state.plan.tasks):
        return False
    return len(state.train_groups(*_WAITING)) < state.plan.groups
