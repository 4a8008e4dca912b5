"""SIGKILL of each process in the middle of a job: it costs what it may, the job finishes, the ledger balances."""

from typing import Any

import pytest

STROLL = {
    "name": "stroll",
    "env": {"entry_point": "testkit.job_environments:Stroll", "max_turns": 4, "config": {"turn_s": 0.15}},
    "sampling": {"max_tokens": 4},
}
GRADED = {
    "name": "graded",
    "env": {
        "entry_point": "testkit.job_environments:Stroll",
        "max_turns": 4,
        "config": {"turn_s": 0.1, "reward": False},
    },
    "rewards": [{"fn": "testkit.job_environments:coin", "timeout_s": 5.0}],
    "sampling": {"max_tokens": 4},
}


def run_and_kill(stack: Any, prefix: str, **changes: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """The ended job and the final states of its training attempts, after one kill past step 2."""
    spec = stack.spec(name=f"kill {prefix}", max_steps=6, tasks=[STROLL, GRADED], **changes)
    with stack.api() as api:
        job = api.submit(spec)
    stack.until(job["id"], lambda j: j["progress"].get("step", 0) >= 3)
    stack.kill(prefix)
    job = stack.wait(job["id"])
    assert job["phase"] == "succeeded", (job["reason"], job["progress"])
    with stack.api() as api:
        ledger = api.of_job(job["id"], "ledger")
        steps = list(api.pages(f"/jobs/{job['id']}/steps", limit=100))
    assert ledger["balanced"] is True, ledger
    assert job["result"]["max_trained_lag"] <= 1
    assert len(steps) == 6 and all(step["state"] == "committed" for step in steps)
    train = next(line for line in ledger["equations"] if line["purpose"] == "train")
    states = train["rows"]
    assert states["trained"] == 6 * 4 * 4, states  # nothing twice, nothing missing
    return job, states


def test_an_inference_worker(stack: Any) -> None:
    """Its requests go on elsewhere from their prefix: no attempt is lost."""
    _, states = run_and_kill(stack, "inference-0")
    assert not states.keys() & {"failed_infra", "failed_env", "unscorable"}, states


def test_the_proxy(stack: Any) -> None:
    """The environment managers' copies of the tokens win: no attempt is lost."""
    _, states = run_and_kill(stack, "proxy")
    assert not states.keys() & {"failed_infra", "failed_env", "unscorable"}, states


def test_the_environment_managers(stack: Any) -> None:
    """Every live episode is lost and tried again with its environment seed."""
    job, states = run_and_kill(stack, "env")
    assert states.get("failed_infra", 0) >= 1, states
    assert job["progress"]["counters"]["refills"] == states["failed_infra"]
    with stack.api() as api:
        again = [t for t in api.pages(f"/jobs/{job['id']}/trajectories", limit=500) if t["kind"] == "refill"]
    assert again


def test_a_reward_worker(stack: Any) -> None:
    """Its task is sent again: no reward is lost."""
    _, states = run_and_kill(stack, "reward")
    assert "unscorable" not in states, states


def test_the_control_plane(stack: Any) -> None:
    """The runner goes on from its last transaction; finished attempts waited for it."""
    _, states = run_and_kill(stack, "control_plane")
    assert not states.keys() & {"failed_infra", "failed_env", "unscorable"}, states


def test_the_trainer(stack: Any) -> None:
    """The steps since its checkpoint are replayed from their stored batches, under new numbers."""
    job, _ = run_and_kill(stack, "trainer", checkpoint={"every": 2})
    with stack.api() as api:
        versions = list(api.pages(f"/jobs/{job['id']}/versions", limit=100))
        events = list(api.events(job["id"]))
    restored = [event for event in events if event["type"] == "trainer.restored"]
    assert len(restored) == 1
    abandoned = [version for version in versions if version["state"] == "abandoned"]
    assert len(abandoned) == restored[0]["data"]["replayed"]


@pytest.mark.parametrize("wish", ["cancel", "pause"])
def test_an_owner_stops_a_job_in_the_middle(stack: Any, wish: str) -> None:
    spec = stack.spec(name=wish, max_steps=200, tasks=[STROLL])
    with stack.api() as api:
        job = api.submit(spec)
        stack.until(job["id"], lambda j: j["progress"].get("step", 0) >= 1)
        api.wish(job["id"], wish)
        if wish == "pause":
            stack.until(job["id"], lambda j: j["phase"] == "paused")
            frozen = api.job(job["id"])["progress"]["step"]
            api.wish(job["id"], "resume")
            stack.until(job["id"], lambda j: j["phase"] == "running" and j["progress"]["step"] > frozen)
            api.wish(job["id"], "cancel")
        ended = stack.wait(job["id"])
        assert ended["phase"] == "cancelled"
        assert api.of_job(job["id"], "ledger")["balanced"] is True
