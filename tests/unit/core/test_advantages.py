"""Group advantages: golden values, who votes, and properties over any group."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import advantages as adv

REWARDS = st.lists(st.one_of(st.none(), st.floats(-100, 100)), min_size=1, max_size=16)


def approx(*values: float) -> object:
    return pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "rewards", "expected"),
    [
        ("grpo", [1, 0], (0.707106, -0.707106)),
        ("grpo", [0.5, 0.25], (0.707103, -0.707103)),
        ("grpo_population", [1, 0], (0.999998, -0.999998)),
        ("grpo_population", [0.5, 0.25], (0.999992, -0.999992)),
        ("rloo", [1, 0], (1, -1)),
        ("rloo", [0.5, 0.25], (0.25, -0.25)),
        ("rloo", [1.0, 0.4, 0.1], (0.75, -0.15, -0.60)),
        ("dr_grpo", [0.5, 0.25], (0.125, -0.125)),
        ("maxrl", [1, 0], (0.999998, -0.999998)),
        ("maxrl", [0.5, 0.25], (0.333332, -0.333332)),
    ],
)
def test_golden_values(name: str, rewards: list[float], expected: tuple[float, ...]) -> None:
    assert adv.estimator(name)(rewards).values == approx(*expected)


def test_the_two_deviations_of_one_group() -> None:
    assert adv.grpo([1, 0, 0, 0], epsilon=0).values == approx(1.5, -0.5, -0.5, -0.5)
    assert adv.grpo_population([1, 0, 0, 0], epsilon=0).values == approx(1.732051, -0.577350, -0.577350, -0.577350)
    assert adv.dr_grpo([1, 0, 0, 0]).values == approx(0.75, -0.25, -0.25, -0.25)


def test_an_unscorable_member_neither_votes_nor_moves() -> None:
    rewards = [2.0, None, 0.5, 0.5]
    assert adv.dr_grpo(rewards).values == approx(1.0, 0, -0.5, -0.5)
    assert adv.grpo(rewards, epsilon=0).values == approx(1.154701, 0, -0.577350, -0.577350)
    assert adv.grpo_population(rewards, epsilon=0).values == approx(1.414214, 0, -0.707107, -0.707107)


def test_unscored_is_not_zero() -> None:
    result = adv.grpo([None, -1, -1, None])
    assert result.values == (0, 0, 0, 0)
    assert result.n_scorable == 2


@pytest.mark.parametrize("name", list(adv.ESTIMATORS))
def test_one_scorable_member_has_no_baseline(name: str) -> None:
    result = adv.estimator(name)([None, 3.0, None, None])
    assert result.values == (0, 0, 0, 0)
    assert not result.is_trainable
    assert adv.estimator(name)([0.7]).values == (0,)


@pytest.mark.parametrize("rewards", [[0.1 + 0.2, 0.3, 0.3, 0.3], [1, 1, 1, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("epsilon", [0, 1e-8])
def test_float_noise_is_zero_variance(rewards: list[float], epsilon: float) -> None:
    result = adv.grpo(rewards, epsilon=epsilon)
    assert result.values == (0, 0, 0, 0)
    assert result.is_zero_variance


def test_a_negative_mean_is_refused_rather_than_turned_round() -> None:
    with pytest.raises(ValueError, match="mean"):
        adv.maxrl([-1, -3])


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="reward 1 of the group"):
        adv.grpo([0.0, reward])


def test_unknown_estimators_are_named() -> None:
    with pytest.raises(ValueError, match=r"'grop' is unknown.*grpo"):
        adv.estimator("grop")


def test_interleaved_rows_are_joined_by_group() -> None:
    values, _ = adv.by_group(["a", "b", "a", "b"], [1, 0, 0, 0], adv.dr_grpo)
    assert values == approx(0.5, 0, -0.5, 0)


def test_ragged_groups_never_mix() -> None:
    values, groups = adv.by_group(["a", "a", "a", "b", "b"], [1, 1, 0, 0, 1], adv.dr_grpo)
    assert values == approx(1 / 3, 1 / 3, -2 / 3, -0.5, 0.5)
    assert {name: group.n_scorable for name, group in groups.items()} == {"a": 3, "b": 2}


def test_the_same_prompt_twice_is_two_groups() -> None:
    values, _ = adv.by_group(["p7", "p7", "p19", "p19"], [1, 1, 0, 0])
    assert values == (0, 0, 0, 0)


def test_gae_passes_over_observation_tokens() -> None:
    mask, values = [1, 1, 0, 1, 1], [0.1, 0.2, 0.9, 0.3, 0.4]
    result = adv.generalized_advantages([0, 0, 0, 0, 1], values, mask, discount=1.0, trace=0.95)
    assert result == approx(0.799675, 0.7365, 0, 0.67, 0.6)


def test_returns_pass_over_observation_tokens() -> None:
    result = adv.discounted_returns([0, 0, 0, 0, 1], [1, 1, 0, 1, 1], discount=0.9)
    assert result == approx(0.729, 0.81, 0, 0.9, 1.0)


@given(REWARDS, st.sampled_from(["grpo", "grpo_population", "dr_grpo", "rloo"]))
def test_any_group(rewards: list[float | None], name: str) -> None:
    result = adv.estimator(name)(rewards)
    assert len(result.values) == len(rewards)
    assert all(math.isfinite(value) for value in result.values)
    assert all(value == 0 for reward, value in zip(rewards, result.values, strict=True) if reward is None)
    assert math.fsum(result.values) == pytest.approx(0, abs=1e-6)
    scored = [(reward, value) for reward, value in zip(rewards, result.values, strict=True) if reward is not None]
    in_order = [value for _, value in sorted(scored)]
    assert in_order == sorted(in_order), "the order of advantages follows the order of rewards"
    if not result.is_trainable:
        assert set(result.values) == {0.0}


@given(st.lists(st.floats(0, 10), min_size=2, max_size=8), st.integers(1, 4))
def test_unscorable_members_change_nothing_for_the_others(rewards: list[float], n_lost: int) -> None:
    alone = adv.grpo(rewards).values
    assert adv.grpo([None] * n_lost + list(rewards)).values[n_lost:] == alone
