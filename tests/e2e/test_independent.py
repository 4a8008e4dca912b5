"""Independent rollouts, as a user runs them: every trajectory of one version, workers drain on their own, repack on."""

from typing import Any

WALK = {
    "name": "stroll",
    "env": {"entry_point": "testkit.job_environments:Stroll", "max_turns": 4, "config": {"turn_s": 0.05}},
    "sampling": {"max_tokens": 6},
}


def one_version_each(stack: Any, job: dict[str, Any]) -> set[int]:
    """Checks the ended job; the versions that its trained trajectories were made under."""
    assert job["phase"] == "succeeded", (job["reason"], job["progress"])
    with stack.api() as api:
        ledger = api.of_job(job["id"], "ledger")
        rows = list(api.pages(f"/jobs/{job['id']}/trajectories", limit=500))
        trained = [row["trajectory_id"] for row in rows if row["state"] == "trained"]
        details = [api.get(f"/trajectories/{trajectory_id}") for trajectory_id in trained]
    assert ledger["balanced"] is True, ledger
    assert len(trained) == 6 * 4 * 4
    attempts = [attempt for detail in details for attempt in detail["attempts"] if attempt["state"] == "trained"]
    assert any(attempt["n_turns"] > 1 for attempt in attempts)
    versions = [{segment["policy_version"] for segment in attempt["segments"]} for attempt in attempts]
    assert all(len(found) == 1 for found in versions), versions
    return set().union(*versions)


def independent(stack: Any, **fields: Any) -> dict[str, Any]:
    policy = {"preset": "independent", "repack": True, "local_batch": 12, **fields}
    spec = stack.spec(name="independent", max_steps=6, tasks=[WALK], **{"async": policy})
    with stack.api() as api:
        return dict(api.submit(spec))


def test_every_trajectory_has_one_version_and_workers_follow_the_trainer(stack: Any) -> None:
    job = stack.wait(independent(stack)["id"])
    assert len(one_version_each(stack, job)) > 1
    assert job["progress"]["routing"]["repack_looks"] >= 1


def test_a_killed_worker_s_trajectories_go_on_under_their_version(stack: Any) -> None:
    """On the other worker where it serves that version; otherwise a worker is brought back to it."""
    job = independent(stack)
    stack.until(job["id"], lambda found: found["progress"].get("step", 0) >= 2)
    stack.kill("inference-0")
    one_version_each(stack, stack.wait(job["id"]))
