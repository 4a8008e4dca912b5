"""Members of a group end: refill, shrink, ready, drop. Siblings run on their own and are consumed together.

open ──all survivors finished──► complete ──group_size scorable──► ready ──► taken
  └───────────────── stale, off lineage, short of members, filtered ──────► dropped(reason)
"""

from headrace.core.job import accounting
from headrace.core.job.actions import AbortAttempt, Action, Announce
from headrace.core.job.rows import Attempt, Group, GroupState, Key
from headrace.core.job.state import JobState, Requeue
from headrace.core.ledger import IN_FLIGHT, REFILLED, AttemptState

ZERO_VARIANCE = 1e-6
_GENERATING = (AttemptState.QUEUED, AttemptState.RUNNING)


def lose(state: JobState, attempt: Attempt, to: AttemptState, now: float, reason: str = "") -> list[Action]:
    """One attempt leaves under a name; a running episode is told to stop."""
    actions: list[Action] = []
    if attempt.state in _GENERATING and attempt.env_worker_id and to not in REFILLED:
        actions.append(AbortAttempt(attempt.key, attempt.env_worker_id, to.value))
    state.free_env(attempt)
    if attempt.pending_rewards or to is AttemptState.UNSCORABLE:
        attempt.reward = None  # a sum that lacks a score is no reward
    state.move(attempt, to, now, reason)
    accounting.closed(state, attempt)
    return actions


def settle(state: JobState, group: Group, now: float) -> list[Action]:
    """Looks at a group after one of its members changed."""
    if group.state not in (GroupState.OPEN, GroupState.COMPLETE):
        return []
    scorable = len(group.in_state(AttemptState.READY))
    if scorable >= _needed(state, group):
        return _make_ready(state, group, now)
    survivors = group.live
    if len(survivors) < _needed(state, group):
        actions = _refill(state, group, now)
        if group.state is GroupState.OPEN or group.state is GroupState.COMPLETE:
            _reopen(state, group, now)
        return actions
    if group.state is GroupState.OPEN and not group.in_state(*_GENERATING):
        state.move_group(group, GroupState.COMPLETE, now)
    return []


def _reopen(state: JobState, group: Group, now: float) -> None:
    if group.state is GroupState.COMPLETE and group.in_state(*_GENERATING):
        state.move_group(group, GroupState.OPEN, now)


def _needed(state: JobState, group: Group) -> int:
    """How many scorable members make the group ready. Shrunken groups need what can still survive, at least two."""
    size = state.plan.group_size
    if state.plan.on_short != "shrink":
        return size
    possible = len(group.live) + sum(1 for sibling in _dead_siblings(group) if _tries(state, group, sibling) > 0)
    return min(size, max(2, possible))


def _dead_siblings(group: Group) -> list[int]:
    """Siblings with no member in flight whose last attempt was lost for a reason that refills."""
    alive = {member.sibling for member in group.live}
    lost = {member.sibling for member in group.members.values() if member.state in REFILLED}
    return sorted(lost - alive)


def _tries(state: JobState, group: Group, sibling: int) -> int:
    issued = sum(1 for member in group.members.values() if member.sibling == sibling)
    return state.plan.limits.max_attempts - issued


def _refill(state: JobState, group: Group, now: float) -> list[Action]:
    """A new attempt for each lost sibling that may still be tried, as far as the group lacks members."""
    lacking = _needed(state, group) - len(group.live)
    refillable = [sibling for sibling in _dead_siblings(group) if _tries(state, group, sibling) > 0]
    if lacking > len(refillable):
        return drop(state, group, now, AttemptState.GROUP_DROPPED, _short_reason(state, group))
    for sibling in refillable[:lacking]:
        last = max((m for m in group.members.values() if m.sibling == sibling), key=lambda m: m.key.attempt)
        again = Attempt(
            Key(last.key.trajectory_id, last.key.attempt + 1),
            group.id,
            group.purpose,
            group.task,
            sibling,
            "refill",
            last.mode,
            issued_at=now,
        )
        state.issue(again)
        state.counters["refills"] += 1
    return []


def _short_reason(state: JobState, group: Group) -> str:
    lost = [member for member in group.members.values() if member.state in REFILLED]
    last = max(lost, key=lambda member: member.closed_at or 0.0, default=None)
    if last is None:
        return "short of members"
    return f"{last.state.value}: {last.reason or 'no detail'}"


def _make_ready(state: JobState, group: Group, now: float) -> list[Action]:
    actions: list[Action] = []
    scorable = sorted(group.in_state(AttemptState.READY), key=lambda m: (m.finished_at or 0.0, m.sibling))
    surplus = scorable[state.plan.group_size :]
    for member in [*surplus, *group.in_state(*(IN_FLIGHT - {AttemptState.READY}))]:
        actions += lose(state, member, AttemptState.SURPLUS, now, "group had enough members")
    kept = scorable[: state.plan.group_size]
    state.failed_in_a_row = 0
    state.move_group(group, GroupState.READY, now)
    if state.plan.filter != "zero_variance" or not _is_flat(kept):
        return actions
    if state.filtered_since_step >= state.plan.limits.max_filtered * state.plan.groups:
        # The step is filled with such groups, which train nothing.
        state.counters["filled_without_variance"] += 1
        data = {"group": group.id, "task": group.task, "filtered": state.filtered_since_step}
        return [*actions, Announce("filter.exhausted", data)]
    state.filtered_since_step += 1
    return actions + drop(state, group, now, AttemptState.FILTERED, "zero variance")


def _is_flat(members: list[Attempt]) -> bool:
    rewards = [member.reward for member in members if member.reward is not None]
    return max(rewards) - min(rewards) <= ZERO_VARIANCE


def drop(
    state: JobState, group: Group, now: float, exit_state: AttemptState, reason: str, *, is_requeued: bool = False
) -> list[Action]:
    """The whole group leaves; members still in flight share `exit_state`."""
    actions: list[Action] = []
    for member in group.live:
        actions += lose(state, member, exit_state, now, reason)
    state.move_group(group, GroupState.DROPPED, now, f"{exit_state.value}: {reason}")
    state.counters[f"groups_dropped/{exit_state.value}"] += 1
    if exit_state is AttemptState.GROUP_DROPPED and group.purpose == "train":
        state.failed_in_a_row += 1
        state.last_error = reason
    data = {"group": group.id, "task": group.task, "reason": exit_state.value, "detail": reason}
    actions.append(Announce("group.dropped", data))
    return actions + (_requeue(state, group, reason) if is_requeued else [])


def _requeue(state: JobState, group: Group, reason: str) -> list[Action]:
    """The prompt is to be played again. One that never gets through is told of, lest slow prompts vanish unseen."""
    if group.requeues >= state.plan.limits.max_requeues:
        state.counters["prompts_given_up"] += 1
        data = {"task": group.task, "env_seed": str(group.env_seed), "times": group.requeues + 1, "detail": reason}
        return [Announce("prompt.given_up", data)]
    state.counters["requeued"] += 1
    state.requeues.append(Requeue(group.task, group.env_seed, group.id, group.requeues + 1))
    return []
