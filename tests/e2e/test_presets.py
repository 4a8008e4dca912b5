"""Presets on the real stack: each ends balanced, within its alpha, with the waits that it promises."""

from typing import Any

import pytest

STROLL = {
    "name": "stroll",
    "env": {"entry_point": "testkit.job_environments:Stroll", "max_turns": 4, "config": {"turn_s": 0.03}},
    "sampling": {"max_tokens": 4},
}
ALPHA = {"sync": 0, "sync_plus": 0, "one_off": 1, "stream": 1, "partial": 4, "bounded": 1}


@pytest.mark.parametrize("preset", sorted(ALPHA))
def test_a_preset_trains_within_its_bound(stack: Any, preset: str) -> None:
    spec = stack.spec(
        name=f"preset {preset}",
        tasks=[STROLL],
        algorithm={"updates_per_step": 2},
        **{"async": {"preset": preset}},
    )
    with stack.api() as api:
        job = stack.wait(api.submit(spec)["id"])
        assert job["phase"] == "succeeded", job["reason"]
        assert api.of_job(job["id"], "ledger")["balanced"] is True
        assert job["result"]["max_trained_lag"] <= ALPHA[preset]
        steps = list(api.pages(f"/jobs/{job['id']}/steps", limit=10))
        assert [step["state"] for step in steps] == ["committed"] * 4
        assert job["progress"]["flow"]["littles_law_ratio"] == pytest.approx(1.0, abs=0.01)


def test_rollarts_own_order_loads_when_a_batch_is_taken(stack: Any) -> None:
    spec = stack.spec(tasks=[STROLL], **{"async": {"preset": "bounded", "load_at": "get_batch", "alpha": 2}})
    with stack.api() as api:
        job = stack.wait(api.submit(spec)["id"])
    assert job["phase"] == "succeeded", job["reason"]
    assert job["result"]["max_trained_lag"] <= 2
