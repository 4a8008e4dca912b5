"""Presets are data; every combination is either runnable or refused with a reason."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import async_policy
from headrace.core.async_policy import POLICY_FIELDS, PRESETS, AsyncPolicy

POLICIES = st.builds(
    AsyncPolicy,
    interaction=st.sampled_from(get_args(async_policy.Interaction)),
    reward=st.sampled_from(get_args(async_policy.RewardAt)),
    load_at=st.sampled_from(get_args(async_policy.LoadAt)),
    on_load=st.sampled_from(get_args(async_policy.OnLoad)),
    overlap=st.sampled_from(get_args(async_policy.Overlap)),
    train_on=st.sampled_from(get_args(async_policy.TrainOn)),
    alpha=st.none() | st.integers(-2, 5),
    on_stale=st.sampled_from(get_args(async_policy.OnStale)),
    repack=st.booleans(),
    local_batch=st.none() | st.integers(-1, 3),
    overcommit=st.floats(),
    max_inflight=st.none() | st.integers(-1, 3),
)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_runnable(name: str) -> None:
    assert PRESETS[name].validate() == ()


def test_partial_and_bounded_differ_in_alpha_alone() -> None:
    assert replace(PRESETS["partial"], alpha=1) == PRESETS["bounded"]


def test_rollart_own_order_is_runnable() -> None:
    assert replace(PRESETS["bounded"], load_at="get_batch", alpha=2).validate() == ()


@pytest.mark.parametrize(
    ("preset", "changes", "field"),
    [
        ("bounded", {"alpha": 0, "load_at": "get_batch"}, "alpha"),
        ("sync", {"load_at": "drain"}, "interaction"),
        ("sync", {"reward": "at_end_of_trajectory"}, "reward"),
        ("sync", {"train_on": "as_groups_complete"}, "train_on"),
        ("sync", {"overlap": "free"}, "reward"),
        ("independent", {"on_load": "continue"}, "on_load"),
        ("independent", {"on_load": "discard"}, "on_load"),
        ("independent", {"on_stale": "wait"}, "on_stale"),
        ("bounded", {"repack": True}, "repack"),
        ("bounded", {"local_batch": 8}, "local_batch"),
        ("bounded", {"alpha": -1}, "alpha"),
        ("bounded", {"overcommit": 0.5}, "overcommit"),
        ("bounded", {"overcommit": float("nan")}, "overcommit"),
        ("bounded", {"max_inflight": 0}, "max_inflight"),
        ("bounded", {"load_at": "sometimes"}, "load_at"),
    ],
)
def test_bad_combination_is_refused_at_its_field(preset: str, changes: dict[str, object], field: str) -> None:
    problems = replace(PRESETS[preset], **changes).validate()
    assert [problem.field for problem in problems] == [field]
    assert all(problem.message and problem.fix for problem in problems)


@given(POLICIES)
def test_problems_name_fields_of_the_policy(policy: AsyncPolicy) -> None:
    assert all(problem.field in POLICY_FIELDS for problem in policy.validate())


@given(POLICIES)
def test_accepted_policies_satisfy_what_the_refusals_protect(policy: AsyncPolicy) -> None:
    if policy.validate():
        return
    assert policy.alpha is None or policy.alpha >= (1 if policy.load_at == "get_batch" else 0)
    assert policy.interaction == "trajectory" or policy.reward == "at_end_of_batch"
    assert policy.load_at != "drain" or policy.on_load == "finish_first"
    assert policy.overcommit >= 1
