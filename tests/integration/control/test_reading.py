"""What the API shows of a job's rows: trajectories, tokens, groups, buffer, ledger, series."""

import json
from hashlib import sha256
from typing import Any

import pytest
from testkit.control_plane import Served
from testkit.rows import (
    add_attempt,
    add_group,
    add_job,
    add_metric,
    add_segment,
    add_step,
    add_version,
)

from control_plane.blobs import service as blobs
from headrace.core.ledger import AttemptState, Ledger
from headrace.wire.common.v1.common_pb2 import Segment
from headrace.wire.environments.v1.environments_pb2 import TokenSpan, TrajectoryTokens, TurnReward


async def add_blob(served: Served, data: bytes) -> str:
    digest = sha256(data).hexdigest()
    await blobs.store(served.context, [(digest, data)])
    return digest


async def test_trajectories_page_and_filter(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        for number in range(5):
            await add_attempt(connection, f"trj_{number}", state="ready", start_version=number, reward=number / 4)
        await add_attempt(connection, "trj_0", 2, task="lake", purpose="eval", state="failed_env", is_truncated=True)
    path = "/jobs/job_1/trajectories"
    keys: list[tuple[str, int]] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await served.http.get(path, params={"limit": 4, **cursor})).json()
        keys += [(item["trajectory_id"], item["attempt"]) for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert keys == [("trj_4", 1), ("trj_3", 1), ("trj_2", 1), ("trj_1", 1), ("trj_0", 2), ("trj_0", 1)]

    async def found(**params: Any) -> list[str]:
        items = (await served.http.get(path, params=params)).json()["items"]
        return [item["trajectory_id"] for item in items]

    assert await found(task="lake") == ["trj_0"]
    assert await found(state="ready", version_gte=1, version_lte=2) == ["trj_2", "trj_1"]
    assert await found(min_reward=0.75) == ["trj_4", "trj_3"]
    assert await found(truncated="true") == ["trj_0"]
    assert await found(purpose="eval", state="ready") == []


async def test_a_sum_that_lacks_a_score_is_not_shown_as_a_reward(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_attempt(connection, "t1", state="scoring", reward=0.0)
        await add_attempt(connection, "t2", state="ready", reward=0.0)
    items = (await served.http.get("/jobs/job_1/trajectories")).json()["items"]
    assert [(item["trajectory_id"], item["reward"]) for item in items] == [("t2", 0.0), ("t1", None)]
    above = (await served.http.get("/jobs/job_1/trajectories", params={"min_reward": -1})).json()["items"]
    assert [item["trajectory_id"] for item in above] == ["t2"]
    assert (await served.http.get("/trajectories/t1")).json()["attempts"][0]["reward"] is None


async def test_trajectory_shows_versions_by_segment_and_staleness(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_attempt(
            connection, "t1", state="trained", start_version=3, finish_version=4, sample_version=6, fault={"a": "b"}
        )
        await add_segment(connection, "t1", 1, policy_version=4, worker_id="inference-1@b", weight_digest="d4")
        await add_segment(connection, "t1", 0)
    [attempt] = (await served.http.get("/trajectories/t1")).json()["attempts"]
    assert attempt["staleness"] == {"s_gen": 1, "residence": 2, "s_train": 3}
    assert [(part["policy_version"], part["worker_id"]) for part in attempt["segments"]] == [
        (3, "inference-0@a"),
        (4, "inference-1@b"),
    ]


async def test_tokens_are_shown_with_mask_logprob_and_version(served: Served) -> None:
    stored = TrajectoryTokens(
        token_ids=[10, 11, 12, 13, 14, 15],
        spans=[TokenSpan(start=1, n_tokens=2), TokenSpan(start=4, n_tokens=1)],
        logprobs=[-0.5, -0.25, -1.0],
        segments=[
            Segment(policy_version=3, worker_id="w@a", weight_digest="d3", n_tokens=1),
            Segment(policy_version=4, worker_id="w@a", weight_digest="d4", n_tokens=2),
        ],
        temperature=1.0,
        turn_rewards=[TurnReward(turn=1, reward=1.0)],
    )
    digest = await add_blob(served, stored.SerializeToString())
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_attempt(connection, "t1", state="failed_infra")
        await add_attempt(connection, "t1", 2, token_blob=digest)
    shown = (await served.http.get("/trajectories/t1/tokens")).json()
    assert shown["attempt"] == 2
    assert shown["token_ids"] == [10, 11, 12, 13, 14, 15]
    assert shown["mask"] == [0, 1, 1, 0, 1, 0]
    assert shown["logprobs"] == [None, -0.5, -0.25, None, -1.0, None]
    assert shown["versions"] == [None, 3, 4, None, 4, None]
    missing = await served.http.get("/trajectories/t1/tokens", params={"attempt": 1})
    assert (missing.status_code, missing.json()["code"]) == (404, "token_blob_not_stored")
    assert (await served.http.get("/trajectories/t1/tokens", params={"attempt": 3})).status_code == 404


async def test_broken_tokens_are_a_problem_and_the_list_stays_readable(served: Served) -> None:
    digest = await add_blob(served, TrajectoryTokens(token_ids=[1], logprobs=[0.5]).SerializeToString())
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_attempt(connection, "t1", token_blob=digest)
        await add_attempt(connection, "t2", state="ready", reward=float("nan"))
        await add_attempt(connection, "t3", state="ready", reward=1.0)
    broken = await served.http.get("/trajectories/t1/tokens")
    assert (broken.status_code, broken.json()["code"]) == (500, "stored_tokens_broken")
    # One number without an end hides neither its own row nor the others.
    answer = await served.http.get("/jobs/job_1/trajectories")
    items = json.loads(answer.content, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))["items"]
    assert [item["reward"] for item in items] == [1.0, None, None]


async def test_transcript_is_data_whatever_it_holds(served: Served) -> None:
    markup = "<img src=x onerror=\"document.title='pwned'\"> \\u0000 \ufffd"
    document = {"messages": [{"role": "assistant", "content": markup}], "answer": 3}
    digest = await add_blob(served, json.dumps(document).encode())
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_attempt(connection, "t1", grading_blob=digest)
    answer = await served.http.get("/trajectories/t1/transcript")
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["document"] == document


async def test_groups_count_their_attempts_by_state(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_group(connection, "grp_1", 1, state="ready", env_seed=2**53 + 1)
        await add_group(connection, "grp_2", 2, state="dropped", reason="evicted_stale", task="lake")
        await add_attempt(connection, "t1", state="ready")
        await add_attempt(connection, "t2", state="ready", sibling=1)
        await add_attempt(connection, "t3", state="failed_env", sibling=2)
    items = (await served.http.get("/jobs/job_1/groups")).json()["items"]
    assert {item["id"]: item["env_seed"] for item in items} == {"grp_1": "9007199254740993", "grp_2": "1"}
    assert [(item["id"], item["attempts"]) for item in items] == [
        ("grp_2", {}),
        ("grp_1", {"ready": 2, "failed_env": 1}),
    ]
    dropped = (await served.http.get("/jobs/job_1/groups", params={"state": "dropped"})).json()["items"]
    assert [(item["id"], item["reason"]) for item in dropped] == [("grp_2", "evicted_stale")]
    first = (await served.http.get("/jobs/job_1/groups", params={"limit": 1})).json()
    rest = (await served.http.get("/jobs/job_1/groups", params={"limit": 1, "cursor": first["next_cursor"]})).json()
    assert [item["id"] for item in rest["items"]] == ["grp_1"]


async def test_buffer_shows_stock_by_state_task_and_version(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_group(connection, "grp_1", 1, state="ready")
        await add_group(connection, "grp_2", 2)
        await add_group(connection, "grp_3", 3, state="taken")
        await add_group(connection, "grp_4", 4, state="ready", purpose="eval")
        await add_attempt(connection, "t1", state="ready", start_version=2)
        await add_attempt(connection, "t2", state="ready", start_version=3, sibling=1)
        await add_attempt(connection, "t3", state="queued", group_id="grp_2")
        await add_attempt(connection, "t4", state="ready", group_id="grp_4", purpose="eval", start_version=1)
    shown = (await served.http.get("/jobs/job_1/buffer")).json()
    assert (shown["alpha"], shown["wanted"], shown["current_version"]) == (1, 2, 3)
    stock = [(row["state"], row["version"], row["lag"], row["groups"]) for row in shown["stock"]]
    assert stock == [("open", None, None, 1), ("ready", 2, 1, 1)]
    assert all(0 <= row["age_min_s"] <= row["age_mean_s"] <= row["age_max_s"] < 60 for row in shown["stock"])
    assert {(row["state"], row["attempts"]) for row in shown["in_flight"]} == {("queued", 1), ("ready", 2)}


def _ledger(states: list[AttemptState], in_flight: list[AttemptState]) -> dict[str, object]:
    ledger = Ledger()
    for state in [*states, *in_flight]:
        ledger.issue("train", "calculator")
        if state in states:
            ledger.close("train", "calculator", state, 5)
    return ledger.to_json([("train", "calculator", state.value) for state in in_flight])


async def test_ledger_shows_both_sides_and_counts_the_rows_again(served: Served) -> None:
    recorded = _ledger([AttemptState.TRAINED, AttemptState.SURPLUS], [AttemptState.READY])
    async with served.context.database.begin() as connection:
        await add_job(connection, ledger=recorded)
        for number, state in enumerate(("trained", "surplus", "ready")):
            await add_attempt(connection, f"t{number}", state=state)
    shown = (await served.http.get("/jobs/job_1/ledger")).json()
    [equation] = shown["equations"]
    assert (equation["left"], equation["right"], shown["balanced"]) == (3, 3, True)
    assert (equation["used"], equation["exits"], equation["in_flight"]) == (
        {"trained": 1},
        {"surplus": 1},
        {"ready": 1},
    )
    async with served.context.database.begin() as connection:
        await add_attempt(connection, "stray", state="trained")
    # A row that the ledger never counted does not balance, though the ledger's own sides agree.
    shown = (await served.http.get("/jobs/job_1/ledger")).json()
    assert (shown["equations"][0]["rows"]["trained"], shown["balanced"]) == (2, False)


async def test_steps_and_versions_page_newest_first(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        for number in range(1, 4):
            await add_step(connection, number)
            await add_version(connection, number)
    for path, column in (("steps", "step"), ("versions", "policy_version")):
        first = (await served.http.get(f"/jobs/job_1/{path}", params={"limit": 2})).json()
        rest = (await served.http.get(f"/jobs/job_1/{path}", params={"cursor": first["next_cursor"]})).json()
        assert [item[column] for item in first["items"] + rest["items"]] == [3, 2, 1]
        assert rest["next_cursor"] is None
    wrong = await served.http.get("/jobs/job_1/versions", params={"cursor": "AAAA"})
    assert wrong.json()["code"] == "invalid_cursor"


async def test_metrics_keep_peaks_when_thinned(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_metric(connection, "reward/mean", [(step, 100.0 if step == 777 else 0.0) for step in range(2000)])
        await add_metric(connection, "reward/max", [(0, None), (1, float("inf"))])
        await add_metric(connection, "loss", [(0, 1.0)])
    shown = (await served.http.get("/jobs/job_1/metrics", params={"name": "reward/*", "max_points": 50})).json()
    assert shown["names"] == ["loss", "reward/max", "reward/mean"]
    series = {item["name"]: item for item in shown["series"]}
    assert series["reward/max"]["points"] == [[0, None], [1, None]]
    assert series["reward/mean"]["n_points"] == 2000
    assert len(series["reward/mean"]["points"]) <= 50
    assert [777, 100.0] in series["reward/mean"]["points"]
    assert series["reward/mean"]["points"][-1][0] == 1999


async def test_fleet_shows_each_workers_own_version(served: Served) -> None:
    from control_plane.workers import repository

    async with served.context.database.begin() as connection:
        for name, version in (("A", "8"), ("B", "7")):
            row = {
                "worker_id": f"{name}@1",
                "kind": "inference",
                "name": name,
                "incarnation": "1",
                "address": "127.0.0.1:1",
                "job_id": "job_1",
            }
            await repository.upsert(connection, row)
            await repository.beat(connection, {f"{name}@1": {"serving_version": version}})
    shown = (await served.http.get("/workers", params={"job": "job_1"})).json()["items"]
    assert {item["name"]: item["stats"]["serving_version"] for item in shown} == {"A": "8", "B": "7"}
