"""Health, readiness, capabilities, Prometheus."""

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.params import API
from control_plane.ops import capabilities, readiness
from control_plane.ops.schemas import Capabilities, Health, Readiness

router = APIRouter(tags=["ops"])
api_router = APIRouter(prefix=API, tags=["ops"])

PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Readiness, "description": "A check does not hold."}}


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """The process answers; nothing else is asked."""
    return Answer({"status": "ok"})


@router.get("/readyz", response_model=Readiness, responses=NOT_READY)
async def readyz(context: Ctx) -> Response:
    """Whether a job could run now."""
    found = await readiness.check(context)
    return Answer(found, 200 if found["ready"] else 503)


@router.get("/metrics", response_class=Response, responses=PLAIN)
async def prometheus() -> Response:
    """Prometheus."""
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


@api_router.get("/capabilities", response_model=Capabilities)
async def get_capabilities(context: Ctx) -> Response:
    """What this server can do."""
    return Answer(capabilities.capabilities(context.settings))
