"""What holds for every route: problems, limits, ids, metrics, and many requests at once."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from testkit.control_plane import Served, served_control_plane
from testkit.rows import add_attempt, add_job

MakeJob = Callable[..., dict[str, Any]]
MEMBERS = {"type", "title", "status", "detail", "instance", "code", "retryable", "request_id"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/no/such/route", 404, "route_not_found"),
        ("DELETE", "/jobs", 405, "method_not_allowed"),
        ("GET", "/jobs?limit=0", 422, "invalid_request"),
        ("GET", "/jobs?limit=many", 422, "invalid_request"),
        ("GET", "/jobs?name=%00", 422, "invalid_request"),
        ("GET", "/jobs/%00", 404, "route_not_found"),
        ("GET", "/jobs/job_1/trajectories?version_gte=99999999999999999999", 422, "invalid_request"),
        ("GET", "/jobs/job_1/trajectories?min_reward=nan", 422, "invalid_request"),
        ("GET", "/jobs/job_1/trajectories?unknown=1", 422, "invalid_request"),
        ("GET", "/blobs/xyz", 422, "invalid_request"),
        ("POST", "/jobs/job_1/cancel", 404, "job_not_found"),
    ],
)
async def test_every_error_is_a_problem(served: Served, method: str, path: str, status: int, code: str) -> None:
    answer = await served.http.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem.keys() >= MEMBERS
    assert (problem["code"], problem["status"]) == (code, status)
    assert problem["request_id"] == answer.headers["x-request-id"]


async def test_405_names_what_is_allowed(served: Served) -> None:
    assert (await served.http.delete("/jobs")).headers["allow"] == "GET, POST"
    assert (await served.http.delete("/jobs/job_1")).headers["allow"] == "GET"


async def test_request_id_is_kept_if_it_is_one(served: Served) -> None:
    assert (await served.http.get("/jobs", headers={"x-request-id": "a-1"})).headers["x-request-id"] == "a-1"
    assert (await served.http.get("/jobs", headers={"x-request-id": "a b"})).headers["x-request-id"] != "a b"


async def test_unforeseen_errors_are_500_without_a_traceback(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from control_plane.jobs import service

    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret-detail")

    monkeypatch.setattr(service, "get", broken)
    answer = await served.http.get("/jobs/job_1")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal_error"
    assert "secret-detail" not in answer.text
    assert "Traceback" not in answer.text


async def test_wrong_media_type_is_415(served: Served) -> None:
    answer = await served.http.post("/jobs", content=b"a: 1", headers={"content-type": "application/yaml"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


async def test_deep_nesting_is_refused_and_harms_nobody(served: Served, job_document: MakeJob) -> None:
    brackets = await served.http.post("/jobs", content=b"[" * 20_000 + b"]" * 20_000, headers=JSON)
    assert brackets.status_code == 422
    document = job_document()
    document["tasks"][0]["env"]["config"] = "HERE"
    for depth in (500, 1000):
        body = json.dumps(document).replace('"HERE"', '{"a":' * depth + "1" + "}" * depth)
        answer = await served.http.post("/jobs", content=body, headers=JSON)
        assert answer.status_code == 422
        assert "deeper" in answer.json()["errors"][0]["message"]
    assert (await served.http.get("/jobs")).status_code == 200


async def test_body_of_300_mb_is_refused_before_it_is_read(served: Served) -> None:
    host, port = served.http_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nContent-Length: {300 << 20}\r\n"
    writer.write((head + "Content-Type: application/json\r\n\r\n").encode())
    await writer.drain()
    async with asyncio.timeout(2):
        status = await reader.readline()
    assert b" 413 " in status
    writer.close()


async def test_endless_body_is_refused_at_the_limit(served: Served) -> None:
    sent = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 64 << 20:
            sent += 1 << 20
            yield b" " * (1 << 20)

    try:
        answer = await served.http.post("/jobs", content=pieces(), headers=JSON)
    except httpx.NetworkError:
        answer = None  # the server closed while the client still wrote
    assert answer is None or answer.status_code == 413
    assert sent < 64 << 20


async def test_two_hundred_requests_at_once_are_all_answered(control_database_url: str) -> None:
    async with served_control_plane(control_database_url, db_pool_size=4) as served:
        async with served.context.database.begin() as connection:
            await add_job(connection)
            for number in range(20):
                await add_attempt(connection, f"trj_{number:03}")
        path = "/jobs/job_1/trajectories"
        tasks = [asyncio.create_task(served.http.get(path)) for _ in range(200)]
        await asyncio.sleep(0.05)
        for task in tasks[::7]:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        codes = [answer.status_code for answer in answers if isinstance(answer, httpx.Response)]
        assert len(codes) >= 165
        assert set(codes) <= {200, 503}
        assert codes.count(200) > 100
        started = time.perf_counter()
        assert (await served.http.get(path)).status_code == 200
        assert time.perf_counter() - started < 1
        assert served.context.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_exhausted_pool_is_503_with_retry_after(control_database_url: str) -> None:
    async with served_control_plane(control_database_url, db_pool_size=2, db_pool_wait_s=0.2) as served:
        async with served.context.database.connect(), served.context.database.connect():
            answer = await served.http.get("/jobs")
        assert answer.status_code == 503
        assert answer.json()["code"] == "overloaded"
        assert answer.json()["retryable"] is True
        assert answer.headers["retry-after"] == "1"
        assert (await served.http.get("/jobs")).status_code == 200


async def test_metrics_label_route_templates_never_paths(served: Served) -> None:
    await served.http.get("/jobs/job_of_this_test")
    await served.http.get("/nowhere/at_all")
    text = (await served.http.get(f"{served.http_url}/metrics")).text
    assert 'route="/api/v1/jobs/{job_id}"' in text
    assert 'route="unmatched"' in text
    assert "job_of_this_test" not in text
    assert "at_all" not in text


async def test_health_answers_and_readiness_says_what_is_missing(served: Served) -> None:
    assert (await served.http.get(f"{served.http_url}/healthz")).json() == {"status": "ok"}
    answer = await served.http.get(f"{served.http_url}/readyz")
    assert answer.status_code == 503
    checks = {check["name"]: check["ok"] for check in answer.json()["checks"]}
    assert checks["database"] is True
    assert checks["workers:inference"] is False


async def test_capabilities_list_the_presets(served: Served) -> None:
    found = (await served.http.get("/capabilities")).json()
    assert found["presets"]["bounded"]["alpha"] == 1
    assert found["presets"]["independent"]["alpha"] is None
    assert found["algorithms"] == ["grpo"]
