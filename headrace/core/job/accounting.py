"""What the job's losses and waits look like: staleness in its three parts, what selection kept and killed, the buffer.

s_gen = M_f - v0, residence = M_t - M_f, s_train = M_t - v0, in updates (differences of depths), by task, apart for what
was trained and for what was dropped under which name.
"""

from headrace.core.job.rows import Attempt, Group
from headrace.core.job.state import JobState
from headrace.core.ledger import AttemptState

_CENSORED = frozenset({AttemptState.SURPLUS, AttemptState.EVICTED_STALE})


def sampled(state: JobState, member: Attempt) -> None:
    """A member goes into a batch: it was kept, and its staleness is final."""
    _count_staleness(state, member, "trained")
    state.censoring.keep(member.task, member.n_generated_tokens, member.reward)


def closed(state: JobState, attempt: Attempt) -> None:
    """A training attempt left without being trained. One that still ran tells its tokens later, when it has stopped."""
    if attempt.purpose != "train":
        return
    _count_staleness(state, attempt, attempt.state.value)
    has_spoken = attempt.finished_at is not None or bool(attempt.fault)
    if not has_spoken and attempt.env_worker_id and attempt.start_version is not None:
        state.closing[attempt.key] = attempt
    elif attempt.state in _CENSORED:
        state.censoring.kill(attempt.task, attempt.n_generated_tokens, _known_reward(attempt))


def stopped(state: JobState, attempt: Attempt, n_generated_tokens: int, discarded_tokens: int) -> None:
    """The last word of an attempt that was killed while it ran: the tokens it had."""
    attempt.n_generated_tokens = n_generated_tokens
    attempt.discarded_tokens = discarded_tokens
    state.ledger.tokens[attempt.purpose, attempt.task, attempt.state.value] += n_generated_tokens
    state.ledger.discarded_tokens += discarded_tokens
    state.touch(attempt)
    if attempt.state in _CENSORED:
        state.censoring.kill(attempt.task, n_generated_tokens, _known_reward(attempt))


def _known_reward(attempt: Attempt) -> float | None:
    """What it would have been trained with: unknown while a grader has not reported, whatever the others said."""
    return None if attempt.pending_rewards else attempt.reward


def version_spread(group: Group, state: JobState) -> int:
    """Largest difference in depth between the start versions of a group's members."""
    depths = [state.lineage.depth(m.start_version) for m in group.live if m.start_version is not None]
    return max(depths) - min(depths) if depths else 0


def _count_staleness(state: JobState, attempt: Attempt, outcome: str) -> None:
    """Only along the live line: between versions of different branches there is no number of updates."""
    if attempt.start_version is None or (lag := state.lineage.lag(attempt.start_version)) is None:
        return
    parts = {"s_train": lag}
    if attempt.finish_version is not None and (residence := state.lineage.lag(attempt.finish_version)) is not None:
        parts |= {"s_gen": lag - residence, "residence": residence}
    for name, value in parts.items():
        state.histograms[f"{attempt.task}/{outcome}/{name}/{value}"] += 1


def staleness(state: JobState) -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    """task -> outcome -> part -> {updates: count}."""
    tree: dict[str, dict[str, dict[str, dict[str, int]]]] = {}
    for path, count in sorted(state.histograms.items()):
        task, outcome, name, value = path.rsplit("/", 3)
        tree.setdefault(task, {}).setdefault(outcome, {}).setdefault(name, {})[value] = count
    return tree
