"""The served API against its own OpenAPI document: generated requests over a real socket."""

import asyncio
import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from testkit.control_plane import Served, served_control_plane
from testkit.rows import (
    add_attempt,
    add_events,
    add_group,
    add_job,
    add_metric,
    add_segment,
    add_step,
    add_version,
    empty_all,
)

from control_plane.blobs import service as blobs
from control_plane.workers import repository as workers
from headrace.wire.common.v1.common_pb2 import Segment
from headrace.wire.environments.v1.environments_pb2 import TokenSpan, TrajectoryTokens

DOCUMENT = json.loads((Path(__file__).parents[3] / "openapi.json").read_text())
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
# Readiness is 503 where no worker is, and an event stream is held open: both have tests of their own.
schema = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="^/readyz$").exclude(path_regex="/events$")
TOKENS = TrajectoryTokens(
    token_ids=[5, 6],
    spans=[TokenSpan(start=1, n_tokens=1)],
    logprobs=[-0.5],
    segments=[Segment(policy_version=3, worker_id="w@a", weight_digest="d", n_tokens=1)],
).SerializeToString()
DIGEST = sha256(TOKENS).hexdigest()
KNOWN = {"job_id": "job_1", "trajectory_id": "trj_1", "worker_id": "env-0@a", "digest": DIGEST}


async def seed(served: Served) -> None:
    """One row of everything, so that answers have something in them."""
    await blobs.store(served.context, [(DIGEST, TOKENS)])
    async with served.context.database.begin() as connection:
        await add_job(connection)
        await add_group(connection, "grp_1", 1)
        await add_attempt(connection, "trj_1", token_blob=DIGEST, start_version=3, reward=float("nan"))
        await add_segment(connection, "trj_1", 0)
        await add_version(connection, 3)
        await add_step(connection, 3)
        await add_metric(connection, "loss", [(1, 0.5), (2, float("nan"))])
        await add_events(connection, ["step.sampled"])
        row = {"worker_id": "env-0@a", "kind": "env", "name": "env-0", "incarnation": "a", "address": "127.0.0.1:1"}
        await workers.upsert(connection, row)


@pytest.fixture(scope="module")
def base_url(migrated_url: str) -> Iterator[str]:
    """A control plane in a thread of its own: generated tests are not async."""
    ready: list[str] = []
    is_ready, is_done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served_control_plane(migrated_url) as served:
            await seed(served)
            ready.append(served.http_url)
            is_ready.set()
            while not is_done.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_ready.wait(30)
    yield ready[0]
    is_done.set()
    thread.join(30)


@pytest.fixture(scope="module", autouse=True)
def emptied(migrated_url: str, base_url: str) -> Iterator[None]:
    """Leave the database as it was found."""
    yield
    empty_all(migrated_url)


@schema.parametrize()
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_answers_conform_to_the_document(case: schemathesis.Case, base_url: str) -> None:
    for name, value in (case.path_parameters or {}).items():
        # Half of the requests are about what exists.
        if name in KNOWN and len(str(value)) % 2:
            case.path_parameters[name] = KNOWN[name]
    if "wait" in (case.query or {}):
        case.query["wait"] = 0.01
    answer = case.call(base_url=base_url, timeout=30)
    case.validate_response(answer, checks=CHECKS)
