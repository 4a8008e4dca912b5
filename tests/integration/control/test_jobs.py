"""Submission, lists and wishes over a real socket and a real PostgreSQL."""

import asyncio
from collections.abc import Callable
from typing import Any

from testkit.control import Served

MakeJob = Callable[..., dict[str, Any]]


async def test_submitted_job_is_shown_as_it_was_resolved(served: Served, job_document: MakeJob) -> None:
    answer = await served.http.post("/jobs", json=job_document(seed=2**53 - 1))
    assert answer.status_code == 201, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert job["phase"] == "queued"
    assert job["seed"] == 2**53 - 1
    assert job["warnings"] == [
        "tasks.0.env.entry_point env_svc.environments.calculator:Calculator: no env worker could be asked"
    ]
    shown = (await served.http.get(f"/jobs/{job['id']}")).json()
    assert shown["spec"]["async"]["load_at"] == "publish"
    assert shown["spec"]["tasks"][0]["rewards"][0]["name"] == "exact"
    assert shown["seed"] == 2**53 - 1
