"""What environment processes and reward workers report about attempts."""

import math

from headrace.core.job import accounting, evaluation, groups
from headrace.core.job.actions import AbortAttempt, AcknowledgeAttempt, Action, Announce, ScoreAttempt
from headrace.core.job.admission import assignment
from headrace.core.job.events import AttemptFailed, AttemptFinished, AttemptStarted, EnvLost, EnvOpened, RewardReported
from headrace.core.job.rows import Attempt, Key
from headrace.core.job.state import EnvProcess, JobState
from headrace.core.ledger import AttemptState

_GENERATING = (AttemptState.QUEUED, AttemptState.RUNNING)
LAST_WORD_S = 60.0


def env_opened(state: JobState, event: EnvOpened) -> list[Action]:
    """A process (re)opened: what it should have in hand and has not is sent again; unknown work is stopped by it."""
    env = state.envs.setdefault(event.worker_id, EnvProcess(event.worker_id, event.slots))
    env.slots = event.slots
    actions: list[Action] = [
        AbortAttempt(key, event.worker_id, "unknown") for key in sorted(event.in_hand) if not _is_generating(state, key)
    ]
    for attempt in state.attempts.values():
        if attempt.env_worker_id == event.worker_id and attempt.state in _GENERATING:
            env.assigned.add(attempt.key)
            if attempt.key not in event.in_hand:
                actions.append(assignment(state, attempt))
    return actions


def _is_generating(state: JobState, key: Key) -> bool:
    attempt = state.attempts.get(key)
    return attempt is not None and attempt.state in _GENERATING


def env_lost(state: JobState, event: EnvLost, now: float) -> list[Action]:
    """Every live episode on it is lost: new attempts with the same environment seeds."""
    env = state.envs.pop(event.worker_id, None)
    if env is None and not any(a.env_worker_id == event.worker_id for a in state.attempts.values()):
        return []
    actions: list[Action] = [Announce("env.lost", {"worker": event.worker_id})]
    for attempt in list(state.attempts.values()):
        if attempt.env_worker_id == event.worker_id and attempt.state in _GENERATING:
            actions += _lost(state, attempt, AttemptState.FAILED_INFRA, "environment process lost", now)
    return actions


def started(state: JobState, event: AttemptStarted, now: float) -> list[Action]:
    attempt = state.attempts.get(event.key)
    if attempt is None or attempt.state is not AttemptState.QUEUED:
        return []
    attempt.start_version = event.start_version
    attempt.started_at = now
    state.move(attempt, AttemptState.RUNNING, now)
    return []


def finished(state: JobState, event: AttemptFinished, now: float) -> list[Action]:
    """Stores the outcome once; whoever reports it again, or too late, is only acknowledged."""
    actions: list[Action] = [AcknowledgeAttempt(event.key, event.env_worker_id)]
    if (closed := state.closing.pop(event.key, None)) is not None:
        accounting.stopped(state, closed, event.n_generated_tokens, event.discarded_tokens)
    attempt = state.attempts.get(event.key)
    if attempt is None or attempt.state not in _GENERATING:
        return actions
    _record(state, attempt, event, now)
    state.free_env(attempt)
    state.move(attempt, AttemptState.SCORING, now)
    state.store_segments(attempt)
    task = state.plan.task(attempt.task)
    if attempt.n_generated_tokens == 0:
        return actions + _lost(state, attempt, AttemptState.UNSCORABLE, "empty: no token was generated", now)
    if attempt.start_version is None:
        return actions + _lost(state, attempt, AttemptState.UNSCORABLE, "its tokens name no policy version", now)
    attempt.pending_rewards = set(task.reward_names)
    if task.has_env_reward and (event.env_reward is None or not math.isfinite(event.env_reward)):
        return actions + _lost(state, attempt, AttemptState.UNSCORABLE, "the environment gave no reward", now)
    attempt.reward = task.env_reward_weight * event.env_reward if task.has_env_reward and event.env_reward else 0.0
    if not attempt.pending_rewards:
        return actions + _scored(state, attempt, now)
    if attempt.purpose == "train":
        actions += groups.settle(state, state.groups[attempt.group_id], now)
    if state.plan.policy.reward == "at_end_of_trajectory" and attempt.state is AttemptState.SCORING:
        actions.append(_score(state, attempt, now))
    return actions


def _record(state: JobState, attempt: Attempt, event: AttemptFinished, now: float) -> None:
    attempt.token_blob = event.token_blob
    attempt.grading_blob = event.grading_blob
    attempt.n_tokens = event.n_tokens
    attempt.n_generated_tokens = event.n_generated_tokens
    attempt.n_turns = event.n_turns
    attempt.segments = event.segments
    attempt.finish_reason = event.finish_reason
    attempt.is_truncated = event.is_truncated
    attempt.phases = event.phases
    attempt.discarded_tokens = event.discarded_tokens
    attempt.invalid_actions = event.invalid_actions
    graded = state.plan.task(attempt.task).reward_names  # such a name means: this grader has reported
    attempt.reward_components = {k: v for k, v in event.reward_components.items() if k not in graded}
    attempt.finished_at = now
    state.totals["tokens"] = state.totals.get("tokens", 0.0) + event.n_tokens
    state.totals["trajectories"] = state.totals.get("trajectories", 0.0) + 1
    attempt.finish_version = state.lineage.current
    attempt.start_version = event.segments[0].policy_version if event.segments else attempt.start_version
    state.ledger.discarded_tokens += event.discarded_tokens


def score_waiting(state: JobState, now: float) -> list[Action]:
    """With `at_end_of_batch`: sends rewards to be computed when the last trajectory of the batch has ended."""
    if state.plan.policy.reward != "at_end_of_batch":
        return []
    waiting = [a for a in state.attempts.values() if a.state is AttemptState.SCORING and a.reward_deadline is None]
    running = any(a.purpose == "train" and a.state in _GENERATING for a in state.attempts.values())
    waiting = [a for a in waiting if a.purpose == "eval" or not running]
    return [_score(state, attempt, now) for attempt in waiting if attempt.pending_rewards]


def _score(state: JobState, attempt: Attempt, now: float) -> Action:
    attempt.reward_try += 1
    attempt.reward_deadline = now + state.plan.task(attempt.task).reward_timeout_s * attempt.reward_try
    names = tuple(sorted(attempt.pending_rewards))
    return ScoreAttempt(attempt.key, attempt.task, names, attempt.grading_blob, attempt.reward_try)


def rewarded(state: JobState, event: RewardReported, now: float) -> list[Action]:
    attempt = state.attempts.get(event.key)
    if attempt is None or attempt.state is not AttemptState.SCORING or event.reward_name not in attempt.pending_rewards:
        return []
    if event.is_retryable and attempt.reward_try < state.plan.limits.reward_tries:
        state.counters["rewards_retried"] += 1
        return [_score(state, attempt, now)]
    attempt.pending_rewards.discard(event.reward_name)
    has_abstained = event.score is None and not event.fault
    if event.score is not None and math.isfinite(event.score):
        _add_score(state, attempt, event, event.score)
    elif not has_abstained or not (attempt.pending_rewards or _has_score(state, attempt)):
        reason = f"reward {event.reward_name}: {event.fault or 'abstained'}"
        return _lost(state, attempt, AttemptState.UNSCORABLE, reason, now)
    return [] if attempt.pending_rewards else _scored(state, attempt, now)


def _add_score(state: JobState, attempt: Attempt, event: RewardReported, score: float) -> None:
    task = state.plan.task(attempt.task)
    weight = dict(zip(task.reward_names, task.reward_weights, strict=True))[event.reward_name]
    attempt.reward = (attempt.reward or 0.0) + weight * score
    attempt.reward_components[event.reward_name] = score
    attempt.reward_components.update({f"{event.reward_name}/{k}": v for k, v in event.components.items()})
    state.touch(attempt)


def _has_score(state: JobState, attempt: Attempt) -> bool:
    """Whether anything but abstentions made up the reward: a sum of nothing is no 0."""
    task = state.plan.task(attempt.task)
    return task.has_env_reward or any(name in attempt.reward_components for name in task.reward_names)


def _scored(state: JobState, attempt: Attempt, now: float) -> list[Action]:
    group = state.groups[attempt.group_id]
    if group.purpose == "eval":
        state.move(attempt, AttemptState.EVALUATED, now)
        return evaluation.member_changed(state, group, attempt, now)
    state.move(attempt, AttemptState.READY, now)
    return groups.settle(state, group, now)


def failed(state: JobState, event: AttemptFailed, now: float) -> list[Action]:
    actions: list[Action] = [AcknowledgeAttempt(event.key, event.env_worker_id)]
    if (closed := state.closing.pop(event.key, None)) is not None:
        accounting.stopped(state, closed, event.n_generated_tokens, event.discarded_tokens)
    attempt = state.attempts.get(event.key)
    if attempt is None or attempt.state not in _GENERATING:
        return actions
    attempt.n_generated_tokens = event.n_generated_tokens
    attempt.discarded_tokens = event.discarded_tokens
    attempt.phases = event.phases
    attempt.fault = {"kind": event.kind, "code": event.code, "detail": event.detail}
    state.ledger.discarded_tokens += event.discarded_tokens
    to = AttemptState.FAILED_ENV if event.kind == "env" else AttemptState.FAILED_INFRA
    return actions + _lost(state, attempt, to, f"{event.code}: {event.detail}", now)


def _lost(state: JobState, attempt: Attempt, to: AttemptState, reason: str, now: float) -> list[Action]:
    actions = groups.lose(state, attempt, to, now, reason)
    group = state.groups[attempt.group_id]
    if group.purpose == "eval":
        actions += evaluation.member_changed(state, group, attempt, now)
    else:
        actions += groups.settle(state, group, now)
    data = {"trajectory": attempt.key.trajectory_id, "attempt": attempt.key.attempt, "state": to.value}
    return [*actions, Announce("attempt.lost", {**data, "task": attempt.task, "reason": reason})]


def expire(state: JobState, now: float) -> list[Action]:
    """Rewards past their deadline are sent again, then unscorable; episodes nobody reports on are given up."""
    actions: list[Action] = []
    for key in [k for k, a in state.closing.items() if now - (a.closed_at or now) > LAST_WORD_S]:
        closed = state.closing.pop(key)
        accounting.stopped(state, closed, closed.n_generated_tokens, 0)
    for attempt in list(state.attempts.values()):
        if attempt.key not in state.attempts:
            continue  # left with its group a moment ago
        if attempt.state is AttemptState.SCORING:
            actions += _look_at_rewards(state, attempt, now)
        elif attempt.state in _GENERATING and attempt.env_worker_id and _is_overdue(state, attempt, now):
            actions += _give_up_on(state, attempt, now)
    return actions


def _look_at_rewards(state: JobState, attempt: Attempt, now: float) -> list[Action]:
    if attempt.reward_deadline is None:
        if state.plan.policy.reward == "at_end_of_trajectory":  # sent by the runner before: its deadline begins anew
            attempt.reward_try = max(1, attempt.reward_try)
            attempt.reward_deadline = now + state.plan.task(attempt.task).reward_timeout_s * attempt.reward_try
        return []
    return _reward_overdue(state, attempt, now) if now >= attempt.reward_deadline else []


def _reward_overdue(state: JobState, attempt: Attempt, now: float) -> list[Action]:
    if attempt.reward_try >= state.plan.limits.reward_tries:
        names = ", ".join(sorted(attempt.pending_rewards))
        return _lost(state, attempt, AttemptState.UNSCORABLE, f"rewards {names}: no report in time", now)
    state.counters["rewards_resent"] += 1
    return [_score(state, attempt, now)]


def _is_overdue(state: JobState, attempt: Attempt, now: float) -> bool:
    """Twice the episode's own deadline, which the environment process enforces, plus what waiting for it may take."""
    if state.paused_at is not None:
        return False
    since = max(attempt.issued_at, state.totals.get("resumed", 0.0))
    return now - since > 2 * state.plan.task(attempt.task).episode_s + 60.0


def _give_up_on(state: JobState, attempt: Attempt, now: float) -> list[Action]:
    abort = AbortAttempt(attempt.key, attempt.env_worker_id, "overdue")
    return [abort, *_lost(state, attempt, AttemptState.FAILED_INFRA, "no report of the episode in time", now)]
