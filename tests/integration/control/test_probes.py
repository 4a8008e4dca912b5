"""What live services say of a spec decides whether it is accepted."""

from collections.abc import Callable
from typing import Any

from testkit.control_plane import Served, served_control_plane
from testkit.probed import probed_services

from control_plane.workers import repository as workers
from headrace.wire.common.v1.common_pb2 import Fault

MakeJob = Callable[..., dict[str, Any]]
CALCULATOR = "env_svc.environments.calculator:Calculator"


async def add_worker(served: Served, kind: str, address: str) -> None:
    row = {"worker_id": f"{kind}-0@a", "kind": kind, "name": f"{kind}-0", "incarnation": "a", "address": address}
    async with served.context.database.begin() as connection:
        await workers.upsert(connection, row)


async def test_environment_that_does_not_import_is_refused(served: Served, job_document: MakeJob) -> None:
    fault = Fault(code="import_failed", kind="env", detail="No module named 'nowhere'\x00")
    document = job_document()
    async with probed_services({CALCULATOR: fault}, {}) as address:
        await add_worker(served, "env", address)
        answer = await served.http.post("/jobs", json=document)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["pointer"] == "/tasks/0/env"
    assert "import_failed: No module named 'nowhere'" in error["message"]


async def test_environment_that_answers_leaves_no_warning(served: Served, job_document: MakeJob) -> None:
    async with probed_services({CALCULATOR: None}, {}) as address:
        await add_worker(served, "env", address)
        answer = await served.http.post("/jobs", json=job_document())
    assert (answer.status_code, answer.json()["warnings"]) == (201, [])


async def test_model_that_the_trainer_cannot_read_is_refused(served: Served, job_document: MakeJob) -> None:
    fault = Fault(code="model_not_found", detail="/no/such/model is not a directory")
    async with probed_services({}, {"/no/such/model": fault}) as address:
        await add_worker(served, "trainer", address)
        answer = await served.http.post("/jobs", json=job_document(model={"path": "/no/such/model"}))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/model/path"


async def test_worker_that_does_not_answer_holds_nobody_up(control_database_url: str, job_document: MakeJob) -> None:
    async with served_control_plane(control_database_url, probe_timeout_s=0.3) as served:
        await add_worker(served, "env", "127.0.0.1:1")
        answer = await served.http.post("/jobs", json=job_document())
    assert answer.status_code == 201
    assert "no env worker could be asked" in answer.json()["warnings"][0]
