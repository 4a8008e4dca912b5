"""What follows from the plan alone: quotas of the mixture and attempts per group."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.jobs import make_plan

from headrace.core.job.plan import TaskPlan


def quotas(groups: int, **weights: float) -> dict[str, int]:
    return make_plan(groups=groups, tasks=tuple(TaskPlan(name, weight) for name, weight in weights.items())).quotas()


@pytest.mark.parametrize(
    ("groups", "weights", "expected"),
    [
        (24, {"lake": 1, "tools": 1}, {"lake": 12, "tools": 12}),
        (7, {"lake": 2, "tools": 1}, {"lake": 5, "tools": 2}),  # 4.67 and 2.33: the larger remainder rounds up
        (5, {"lake": 1, "tools": 1}, {"lake": 3, "tools": 2}),  # equal remainders: by name
        (10, {"a": 1, "b": 2, "c": 7}, {"a": 1, "b": 2, "c": 7}),
        (10, {"a": 0.1, "b": 0.2, "c": 0.7}, {"a": 1, "b": 2, "c": 7}),
        (4, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 1}),
        (2, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 0}),
        (1, {"rare": 1, "common": 99}, {"rare": 0, "common": 1}),
    ],
)
def test_quotas_by_largest_remainder(groups: int, weights: dict[str, float], expected: dict[str, int]) -> None:
    assert quotas(groups, **weights) == expected


mixtures = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(1, 100), min_size=1, max_size=6)


@given(st.integers(1, 64), mixtures)
def test_quotas_fill_the_batch_and_stay_within_one_of_the_share(groups: int, weights: dict[str, int]) -> None:
    found = quotas(groups, **weights)
    assert sum(found.values()) == groups
    for name, quota in found.items():
        assert abs(quota - Fraction(groups * weights[name], sum(weights.values()))) < 1


@given(st.integers(1, 64), mixtures)
def test_quotas_do_not_depend_on_the_scale_of_weights(groups: int, weights: dict[str, int]) -> None:
    assert quotas(groups, **weights) == quotas(groups, **{name: 1024 * weight for name, weight in weights.items()})


@pytest.mark.parametrize(("redundancy", "issued"), [("1", 8), ("1.1", 9), ("1.25", 10), ("1.5", 12)])
def test_attempts_issued_for_a_group(redundancy: str, issued: int) -> None:
    assert make_plan(group_size=8, redundancy=redundancy).issued == issued


def test_a_task_is_found_by_name() -> None:
    plan = make_plan(tasks=(TaskPlan("lake"), TaskPlan("tools", n_prompts=3)))
    assert plan.task("tools").n_prompts == 3
    with pytest.raises(KeyError):
        plan.task("maze")
