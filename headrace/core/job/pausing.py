"""Pause: no admission, no new turns, and n is frozen once the step that is out has committed.

Environments wait with their episodes for `pause_ttl_s`; past that the episodes are given up and their prompts kept.
Deadlines of episodes and of an evaluation do not run while the job is paused.
"""

from headrace.core.job import evaluation, groups
from headrace.core.job.actions import Action, Announce, PauseRollout, ResumeRollout
from headrace.core.job.rows import GroupState
from headrace.core.job.state import JobState, Phase, Requeue
from headrace.core.ledger import AttemptState

REASON = "pause_ttl"


def pause(state: JobState, now: float) -> list[Action]:
    """A step that is out is finished first. A job that is closing its trainer is as good as over: it goes on."""
    if state.phase not in (Phase.RUNNING, Phase.STARTING) or "closing" in state.marks:
        return []
    state.set_phase(Phase.PAUSING)
    state.paused_at = now
    return [PauseRollout(), Announce("job.pausing"), *settle(state)]


def settle(state: JobState) -> list[Action]:
    if state.phase is not Phase.PAUSING or state.is_batch_out or state.publishing is not None:
        return []
    state.set_phase(Phase.PAUSED)
    return [Announce("job.paused")]


def resume(state: JobState, now: float) -> list[Action]:
    if state.phase not in (Phase.PAUSING, Phase.PAUSED):
        return []
    is_started = state.lineage.current is not None
    state.set_phase(Phase.RUNNING if is_started else Phase.STARTING)
    paused_s = paused_for(state, now)
    state.paused_at = None
    state.totals["paused_s"] = state.totals.get("paused_s", 0.0) + paused_s
    state.totals["resumed"] = now
    state.marks["progress"] = now
    if state.evaluation is not None:
        state.evaluation.deadline += paused_s
    return [ResumeRollout(), Announce("job.resumed")]


def paused_for(state: JobState, now: float) -> float:
    """Seconds of the pause that goes on now."""
    return 0.0 if state.paused_at is None else now - state.paused_at


def expire(state: JobState, now: float) -> list[Action]:
    """Past `pause_ttl_s` groups that are not ready leave; their prompts come back without counting as a requeue."""
    if state.paused_at is None or paused_for(state, now) <= state.plan.limits.pause_ttl_s:
        return []
    actions: list[Action] = []
    for group in state.train_groups(GroupState.OPEN, GroupState.COMPLETE):
        actions += groups.drop(state, group, now, AttemptState.ABORTED, REASON)
        state.requeues.append(Requeue(group.task, group.env_seed, group.id, group.requeues))
        state.counters["requeued"] += 1
    return actions + evaluation.release(state, now, REASON)
