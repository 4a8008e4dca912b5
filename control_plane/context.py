"""What routes and the gRPC servicer work with, made once by the process that serves them."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from control_plane.db.engine import Database
from control_plane.http.cursors import Cursors
from control_plane.hub import Hub
from control_plane.settings import ControlSettings


@dataclass(frozen=True)
class Context:
    """`closing` is set when the process begins to stop: streams and long polls end at once."""

    settings: ControlSettings
    database: Database
    hub: Hub
    cursors: Cursors
    closing: asyncio.Event = field(default_factory=asyncio.Event)


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


Ctx = Annotated[Context, Depends(_context)]
"""Parameter type of a route that needs the context."""
