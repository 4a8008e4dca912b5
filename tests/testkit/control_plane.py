"""A control plane's HTTP and gRPC servers on free ports, over a real database, without job runners."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import httpx

from control_plane.context import Context
from control_plane.process import open_context
from control_plane.serving import ControlServer, HttpServer
from control_plane.settings import ControlSettings


@dataclass(frozen=True)
class Served:
    """`http` talks to the REST API over a real socket."""

    context: Context
    http: httpx.AsyncClient
    http_url: str
    grpc_address: str


@asynccontextmanager
async def served_control_plane(database_url: str, **overrides: object) -> AsyncIterator[Served]:
    """Serve a migrated database until the end of the block."""
    values = {"database_url": database_url, "http_port": 0, "grpc_port": 0, "shutdown_s": 1.0, **overrides}
    settings = ControlSettings(**values)
    async with AsyncExitStack() as stack:
        context = await open_context(settings, stack)
        control, http = ControlServer(context), HttpServer(context)
        await control.start()
        stack.push_async_callback(control.stop)
        await http.start()
        stack.push_async_callback(http.stop)
        url = f"http://{http.address}"
        client = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=30, trust_env=False, limits=httpx.Limits())
        )
        yield Served(context, client, url, control.address)
