"""HTTP and gRPC servers of one process: start, and stop in the order that lets clients go."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from control_plane.app import build_app
from control_plane.context import Context
from control_plane.rpc.servicer import ControlServicer
from headrace.service.errors import AddressInUse
from headrace.service.grpc import server
from headrace.service.logging import get_logger
from headrace.service.metrics import RpcMetrics
from headrace.wire.control.v1 import control_pb2, control_pb2_grpc

CONTROL = control_pb2.DESCRIPTOR.services_by_name["Control"].full_name
BACKLOG = 2048

log = get_logger(__name__)


class _Uvicorn(uvicorn.Server):
    """Uvicorn without its own signal handlers: the process decides when to stop."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Uvicorn on a socket of ours, so that a busy port is told before anything starts."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._context = context
        self._socket = bind(settings.host, settings.http_port, "--http-port")
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        config = uvicorn.Config(
            build_app(context),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
            backlog=BACKLOG,
        )
        self._server = _Uvicorn(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve; returns when requests are taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError("the HTTP server ended before it began")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """End open streams and long polls, let other requests finish, close."""
        self._context.closing.set()
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


class ControlServer:
    """The gRPC server with Control, health and reflection."""

    def __init__(self, context: Context) -> None:
        settings = context.settings
        self._server = server([RpcMetrics()])
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # missing from the stubs
        control_pb2_grpc.add_ControlServicer_to_server(ControlServicer(context), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((CONTROL, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        wanted = f"{settings.host}:{settings.grpc_port}"
        try:
            port = self._server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise AddressInUse(f"cannot listen on {wanted}: {error}; choose another --grpc-port") from None
        self.address = f"{settings.host}:{port}"

    async def start(self) -> None:
        await self._server.start()
        await self._set(("", CONTROL), health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace=1.0)

    async def _set(self, names: Sequence[str], status: int) -> None:
        for name in names:
            await self._health.set(name, status)


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises AddressInUse with the flag to change."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, since asyncio sets TCP_NODELAY only on sockets that know theirs: without it every answer
    # of two writes waits 40 ms for a delayed acknowledgement.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise AddressInUse(f"cannot listen on {host}:{port}: {error.strerror}; choose another {flag}") from None
    bound.set_inheritable(False)
    return bound
