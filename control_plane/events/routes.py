"""REST of events: JSON, or server-sent events for `Accept: text/event-stream`."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from control_plane.context import Ctx
from control_plane.events import service
from control_plane.events.schemas import EventPage
from control_plane.http.answers import Answer
from control_plane.http.params import API, MAX_INT, JobId, Limit, Wait
from control_plane.http.problems import ProblemError
from control_plane.jobs.phases import TERMINAL

router = APIRouter(prefix=API + "/jobs/{job_id}/events", tags=["events"])

ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
    204: {"description": "The job has ended and every event was told: an EventSource stops asking."},
}


@router.get("", response_model=EventPage, responses=ANSWERS)
async def get_events(
    request: Request,
    context: Ctx,
    job_id: JobId,
    after: Annotated[int, Query(ge=0, le=MAX_INT, description="Last id that is known already.")] = 0,
    limit: Limit = 100,
    wait: Wait = 0,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> Response:
    """Events after `after` (or `Last-Event-ID`), oldest first."""
    start = after if last_event_id is None else _event_id(last_event_id)
    if "text/event-stream" not in request.headers.get("accept", ""):
        return Answer(await service.poll(context, job_id, last_id=start, limit=limit, wait_s=wait))
    items, phase = await service.read(context, job_id, start, 1)
    if last_event_id is not None and not items and phase in TERMINAL:
        return Response(status_code=204)
    return StreamingResponse(
        service.stream(context, job_id, start),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _event_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_INT:
        raise ProblemError(
            422, "invalid_request", "Last-Event-ID is not an id of this log; leave it out to start again"
        )
    return int(text)
