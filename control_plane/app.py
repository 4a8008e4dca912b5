"""The HTTP application: the features' routers and the layers around them."""

from fastapi import FastAPI
from starlette.types import ASGIApp

import headrace
from control_plane.blobs import routes as blobs
from control_plane.console import routes as console
from control_plane.context import Context
from control_plane.events import routes as events
from control_plane.groups import routes as groups
from control_plane.http import openapi, problems
from control_plane.http.guard import Guard
from control_plane.jobs import routes as jobs
from control_plane.ledger import routes as ledger
from control_plane.ops import routes as ops
from control_plane.rewards import routes as rewards
from control_plane.series import routes as series
from control_plane.trajectories import routes as trajectories
from control_plane.workers import routes as workers

# Each router carries its whole prefix, so that a matched route knows its full template.
ROUTERS = (
    jobs.router,
    groups.router,
    trajectories.router,
    ledger.router,
    rewards.router,
    series.router,
    events.router,
    workers.router,
    blobs.router,
    ops.api_router,
    ops.router,
    console.router,
)


def build_routes() -> FastAPI:
    """The application without a context: enough for its OpenAPI document."""
    app = FastAPI(
        title="Headrace",
        version=headrace.__version__,
        description="Reinforcement learning of language-model agents, as services.",
        docs_url=None,
        redoc_url=None,
    )
    for router in ROUTERS:
        app.include_router(router)
    problems.install(app)
    app.openapi = lambda: openapi.document(app)  # type: ignore[method-assign]  # FastAPI's documented way
    return app


def build_app(context: Context) -> ASGIApp:
    """The application as it is served."""
    app = build_routes()
    app.state.context = context
    return Guard(app, max_body_bytes=context.settings.max_body_bytes)
