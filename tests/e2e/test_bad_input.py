"""What a person gets wrong: a clear problem, or a named loss; never a hang, never a 500."""

from typing import Any

import pytest

from headrace.client.rest import ApiError


def task(entry_point: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "env": {"entry_point": entry_point, "max_turns": 2, "timeouts": {"reset_s": 5.0, "step_s": 5.0}},
        "sampling": {"max_tokens": 2},
        **more,
    }


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"optimiser": {"lr": 1e-3}}, "/optimiser"),
        ({"max_steps": "four"}, "/max_steps"),
        ({"model": {"path": "/no/such/model"}}, "/model/path"),
        ({"async": {"preset": "bounded", "alpha": -1}}, "/async/alpha"),
        ({"batch": {"groups": 4, "group_size": 1}}, "/batch/group_size"),
        ({"tasks": [task("testkit.nowhere:Nothing")]}, "/tasks/0/env"),
        ({"optimizer": {"lr": "inf"}}, "/optimizer/lr"),
    ],
)
def test_a_spec_that_cannot_run_is_refused_with_a_pointer(stack: Any, changes: dict[str, Any], pointer: str) -> None:
    with stack.api() as api, pytest.raises(ApiError) as refused:
        api.submit(stack.spec(**changes))
    assert refused.value.status == 422
    assert pointer in [error["pointer"] for error in refused.value.errors], refused.value.problem


def test_an_environment_that_never_resets_fails_the_job_with_its_words(stack: Any) -> None:
    with stack.api() as api:
        job = api.submit(stack.spec(tasks=[task("testkit.job_environments:Broken", prompts=4)]))
        ended = stack.wait(job["id"], timeout_s=60)
        assert ended["phase"] == "failed"
        assert "no image for seed" in ended["reason"]
        assert api.of_job(job["id"], "ledger")["balanced"] is True


def test_a_grader_that_raises_is_a_named_loss(stack: Any) -> None:
    rewards = [{"fn": "testkit.job_environments:raising", "timeout_s": 2.0, "retries": 0}]
    spec = stack.spec(
        tasks=[task("testkit.job_environments:Stroll", rewards=rewards, prompts=4)], limits={"reward_tries": 1}
    )
    with stack.api() as api:
        job = api.submit(spec)
        ended = stack.wait(job["id"], timeout_s=90)
        assert ended["phase"] == "failed"
        assert "cannot grade" in ended["reason"]
        lost = list(api.pages(f"/jobs/{job['id']}/trajectories", limit=50, state="unscorable"))
        assert lost


def test_observations_of_five_megabytes_with_nul_and_surrogates_are_played(stack: Any) -> None:
    spec = stack.spec(max_steps=2, tasks=[task("testkit.job_environments:Verbose", max_observation_tokens=32)])
    with stack.api() as api:
        job = api.submit(spec)
        ended = stack.wait(job["id"], timeout_s=90)
        assert ended["phase"] == "succeeded", ended["reason"]
        listed = list(api.pages(f"/jobs/{job['id']}/trajectories", limit=50))
        assert {row["state"] for row in listed} >= {"trained"}
