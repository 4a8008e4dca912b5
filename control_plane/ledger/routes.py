"""REST of ledger and buffer."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.params import API, JobId
from control_plane.http.problems import not_found
from control_plane.ledger import repository
from control_plane.ledger.equation import equations
from control_plane.ledger.schemas import BufferView, LedgerView
from headrace.core.ledger import IN_FLIGHT

router = APIRouter(prefix=API + "/jobs/{job_id}", tags=["ledger"])


@router.get("/ledger", response_model=LedgerView)
async def get_ledger(context: Ctx, job_id: JobId) -> Response:
    """Both sides of the conservation equation, per purpose."""
    # One snapshot: the ledger and the rows it is compared with belong to the same transaction of the runner.
    async with context.database.snapshot() as connection:
        job = await repository.recorded(connection, job_id)
        counted = await repository.count_attempts(connection, job_id) if job is not None else []
    if job is None:
        raise not_found("job", job_id)
    found = equations(job["ledger"], counted)
    return Answer(
        {
            "job_id": job_id,
            "recorded": job["ledger"],
            "equations": found,
            "balanced": all(equation["balanced"] for equation in found),
        }
    )


@router.get("/buffer", response_model=BufferView)
async def get_buffer(context: Ctx, job_id: JobId) -> Response:
    """Groups that wait, by state, task and version, with ages; attempts in flight by task and state."""
    async with context.database.snapshot() as connection:
        job = await repository.recorded(connection, job_id)
        if job is None:
            raise not_found("job", job_id)
        stock = await repository.stock(connection, job_id)
        counted = await repository.count_attempts(connection, job_id, states=IN_FLIGHT)
    version = job["current_version"]
    return Answer(
        {
            "job_id": job_id,
            "current_version": version,
            "alpha": job["spec"].get("async", {}).get("alpha"),
            "wanted": job["spec"].get("batch", {}).get("groups", 0),
            "stock": [{**row, "lag": _lag(version, row["version"])} for row in stock],
            "in_flight": [
                {"task": task, "state": state, "attempts": count}
                for purpose, task, state, count in counted
                if purpose == "train"
            ],
        }
    )


def _lag(current: Any, version: Any) -> int | None:
    return None if current is None or version is None else int(current) - int(version)
