"""REST of steps, versions and metrics."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from control_plane.context import Context, Ctx
from control_plane.http.answers import Answer
from control_plane.http.cursors import page
from control_plane.http.params import API, MAX_INT, Cursor, JobId, Limit, Number, Texts
from control_plane.http.problems import not_found
from control_plane.jobs import repository as jobs
from control_plane.series import repository
from control_plane.series.downsample import downsample
from control_plane.series.schemas import MetricsView, StepPage, VersionPage

router = APIRouter(prefix=API + "/jobs/{job_id}", tags=["series"])

MAX_SERIES = 200


@router.get("/steps", response_model=StepPage)
async def list_steps(context: Ctx, job_id: JobId, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Training steps, newest first, with where their time went."""
    return await _numbered(context, job_id, "step", repository.list_steps, cursor, limit)


@router.get("/versions", response_model=VersionPage)
async def list_versions(context: Ctx, job_id: JobId, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Weight versions, newest first, with what their way to the workers took."""
    return await _numbered(context, job_id, "policy_version", repository.list_versions, cursor, limit)


async def _numbered(
    context: Context, job_id: str, column: str, read: Callable[..., Any], cursor: str | None, limit: int
) -> Response:
    scope = {"list": f"{column}:{job_id}"}
    before = context.cursors.read(scope, cursor, 1)[0] if cursor else None
    async with context.database.connect() as connection:
        rows = await read(connection, job_id, before=before, limit=limit)
        await _need_job(connection, job_id, rows)
    return Answer(page(rows, limit, lambda row: context.cursors.make(scope, [row[column]])))


@router.get("/metrics", response_model=MetricsView)
async def get_metrics(
    context: Ctx,
    job_id: JobId,
    name: Texts = None,
    max_points: Annotated[int, Query(ge=4, le=1000, description="Of each series; extremes are kept.")] = 500,
    step_gte: Number = None,
    step_lte: Number = None,
) -> Response:
    """Series by step. `name` may be repeated and may hold `*`; without it every series comes, 200 at most."""
    async with context.database.connect() as connection:
        names = await repository.metric_names(connection, job_id)
        await _need_job(connection, job_id, names)
        wanted = [known for known in names if name is None or any(fnmatchcase(known, want) for want in name)]
        found = await repository.points(
            connection, job_id, wanted[:MAX_SERIES], first=step_gte or 0, last=MAX_INT if step_lte is None else step_lte
        )
    series = [
        {"name": known, "n_points": len(points), "points": downsample(points, max_points)}
        for known, points in found.items()
    ]
    return Answer({"job_id": job_id, "names": names, "series": series})


async def _need_job(connection: AsyncConnection, job_id: str, found: list[Any]) -> None:
    if not found and not await jobs.exists(connection, job_id):
        raise not_found("job", job_id)
