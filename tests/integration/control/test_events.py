"""The event log as a long poll and as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy import update
from testkit.control_plane import Served, served_control_plane
from testkit.rows import add_events, add_job

from control_plane.db.tables import jobs
from control_plane.events import service

PATH = "/jobs/job_1/events"
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
async def job(served: Served) -> None:
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_events(connection, ["step_started", "step_committed"])


async def add(served: Served, *types: str, phase: str | None = None) -> None:
    async with served.context.database.begin() as connection:
        if types:
            await add_events(connection, types)
        if phase is not None:
            await connection.execute(update(jobs).values(phase=phase))
    served.context.hub.notify("events:job_1")


async def frames(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    frame: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            frame[name] = value
        elif frame:
            yield frame
            frame = {}


@pytest.mark.usefixtures("job")
async def test_poll_returns_what_is_new_and_waits_for_it(served: Served) -> None:
    first = (await served.http.get(PATH)).json()
    assert [item["type"] for item in first["items"]] == ["step_started", "step_committed"]
    assert first["is_complete"] is False
    after = first["next_after"]
    nothing = (await served.http.get(PATH, params={"after": after})).json()
    assert (nothing["items"], nothing["next_after"]) == ([], after)
    waiting = asyncio.create_task(served.http.get(PATH, params={"after": after, "wait": 20}))
    await asyncio.sleep(0.2)
    await add(served, "evaluated")
    async with asyncio.timeout(2):
        assert [item["type"] for item in (await waiting).json()["items"]] == ["evaluated"]


@pytest.mark.usefixtures("job")
async def test_poll_of_an_ended_job_does_not_wait(served: Served) -> None:
    await add(served, phase="succeeded")
    async with asyncio.timeout(2):
        answer = (await served.http.get(PATH, params={"after": 2, "wait": 30})).json()
    assert answer["is_complete"] is True


@pytest.mark.usefixtures("job")
async def test_stream_goes_on_after_the_last_event_that_was_seen(served: Served) -> None:
    async with served.http.stream("GET", PATH, headers=STREAM) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = frames(answer)
        assert await anext(stream) == {"retry": "1000"}
        first = await anext(stream)
        assert (first["event"], json.loads(first["data"])["data"]) == ("step_started", {"n": 0})
    async with served.http.stream("GET", PATH, headers={**STREAM, "last-event-id": first["id"]}) as answer:
        stream = frames(answer)
        await anext(stream)
        assert (await anext(stream))["event"] == "step_committed"
        await add(served, "job_ended", phase="succeeded")
        async with asyncio.timeout(3):
            told = [frame["event"] async for frame in stream]
    assert told == ["job_ended", "end"]
    again = await served.http.get(PATH, headers={**STREAM, "last-event-id": "3"})
    assert again.status_code == 204
    bad = await served.http.get(PATH, headers={**STREAM, "last-event-id": "x"})
    assert bad.status_code == 422


@pytest.mark.usefixtures("job")
async def test_quiet_stream_gets_comments(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "COMMENT_S", 0.1)
    monkeypatch.setattr(service, "POLL_S", 0.05)
    async with served.http.stream("GET", PATH, headers={**STREAM, "last-event-id": "2"}) as answer:
        async with asyncio.timeout(3):
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    break


async def test_shutdown_ends_streams_and_polls(control_database_url: str) -> None:
    async with served_control_plane(control_database_url) as served:
        async with served.context.database.begin() as connection:
            await add_job(connection)
        base = served.http_url + "/api/v1"
        client = httpx.AsyncClient(base_url=base, timeout=30, trust_env=False)
        poll = asyncio.create_task(client.get(PATH, params={"wait": 30}))
        stream = asyncio.create_task(client.get(PATH, headers=STREAM))
        await asyncio.sleep(0.3)
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started < 5
    assert (await poll).status_code == 200
    assert (await stream).text == "retry: 1000\n\n"
    await client.aclose()
