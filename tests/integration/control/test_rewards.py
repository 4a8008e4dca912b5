"""GET /jobs/{id}/rewards: what came of them, how long they took, and how busy the workers were."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from testkit.control_plane import Served
from testkit.rows import add_attempt, add_job, add_reward, add_worker

START = datetime(2026, 1, 2, tzinfo=UTC)
SECOND = timedelta(seconds=1)


async def rewards_of(served: Served, job_id: str = "job_1") -> dict[str, Any]:
    answer = await served.http.get(f"/jobs/{job_id}/rewards")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_outcomes_are_counted_by_reward_with_their_times(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection, started_at=START, finished_at=START + 100 * SECOND)
        for number in range(10):
            await add_reward(connection, f"t{number}", queue_s=number, grader_s=0.5)
        await add_reward(connection, "t1", reward_name="style", state="unscorable", score=None, duplicates=2)
        await add_reward(connection, "t2", reward_name="style", state="abstained", score=None, **{"try": 3})
        await add_reward(connection, "other", job_id="job_2", grader_s=99.0)
        await add_attempt(connection, "t11")
        await add_attempt(connection, "t12", state="ready")
    shown = await rewards_of(served)
    assert shown["scoring"] == 1
    exact, style = shown["rewards"]
    assert (exact["name"], exact["scored"], exact["abstained"], exact["unscorable"]) == ("exact", 10, 0, 0)
    assert exact["busy_s"] == pytest.approx(5.0)
    assert exact["queue"] == {"p50": 4.5, "p90": pytest.approx(8.1), "p99": pytest.approx(8.91), "max": 9.0}
    assert set(exact["grader"].values()) == {0.5}
    assert (style["scored"], style["abstained"], style["unscorable"]) == (0, 1, 1)
    assert (style["retried"], style["duplicates"]) == (1, 2)


async def test_utilisation_counts_the_slots_that_were_there_while_the_job_ran(served: Served) -> None:
    ended = START + 100 * SECOND
    async with served.context.database.begin() as connection:
        await add_job(connection, started_at=START, finished_at=ended)
        await add_job(connection, "job_2", started_at=START - 50 * SECOND, finished_at=START + 50 * SECOND)
        await add_job(connection, "job_3", started_at=START - 50 * SECOND, finished_at=START - 10 * SECOND)
        # Two slots from before the job until after it, and one for 20 s of it; 220 s by slot.
        await add_worker(
            connection, "reward-0", "reward", capabilities={"concurrency": "2"}, registered_at=START - 9 * SECOND
        )
        gone = {"state": "gone", "registered_at": START + 30 * SECOND, "last_seen_at": START + 50 * SECOND}
        await add_worker(connection, "reward-1", "reward", capabilities={"concurrency": "many"}, **gone)
        early = {"state": "lapsed", "registered_at": START - 9 * SECOND, "last_seen_at": START - SECOND}
        await add_worker(connection, "reward-2", "reward", **early)
        await add_worker(connection, "env-0", "env", registered_at=START)
        await add_reward(connection, "t1", grader_s=33.0, reported_at=START + 60 * SECOND)
        await add_reward(connection, "t2", job_id="job_2", grader_s=22.0, reported_at=START + 10 * SECOND)
        await add_reward(connection, "t3", job_id="job_2", grader_s=500.0, reported_at=START - 10 * SECOND)
        await add_reward(connection, "t4", job_id="job_3", grader_s=500.0, reported_at=START - 20 * SECOND)
    assert (await rewards_of(served))["workers"] == {
        "slots": 2,
        "slot_s": pytest.approx(220.0),
        "busy_s": pytest.approx(33.0),
        "busy_all_s": pytest.approx(55.0),
        "utilisation": pytest.approx(0.25),
        "used_by_job": pytest.approx(0.15),
    }


async def test_a_job_that_runs_is_measured_until_now(served: Served) -> None:
    now = datetime.now(UTC)
    async with served.context.database.begin() as connection:
        await add_job(connection, started_at=now - 10 * SECOND)
        await add_worker(connection, "reward-0", "reward", registered_at=now - 5 * SECOND)
    workers = (await rewards_of(served))["workers"]
    assert 5.0 <= workers["slot_s"] < 10.0
    assert workers["utilisation"] == 0.0


async def test_a_job_without_rewards_or_workers_has_no_figures(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
    shown = await rewards_of(served)
    assert (shown["rewards"], shown["scoring"]) == ([], 0)
    assert shown["workers"]["utilisation"] is None
    missing = await served.http.get("/jobs/job_9/rewards")
    assert (missing.status_code, missing.json()["code"]) == (404, "job_not_found")
