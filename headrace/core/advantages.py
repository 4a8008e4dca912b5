"""Group-relative advantages over whole trajectories, and token-level returns for turn rewards.

Rewards of one group arrive as a sequence in sibling order, ``None`` for a member that could not be scored. Baselines
and deviations are over the scorable members alone; an unscorable member gets advantage 0 and trains no token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

ZERO_VARIANCE_RANGE = 1e-6
"""A group whose largest and smallest rewards differ by no more than this has no signal."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of one group, in the order of its rewards."""

    values: tuple[float, ...]
    n_scorable: int
    is_zero_variance: bool

    @property
    def is_trainable(self) -> bool:
        """False when every advantage is zero by construction, so that no member can move the policy."""
        return self.n_scorable > 1 and not self.is_zero_variance


Estimator = Callable[[Sequence[float | None]], GroupAdvantages]


def grpo(rewards: Sequence[float | None], *, epsilon: float = 1e-6) -> GroupAdvantages:
    """(r - mean) / (s + epsilon) with the unbiased deviation s (GRPO, Shao et al. 2024, section 4.1)."""

    def scale(scored: Sequence[float], mean: float) -> list[float]:
        deviation = sqrt(sum((reward - mean) ** 2 for reward in scored) / (len(scored) - 1))
        return [(reward - mean) / (deviation + epsilon) for reward in scored]

    return _over_scorable(rewards, scale)


def grpo_population(rewards: Sequence[float | None], *, epsilon: float = 1e-6) -> GroupAdvantages:
    """As ``grpo`` with the population deviation (divisor n)."""

    def scale(scored: Sequence[float], mean: float) -> list[float]:
        deviation = sqrt(sum((reward - mean) ** 2 for reward in scored) / len(scored))
        return [(reward - mean) / (deviation + epsilon) for reward in scored]

    return _over_scorable(rewards, scale)


def dr_grpo(rewards: Sequence[float | None]) -> GroupAdvantages:
    """r - mean, no division by the deviation (Dr. GRPO, Liu et al. 2025, equation 2)."""
    return _over_scorable(rewards, lambda scored, mean: [reward - mean for reward in scored])


def rloo(rewards: Sequence[float | None]) -> GroupAdvantages:
    """r minus the mean of the other members (RLOO, Ahmadian et al. 2024), written as (r - mean) n / (n - 1)."""

    def scale(scored: Sequence[float], mean: float) -> list[float]:
        factor = len(scored) / (len(scored) - 1)
        return [(reward - mean) * factor for reward in scored]

    return _over_scorable(rewards, scale)


def maxrl(rewards: Sequence[float | None], *, epsilon: float = 1e-6) -> GroupAdvantages:
    """(r - mean) / (mean + epsilon).

    Raises:
        ValueError: the group's mean reward is negative; dividing by it would turn the order of the rewards round.
    """

    def scale(scored: Sequence[float], mean: float) -> list[float]:
        if mean < 0:
            raise ValueError(f"maxrl needs a group mean >= 0, got {mean}; shift the rewards or use grpo")
        return [(reward - mean) / (mean + epsilon) for reward in scored]

    return _over_scorable(rewards, scale)


ESTIMATORS: Mapping[str, Estimator] = {
    "grpo": grpo,
    "grpo_population": grpo_population,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "maxrl": maxrl,
}


def estimator(name: str) -> Estimator:
    """The group estimator called ``name``.

    Raises:
        ValueError: no such estimator; the message lists those there are.
    """
    try:
        return ESTIMATORS[name]
    except KeyError:
        raise ValueError(f"advantage estimator {name!r} is unknown; choose one of {', '.join(ESTIMATORS)}") from None


def by_group(
    group_ids: Sequence[str], rewards: Sequence[float | None], estimate: Estimator = grpo
) -> tuple[tuple[float, ...], Mapping[str, GroupAdvantages]]:
    """Advantages row by row for rows of several groups in any order; rows are joined by group id only.

    Returns:
        The advantage of each row, and each group's result (its values in the order in which its rows came).
    """
    if len(group_ids) != len(rewards):
        raise ValueError(f"{len(group_ids)} group ids for {len(rewards)} rewards")
    rows: dict[str, list[int]] = {}
    for row, group_id in enumerate(group_ids):
        rows.setdefault(group_id, []).append(row)
    values = [0.0] * len(rewards)
    groups: dict[str, GroupAdvantages] = {}
    for group_id, members in rows.items():
        groups[group_id] = estimate([rewards[row] for row in members])
        for row, value in zip(members, groups[group_id].values, strict=True):
            values[row] = value
    return tuple(values), groups


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], mask: Sequence[int], *, discount: float, trace: float
) -> tuple[float, ...]:
    """GAE (Schulman et al. 2016, equation 16) over the tokens with mask 1, shape [T].

    Observation tokens (mask 0) are no timesteps: the next value and the running advantage pass across them unchanged,
    and their own advantage is 0.
    """
    result = [0.0] * len(mask)
    next_value = running = 0.0
    for t in range(len(mask) - 1, -1, -1):
        if not mask[t]:
            continue
        delta = rewards[t] + discount * next_value - values[t]
        running = delta + discount * trace * running
        result[t], next_value = running, values[t]
    return tuple(result)


def discounted_returns(rewards: Sequence[float], mask: Sequence[int], *, discount: float) -> tuple[float, ...]:
    """G_t = r_t + discount * G_{t+1} over the tokens with mask 1, shape [T]; carried across observation tokens."""
    result = [0.0] * len(mask)
    running = 0.0
    for t in range(len(mask) - 1, -1, -1):
        if mask[t]:
            running = rewards[t] + discount * running
            result[t] = running
    return tuple(result)


def _over_scorable(
    rewards: Sequence[float | None], scale: Callable[[Sequence[float], float], list[float]]
) -> GroupAdvantages:
    scored = [reward for reward in rewards if reward is not None]
    for index, reward in enumerate(rewards):
        if reward is not None and not isfinite(reward):
            raise ValueError(f"reward {index} of the group is {reward}; a reward is finite, or None when unscorable")
    is_zero_variance = bool(scored) and max(scored) - min(scored) <= ZERO_VARIANCE_RANGE
    if len(scored) < 2 or is_zero_variance:
        return GroupAdvantages((0.0,) * len(rewards), len(scored), is_zero_variance)
    scaled = iter(scale(scored, sum(scored) / len(scored)))
    values = tuple(0.0 if reward is None else next(scaled) for reward in rewards)
    return GroupAdvantages(values, len(scored), is_zero_variance)
