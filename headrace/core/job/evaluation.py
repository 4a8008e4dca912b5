"""Evaluation at one version with fixed held-out episodes, through the same services as training.

A group is one episode seed, its members are the modes (sampled, greedy). Nothing of it enters the buffer.
"""

from headrace.core.job.actions import Action, Announce, PinVersion
from headrace.core.job.admission import issue_attempt
from headrace.core.job.groups import lose
from headrace.core.job.rows import Attempt, Group, GroupState
from headrace.core.job.state import Evaluation, JobState, Phase
from headrace.core.ledger import REFILLED, AttemptState
from headrace.core.seeds import derive


def schedule_first(state: JobState) -> None:
    """Called once for a fresh job: the evaluation of version 0."""
    if state.plan.evaluation.episodes and state.plan.evaluation.at_start:
        state.eval_due.append(0)


def after_step(state: JobState, step: int, now: float) -> list[Action]:
    every = state.plan.evaluation.every
    is_periodic = every > 0 and step % every == 0 and step < state.plan.max_steps
    if state.plan.evaluation.episodes and is_periodic and not state.to_replay:
        state.eval_due.append(step)
    return []


def final_is_due(state: JobState) -> bool:
    plan = state.plan.evaluation
    return bool(plan.episodes and plan.at_end) and str(state.step) not in state.evaluated


def start(state: JobState, now: float) -> list[Action]:
    """Starts the next evaluation that is due, on the current version, once it is served."""
    version = state.lineage.current
    is_free = state.phase is Phase.RUNNING and state.evaluation is None
    if not is_free or not state.eval_due or version is None or not state.envs:
        return []
    if not any(worker.serving_version == version for worker in state.workers.values()):
        return []
    state.eval_due.pop(0)
    step = state.lineage.versions[version].step
    if str(step) in state.evaluated:
        return []
    plan = state.plan.evaluation
    state.evaluation = Evaluation(version, step, now + plan.deadline_s)
    for task in state.plan.tasks:
        for episode in range(plan.episodes):
            _open_episode(state, task.name, episode, version, step, now)
    return [
        PinVersion(version, plan.workers),
        Announce("evaluation.started", {"policy_version": version, "step": step}),
    ]


def _open_episode(state: JobState, task: str, episode: int, version: int, step: int, now: float) -> None:
    assert state.evaluation is not None
    group_id = f"grp_{state.plan.job_id.removeprefix('job_')}_eval{step:06d}v{version}_{task}_{episode:04d}"
    group = Group(group_id, state.ordinal, "eval", task, derive("evaluation", task, episode), version, now)
    state.ordinal += 1
    state.add_group(group)
    state.evaluation.open_groups.add(group.id)
    for sibling, mode in enumerate(state.plan.evaluation.modes):
        issue_attempt(state, group, sibling, "first", mode, now)


def member_changed(state: JobState, group: Group, attempt: Attempt, now: float) -> list[Action]:
    """A member was scored or lost: retry a loss, count a score, close the group when all its members ended."""
    running = state.evaluation
    if running is None or group.id not in running.open_groups:
        return []
    if attempt.state in REFILLED:
        _retry(state, group, attempt, now)
    if attempt.state is AttemptState.EVALUATED and attempt.reward is not None:
        running.scores.setdefault((group.task, attempt.mode), []).append(attempt.reward)
    if group.live:
        return []
    running.open_groups.discard(group.id)
    state.move_group(group, GroupState.EVALUATED, now)
    return [] if running.open_groups else _finish(state, now)


def _retry(state: JobState, group: Group, attempt: Attempt, now: float) -> None:
    tries = sum(1 for member in group.in_state(*REFILLED) if member.sibling == attempt.sibling)
    if tries >= state.plan.limits.max_attempts:
        assert state.evaluation is not None
        state.evaluation.lost += 1
        return
    _issue_again(state, group, attempt, now)


def _issue_again(state: JobState, group: Group, attempt: Attempt, now: float) -> None:
    key = attempt.key._replace(attempt=attempt.key.attempt + 1)
    state.issue(Attempt(key, group.id, "eval", group.task, attempt.sibling, "refill", attempt.mode, issued_at=now))


def expire(state: JobState, now: float) -> list[Action]:
    """Past its deadline an evaluation ends with what it has."""
    running = state.evaluation
    if running is None or state.paused_at is not None or now < running.deadline:
        return []
    actions: list[Action] = []
    for group_id in sorted(running.open_groups):
        group = state.groups[group_id]
        for member in group.live:
            running.lost += 1
            actions += lose(state, member, AttemptState.ABORTED, now, "evaluation deadline")
        state.move_group(group, GroupState.EVALUATED, now, "deadline")
    running.open_groups.clear()
    return actions + _finish(state, now)


def release(state: JobState, now: float, reason: str) -> list[Action]:
    """Gives up the episodes that run and issues them anew, for later; what was scored stays."""
    actions: list[Action] = []
    for group_id in sorted(state.evaluation.open_groups) if state.evaluation else []:
        group = state.groups[group_id]
        for member in group.in_state(AttemptState.QUEUED, AttemptState.RUNNING):
            if member.env_worker_id:
                actions += lose(state, member, AttemptState.ABORTED, now, reason)
                _issue_again(state, group, member, now)
    return actions


def _finish(state: JobState, now: float) -> list[Action]:
    running = state.evaluation
    assert running is not None
    means = {f"{task}/{mode}": sum(scores) / len(scores) for (task, mode), scores in running.scores.items()}
    state.evaluated[str(running.step)] = means
    state.evaluation = None
    state.marks.setdefault("progress", now)
    state.marks["progress"] = now
    data = {"policy_version": running.policy_version, "step": running.step, "means": means, "lost": running.lost}
    return [PinVersion(running.policy_version, 0), Announce("evaluation.finished", data)]
