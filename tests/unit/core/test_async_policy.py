"""Presets are data; every combination is either runnable or refused with a reason."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import async_policy
from headrace.core.async_policy import POLICY_FIELDS, PRESETS, AsyncPolicy, PolicyProblem

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


OF_THE_DESIGN = {
    "sync": ("lockstep", "at_end_of_batch", "before_batch", "finish_first", "none", "full_batch", 0),
    "sync_plus": ("trajectory", "at_end_of_trajectory", "before_batch", "finish_first", "none", "full_batch", 0),
    "one_off": ("trajectory", "at_end_of_trajectory", "before_batch", "finish_first", "one_batch", "full_batch", 1),
    "stream": (
        "trajectory",
        "at_end_of_trajectory",
        "before_batch",
        "finish_first",
        "one_batch",
        "as_groups_complete",
        1,
    ),
    "partial": ("trajectory", "at_end_of_trajectory", "publish", "continue", "free", "full_batch", 4),
    "bounded": ("trajectory", "at_end_of_trajectory", "publish", "continue", "free", "full_batch", 1),
    "independent": ("trajectory", "at_end_of_trajectory", "drain", "finish_first", "free", "full_batch", None),
}
COLUMNS = ("interaction", "reward", "load_at", "on_load", "overlap", "train_on", "alpha")
EXTRAS = {"on_stale": "evict", "repack": False, "local_batch": None, "overcommit": 1.0, "max_inflight": None}


def test_presets_are_the_rows_of_the_design() -> None:
    told = {name: tuple(getattr(policy, column) for column in COLUMNS) for name, policy in PRESETS.items()}
    assert told == OF_THE_DESIGN
    assert {*COLUMNS, *EXTRAS} == set(POLICY_FIELDS)
    for policy in PRESETS.values():
        assert {name: getattr(policy, name) for name in EXTRAS} == EXTRAS


def every_combination() -> Iterator[AsyncPolicy]:
    choices = {
        "interaction": get_args(async_policy.Interaction),
        "reward": get_args(async_policy.RewardAt),
        "load_at": get_args(async_policy.LoadAt),
        "on_load": get_args(async_policy.OnLoad),
        "overlap": get_args(async_policy.Overlap),
        "train_on": get_args(async_policy.TrainOn),
        "alpha": (None, 0, 1),
        "on_stale": get_args(async_policy.OnStale),
        "repack": (False, True),
        "local_batch": (None, 2),
    }
    for values in product(*choices.values()):
        yield AsyncPolicy(**dict(zip(choices, values, strict=True)))


def refused_fields(policy: AsyncPolicy) -> Counter[str]:
    """The sentences of the design and those that follow from what fields mean, one by one."""
    drains, is_lockstep = policy.load_at == "drain", policy.interaction == "lockstep"
    waits_for_batch = policy.reward == "at_end_of_batch"
    return Counter(
        {
            "alpha": policy.alpha == 0 and policy.load_at == "get_batch",
            "interaction": is_lockstep and drains,
            "reward": (is_lockstep and not waits_for_batch) + (waits_for_batch and policy.overlap == "free"),
            "train_on": waits_for_batch and policy.train_on == "as_groups_complete",
            "on_load": drains and policy.on_load != "finish_first",
            "on_stale": policy.alpha is None and policy.on_stale == "wait",
            "repack": policy.repack and not drains,
            "local_batch": policy.local_batch is not None and not drains,
        }
    )


def as_fixed(policy: AsyncPolicy, problem: PolicyProblem) -> list[AsyncPolicy]:
    """What becomes of the policy by each alternative that the fix offers."""
    assert problem.fix.startswith(("set ", "use ")), problem
    offered = [
        (field, value)
        for field, values in re.findall(r"(\w+) to (\w+(?: or (?!more)\w+)?)", problem.fix)
        for value in values.split(" or ")
    ]
    offered += [
        (field, {"repack": False, "local_batch": None}[field]) for field in re.findall(r"leave (\w+) out", problem.fix)
    ]
    offered += [("alpha", 1)] if "set alpha," in problem.fix else []
    return [replace(policy, **{field: 1 if field == "alpha" else value}) for field, value in offered]


def test_exactly_what_cannot_run_is_refused_at_the_field_that_says_why() -> None:
    for policy in every_combination():
        problems = policy.validate()
        assert Counter(problem.field for problem in problems) == +refused_fields(policy), policy
        assert len(set(problems)) == len(problems)


def test_every_fix_mends_its_problem_and_following_fixes_ends_at_a_policy_that_runs() -> None:
    """However a reader chooses between the alternatives, he can go on to one that runs."""
    policies = list(every_combination())
    runs = {policy for policy in policies if not policy.validate()}
    leads_to: dict[AsyncPolicy, set[AsyncPolicy]] = {}
    for policy in policies:
        leads_to[policy] = set()
        for problem in policy.validate():
            fixed = as_fixed(policy, problem)
            assert len(fixed) >= 1 and all(problem not in one.validate() for one in fixed), (policy, problem)
            leads_to[policy].update(fixed)
    found, size = set(runs), -1
    while size != len(found):
        size = len(found)
        found |= {policy for policy in policies if leads_to[policy] & found}
    assert found == set(policies)


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
