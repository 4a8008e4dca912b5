"""The job spec as the machine's plan."""

import pytest
from testkit.specs import CALCULATOR, LAKE, make_spec

from control_plane.runner.planning import QUEUE_ALLOWANCE_S, plan_of
from headrace.core.async_policy import PRESETS
from headrace.core.job.plan import JobPlan


def plan(**blocks: object) -> JobPlan:
    return plan_of("job_1", make_spec(**blocks), export_path="/models/out")


def test_the_batch() -> None:
    found = plan(batch={"groups": 6, "group_size": 4, "redundancy": 1.25, "on_short": "shrink", "max_attempts": 5})
    assert (found.groups, found.group_size, found.issued, found.on_short) == (6, 4, 5, "shrink")
    assert found.limits.max_attempts == 5
    assert found.quotas() == {"lake": 3, "tools": 3}


@pytest.mark.parametrize(("redundancy", "issued"), [(1.1, 9), (1.25, 10), (1, 8)])
def test_redundancy_keeps_its_decimals(redundancy: float, issued: int) -> None:
    assert plan(batch={"groups": 2, "group_size": 8, "redundancy": redundancy}).issued == issued


def test_limits_are_those_of_the_spec() -> None:
    limits = {
        "step_s": 11, "job_s": 12, "pause_ttl_s": 13, "quota_patience_s": 14, "stale_deadline_s": 15, "max_requeues": 4,
        "max_filtered": 3, "reward_tries": 6,
    }  # fmt: skip
    found = plan(limits=limits, weights={"prefetch_deadline_s": 16}).limits
    assert {name: getattr(found, name) for name in limits} == limits
    assert found.prefetch_s == 16


def test_a_task_that_its_environment_pays() -> None:
    lake = plan().task("lake")
    assert (lake.has_env_reward, lake.env_reward_weight) == (True, 0.5)
    assert (lake.reward_names, lake.reward_weights) == ((), ())
    assert lake.episode_s == 90


def test_a_graded_task() -> None:
    tools = plan().task("tools")
    assert (tools.has_env_reward, tools.env_reward_weight) == (False, 0)
    assert (tools.reward_names, tools.reward_weights) == (("grade",), (1.0,))


def test_a_reward_has_time_for_its_retries_and_for_the_queue() -> None:
    assert plan().task("tools").reward_timeout_s == 5 * 3 + QUEUE_ALLOWANCE_S


def test_the_slowest_of_several_rewards_counts() -> None:
    rewards = [*CALCULATOR["rewards"], {"fn": "reward_svc.graders.calculator:grade", "name": "slow", "timeout_s": 60}]
    task = plan(tasks=[{**CALCULATOR, "rewards": rewards}]).task("tools")
    assert task.reward_timeout_s >= 60 + QUEUE_ALLOWANCE_S
    assert task.reward_names == ("grade", "slow")


def test_prompts_and_weights_of_the_mixture() -> None:
    found = plan(tasks=[{**LAKE, "prompts": 10, "weight": 2}, CALCULATOR], batch={"groups": 3, "group_size": 2})
    assert found.task("lake").n_prompts == 10
    assert found.task("tools").n_prompts is None
    assert found.quotas() == {"lake": 2, "tools": 1}


@pytest.mark.parametrize("preset", ["sync", "sync_plus", "one_off", "partial", "bounded"])
def test_the_policy_is_the_presets_row(preset: str) -> None:
    assert plan(**{"async": {"preset": preset}}).policy == PRESETS[preset]


def test_a_field_of_the_policy_can_be_overridden() -> None:
    found = plan(**{"async": {"preset": "bounded", "alpha": 2, "load_at": "get_batch"}}).policy
    assert (found.alpha, found.load_at, found.on_load) == (2, "get_batch", "continue")


@pytest.mark.parametrize(
    ("block", "episodes", "modes"),
    [
        ({"episodes": 9}, 9, ("sampled", "greedy")),
        ({"episodes": 9, "greedy": False}, 9, ("sampled",)),
        ({"episodes": 9, "at_start": False, "at_end": False}, 0, ("sampled", "greedy")),
        ({"episodes": 9, "at_start": False, "at_end": False, "every": 5}, 9, ("sampled", "greedy")),
    ],
)
def test_evaluation(block: dict[str, object], episodes: int, modes: tuple[str, ...]) -> None:
    found = plan(eval=block).evaluation
    assert (found.episodes, found.modes) == (episodes, modes)


def test_where_the_model_goes() -> None:
    found = plan(checkpoint={"every": 4})
    assert (found.export_path, found.checkpoint_every) == ("/models/out", 4)
    assert (found.job_id, found.seed, found.max_steps) == ("job_1", 7, 3)
