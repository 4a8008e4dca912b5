"""REST of jobs."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.cursors import page
from control_plane.http.params import API, Cursor, JobId, Limit, Text, Texts, Wait
from control_plane.http.problems import ProblemError
from control_plane.jobs import repository, service
from control_plane.jobs.idempotency import read_key
from control_plane.jobs.schemas import Job, JobPage, JobWithSpec, Phase, SubmittedJob, Validation
from headrace.client.jobspec import parse, read_json

router = APIRouter(prefix=f"{API}/jobs", tags=["jobs"])

SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/JobSpec"}}},
    }
}
REPLAYED = "Idempotency-Replayed"


async def _document(request: Request) -> object:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ProblemError(415, "unsupported_media_type", "send the job spec as application/json")
    return read_json(await request.body())


@router.post("", status_code=201, response_model=SubmittedJob, openapi_extra=SPEC_BODY)
async def submit_job(
    request: Request, context: Ctx, idempotency_key: Annotated[str | None, Header(max_length=255)] = None
) -> Response:
    """Submit a job spec. With an `Idempotency-Key` the same request makes one job, however often it is sent."""
    document = await _document(request)
    key = read_key(idempotency_key, route="POST /api/v1/jobs", document=document)
    status, body, is_replay = await service.submit(context, document, key)
    headers = {"Location": f"/api/v1/jobs/{body['id']}"}
    if is_replay:
        headers[REPLAYED] = "true"
    return Answer(body, status, headers=headers)


@router.post("/validate", response_model=Validation, openapi_extra=SPEC_BODY)
async def validate_job(request: Request, context: Ctx) -> Response:
    """Check a job spec as submission would, and show it resolved. Nothing is stored."""
    spec = parse(await _document(request)).resolve()
    warnings = await service.check_with_services(context, spec)
    resolved = spec.model_dump(mode="json", by_alias=True)
    return Answer({"spec": resolved, "digest": spec.digest(), "warnings": warnings})


@router.get("", response_model=JobPage)
async def list_jobs(
    context: Ctx,
    limit: Limit = 50,
    cursor: Cursor = None,
    phase: Annotated[list[Phase] | None, Query()] = None,
    name: Text = None,
    label: Texts = None,
) -> Response:
    """Jobs, newest first. `label=key:value` may be repeated; all must match."""
    labels = _labels(label or [])
    scope = {"list": "jobs", "phase": sorted(phase or []), "name": name, "labels": labels}
    after = context.cursors.read(scope, cursor, 1)[0] if cursor else None
    async with context.database.connect() as connection:
        rows = await repository.list_page(
            connection, after_id=after, limit=limit, phases=phase or [], name=name, labels=labels
        )
    return Answer(page(rows, limit, lambda row: context.cursors.make(scope, [row["id"]])))


def _labels(given: list[str]) -> dict[str, str]:
    pairs = [item.partition(":") for item in given]
    if any(not colon for _, colon, _ in pairs):
        raise ProblemError(422, "invalid_request", "a label filter has the form key:value: write label=key:value")
    return {key: value for key, _, value in pairs}


@router.get("/{job_id}", response_model=JobWithSpec)
async def get_job(
    context: Ctx,
    job_id: JobId,
    wait: Wait = 0,
    until: Phase | Literal["terminal"] | None = None,
) -> Response:
    """A job. With `wait` the answer is held until its phase is `until` (`terminal`: any last one), or changes."""
    if wait:
        return Answer(await service.wait_until(context, job_id, wait_s=wait, until=until))
    return Answer(await service.get(context, job_id))


@router.post("/{job_id}/pause", status_code=202, response_model=Job)
async def pause_job(context: Ctx, job_id: JobId) -> Response:
    """Stop admission and new turns; the job keeps its environments for `limits.pause_ttl_s`."""
    return Answer(await service.wish(context, job_id, "pause"), 202)


@router.post("/{job_id}/resume", status_code=202, response_model=Job)
async def resume_job(context: Ctx, job_id: JobId) -> Response:
    """Go on after a pause."""
    return Answer(await service.wish(context, job_id, "resume"), 202)


@router.post("/{job_id}/cancel", status_code=202, response_model=Job)
async def cancel_job(context: Ctx, job_id: JobId) -> Response:
    """End the job: what is in flight is aborted, the ledger closed, the last checkpoint kept."""
    return Answer(await service.wish(context, job_id, "cancel"), 202)
