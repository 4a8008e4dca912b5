"""Submission, lists and wishes over a real socket and a real PostgreSQL."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, update
from testkit.control_plane import Served
from testkit.rows import add_job

from control_plane.db.tables import jobs

MakeJob = Callable[..., dict[str, Any]]


async def test_submitted_job_is_shown_as_it_was_resolved(served: Served, job_document: MakeJob) -> None:
    answer = await served.http.post("/jobs", json=job_document(seed=2**53 - 1))
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert job["phase"] == "queued"
    assert job["warnings"] == [
        "tasks.0.env.entry_point env_svc.environments.calculator:Calculator: no env worker could be asked"
    ]
    shown = (await served.http.get(f"/jobs/{job['id']}")).json()
    assert shown["spec"]["async"]["load_at"] == "publish"
    assert shown["spec"]["tasks"][0]["rewards"][0]["name"] == "exact"
    # The largest integer that every JSON reader keeps exact survives the round trip (RS-08).
    assert shown["seed"] == shown["spec"]["seed"] == 2**53 - 1


async def test_resolved_spec_submitted_again_means_the_same_job(served: Served, job_document: MakeJob) -> None:
    first = (await served.http.post("/jobs/validate", json=job_document())).json()
    second = (await served.http.post("/jobs/validate", json=first["spec"])).json()
    assert second["spec"] == first["spec"]
    assert second["digest"] == first["digest"]


@pytest.mark.parametrize(
    ("block", "pointer", "part"),
    [
        ({"optimzer": {"lr": 1}}, "/optimzer", "optimizer"),
        ({"max_steps": "3"}, "/max_steps", "integer"),
        ({"async": {"alpha": -1}}, "/async/alpha", "0"),
        ({"batch": {"group_size": 1}}, "/batch/group_size", "2"),
        ({"seed": 2**53 + 1}, "/seed", "2**53"),
        ({"optimizer": {"lr": "inf"}}, "/optimizer/lr", "number"),
        ({"name": "a\x00b"}, "/name", "U+0000"),
        ({"labels": {"team": "\ud800"}}, "/labels/team", "surrogate"),
    ],
)
async def test_bad_spec_is_refused_with_a_pointer(
    served: Served, job_document: MakeJob, block: dict[str, Any], pointer: str, part: str
) -> None:
    body = json.dumps(job_document(**block))
    answer = await served.http.post("/jobs/validate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_job_spec"
    assert problem["retryable"] is False
    found = {item["pointer"]: item["message"] + item["fix"] for item in problem["errors"]}
    assert part in found[pointer]


async def test_model_that_nobody_can_look_at_is_a_warning(served: Served, job_document: MakeJob) -> None:
    answer = await served.http.post("/jobs/validate", json=job_document(model={"path": "/no/such/model"}))
    assert answer.status_code == 200
    assert any("no trainer could be asked" in warning for warning in answer.json()["warnings"])


async def test_grader_that_its_module_does_not_define_is_refused(served: Served, job_document: MakeJob) -> None:
    document = job_document()
    document["tasks"][0]["rewards"] = [{"fn": "reward_svc.graders.calculator:no_such"}]
    problem = (await served.http.post("/jobs", json=document)).json()
    assert problem["status"] == 422
    assert problem["errors"][0]["pointer"] == "/tasks/0/rewards/0/fn"
    assert "no_such" in problem["errors"][0]["message"]


@pytest.mark.parametrize("body", [b'{"seed": NaN}', b'{"seed": Infinity}', b"{", b'{"a": 1, "a": 2}', b"\xff\xfe", b""])
async def test_what_is_no_json_is_refused(served: Served, body: bytes) -> None:
    answer = await served.http.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["code"] == "invalid_job_spec"


async def test_number_beyond_floats_is_refused_by_name(served: Served, job_document: MakeJob) -> None:
    text = served.http.build_request("POST", "/jobs", json=job_document(optimizer={"lr": 12345.5})).content
    body = text.replace(b"12345.5", b"1e999")
    answer = await served.http.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/optimizer/lr"


async def test_twenty_posts_under_one_key_make_one_job(served: Served, job_document: MakeJob) -> None:
    document, headers = job_document(), {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(served.http.post("/jobs", json=document, headers=headers) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    async with served.context.database.connect() as connection:
        assert (await connection.execute(select(func.count()).select_from(jobs))).scalar() == 1

    reordered = dict(reversed(document.items()))
    again = await served.http.post("/jobs", json=reordered, headers=headers)
    assert again.json() == answers[0].json()
    assert again.headers["idempotency-replayed"] == "true"

    changed = await served.http.post("/jobs", json={**document, "optimizer": {"lr": 0.5}}, headers=headers)
    assert changed.status_code == 409
    assert changed.json()["code"] == "idempotency_key_reused"


async def test_key_in_flight_is_answered_409_with_retry_after(served: Served, job_document: MakeJob) -> None:
    from control_plane.jobs import repository
    from control_plane.jobs.idempotency import read_key

    document = job_document()
    key = read_key("k-2", route="POST /api/v1/jobs", document=document)
    assert key is not None
    async with served.context.database.begin() as first:
        await repository.claim_key(first, **key.row, body_digest=key.body_digest)
        answer = await served.http.post("/jobs", json=document, headers={"Idempotency-Key": "k-2"})
    assert answer.status_code == 409
    assert answer.json()["code"] == "idempotency_key_in_flight"
    assert answer.json()["retryable"] is True
    assert answer.headers["retry-after"] == "1"


async def test_without_a_key_each_post_makes_a_job(served: Served, job_document: MakeJob) -> None:
    ids = {(await served.http.post("/jobs", json=job_document())).json()["id"] for _ in range(2)}
    assert len(ids) == 2


async def test_refused_spec_does_not_use_up_its_key(served: Served, job_document: MakeJob) -> None:
    headers = {"Idempotency-Key": "k-3"}
    assert (await served.http.post("/jobs", json=job_document(max_steps=0), headers=headers)).status_code == 422
    assert (await served.http.post("/jobs", json=job_document(), headers=headers)).status_code == 201


async def test_list_pages_newest_first_and_filters(served: Served, job_document: MakeJob) -> None:
    for number in range(5):
        labels = {"team": "a" if number % 2 else "b"}
        await served.http.post("/jobs", json=job_document(name=f"job {number}", labels=labels))
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = (await served.http.get("/jobs", params={"limit": 2} | ({"cursor": cursor} if cursor else {}))).json()
        names += [job["name"] for job in page["items"]]
        if (cursor := page["next_cursor"]) is None:
            break
        # A job that comes while the list is read does not shift it.
        await served.http.post("/jobs", json=job_document(name="late"))
    assert names == [f"job {number}" for number in (4, 3, 2, 1, 0)]
    labelled = (await served.http.get("/jobs", params={"label": "team:a"})).json()
    assert [job["name"] for job in labelled["items"]] == ["job 3", "job 1"]
    assert (await served.http.get("/jobs", params={"phase": "running"})).json()["items"] == []


async def test_cursor_of_another_list_or_server_is_refused(served: Served, job_document: MakeJob) -> None:
    for _ in range(2):
        await served.http.post("/jobs", json=job_document())
    cursor = (await served.http.get("/jobs", params={"limit": 1})).json()["next_cursor"]
    other = await served.http.get("/jobs", params={"cursor": cursor, "phase": "queued"})
    forged = await served.http.get("/jobs", params={"cursor": cursor[:-2] + "AA"})
    nonsense = await served.http.get("/jobs", params={"cursor": "?!"})
    assert {answer.json()["code"] for answer in (other, forged, nonsense)} == {"invalid_cursor"}
    assert {answer.status_code for answer in (other, forged, nonsense)} == {422}


@pytest.mark.parametrize(
    ("phase", "desired", "wanted", "status", "after"),
    [
        ("running", None, "pause", 202, "pause"),
        ("running", None, "cancel", 202, "cancel"),
        ("queued", None, "cancel", 202, "cancel"),
        ("paused", None, "resume", 202, "resume"),
        ("running", "pause", "resume", 202, "resume"),
        ("running", "pause", "cancel", 202, "cancel"),
        ("paused", None, "pause", 202, None),
        ("cancelled", None, "cancel", 202, None),
        ("running", "cancel", "pause", 409, "cancel"),
        ("running", None, "resume", 409, None),
        ("succeeded", None, "cancel", 409, None),
        ("failed", None, "pause", 409, None),
        ("queued", None, "pause", 409, None),
    ],
)
async def test_wish_is_written_or_refused_by_phase(
    served: Served, phase: str, desired: str | None, wanted: str, status: int, after: str | None
) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection, phase=phase, desired=desired)
    answer = await served.http.post(f"/jobs/job_1/{wanted}")
    assert answer.status_code == status, answer.text
    if status == 409:
        assert answer.json()["code"] == "illegal_transition"
        assert answer.json()["phase"] == phase
        assert phase in answer.json()["detail"]
    assert (await served.http.get("/jobs/job_1")).json()["desired"] == after


async def test_waiting_for_a_phase_ends_when_it_comes(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
    waiting = asyncio.create_task(served.http.get("/jobs/job_1", params={"wait": 20, "until": "terminal"}))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with served.context.database.begin() as connection:
        await connection.execute(update(jobs).values(phase="succeeded"))
    served.context.hub.notify("jobs")
    async with asyncio.timeout(2):
        assert (await waiting).json()["phase"] == "succeeded"


async def test_waiting_answers_with_the_present_phase_when_time_is_up(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
    answer = await served.http.get("/jobs/job_1", params={"wait": 0.2, "until": "terminal"})
    assert answer.json()["phase"] == "running"


@pytest.mark.parametrize("path", ["/jobs/none", "/jobs/none/steps", "/jobs/none/ledger", "/trajectories/none"])
async def test_unknown_ids_are_404_problems(served: Served, path: str) -> None:
    answer = await served.http.get(path)
    assert answer.status_code == 404
    assert answer.json()["code"].endswith("_not_found")
