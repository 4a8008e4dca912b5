"""`python -m control_plane` as a process: start, restart with its promises kept, and a clean end."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

MakeJob = Callable[..., dict[str, Any]]
START_S, STOP_S = 40, 15


@asynccontextmanager
async def control_plane(repository: Path, database_url: str, *flags: str) -> AsyncIterator[tuple[Any, str]]:
    """The process and the address of its HTTP server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "control_plane", "--http-port", "0", "--grpc-port", "0"),
        *("--database-url", database_url, "--broker-url", "redis://127.0.0.1:1/0", *flags),
        cwd=repository,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(START_S):
            yield process, await _address(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _address(process: Any) -> str:
    lines: list[str] = []
    while line := (await process.stderr.readline()).decode():
        lines.append(line)
        record = json.loads(line) if line.startswith("{") else {}
        if record.get("event") == "listening":
            return str(record["http"])
    raise AssertionError("the control plane ended: " + "".join(lines))


async def end(process: Any, number: int) -> int:
    process.send_signal(number)
    async with asyncio.timeout(STOP_S):
        _, code = await asyncio.gather(process.stderr.read(), process.wait())
    return int(code)


async def test_idempotency_key_outlives_a_killed_control_plane(
    repository: Path, database_url: str, job_document: MakeJob
) -> None:
    # Nothing can start this job: no worker is there.
    document, headers = job_document(), {"Idempotency-Key": "once"}
    async with control_plane(repository, database_url) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
            first = await http.post("/api/v1/jobs", json=document, headers=headers)
            cursor = (await http.get("/api/v1/jobs", params={"limit": 1})).json()["next_cursor"]
        await end(process, signal.SIGKILL)
    async with control_plane(repository, database_url) as (process, url):
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
            again = await http.post("/api/v1/jobs", json=document, headers=headers)
            listed = (await http.get("/api/v1/jobs")).json()["items"]
        assert await end(process, signal.SIGTERM) == 0
    assert first.status_code == 201
    assert cursor is None
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotency-replayed"] == "true"
    assert [job["id"] for job in listed] == [first.json()["id"]]


async def test_busy_port_is_told_with_the_flag_to_change(repository: Path, migrated_url: str) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "control_plane", "--http-port", str(port), "--grpc-port", "0"),
        *("--database-url", migrated_url),
        cwd=repository,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(START_S):
        _, told = await process.communicate()
    listener.close()
    assert process.returncode == 1
    assert told.decode().splitlines()[-1].endswith("choose another --http-port")
