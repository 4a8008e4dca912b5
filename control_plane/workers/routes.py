"""REST of workers."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.cursors import page
from control_plane.http.params import API, Cursor, Limit, Text
from control_plane.http.problems import ProblemError, not_found
from control_plane.workers import repository
from control_plane.workers.schemas import Kind, State, Worker, WorkerPage

router = APIRouter(prefix=f"{API}/workers", tags=["workers"])

WorkerId = Annotated[str, Path(min_length=1, max_length=300, description="name@incarnation")]


@router.get("", response_model=WorkerPage)
async def list_workers(
    context: Ctx,
    limit: Limit = 100,
    cursor: Cursor = None,
    kind: Annotated[list[Kind] | None, Query()] = None,
    state: Annotated[list[State] | None, Query(description="Default: live and lapsed.")] = None,
    job: Text = None,
) -> Response:
    """Worker processes with their last heartbeat."""
    states = sorted(state or ["lapsed", "live"])
    scope = {"list": "workers", "kind": sorted(kind or []), "state": states, "job": job}
    after = context.cursors.read(scope, cursor, 1)[0] if cursor else None
    async with context.database.connect() as connection:
        rows = await repository.list_page(
            connection, kinds=kind or [], states=states, job_id=job, after_id=after, limit=limit
        )
    return Answer(page(rows, limit, lambda row: context.cursors.make(scope, [row["worker_id"]])))


@router.post("/{worker_id}/drain", status_code=202, response_model=Worker)
async def drain_worker(context: Ctx, worker_id: WorkerId) -> Response:
    """Ask a worker to finish what it has in hand and leave; it learns of it with its next heartbeat."""
    async with context.database.begin() as connection:
        worker = await repository.drain(connection, worker_id)
    if worker is None:
        raise not_found("worker", worker_id)
    if worker["state"] != "live":
        raise ProblemError(409, "worker_not_live", f"the worker is {worker['state']}", extra={"state": worker["state"]})
    context.hub.notify("workers")
    return Answer(worker, 202)
