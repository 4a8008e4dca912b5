"""The life of one service process.

bind ─► serve (health, reflection, metrics) ─► register ─► heartbeat ∥ main ─► drain ─► deregister ─► close
"""

import asyncio
import gc
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from headrace.service.control_client import ControlClient
from headrace.service.errors import AddressInUse, ServiceFailed
from headrace.service.grpc import server
from headrace.service.logging import configure_logging, get_logger
from headrace.service.metrics import MetricsEndpoint, RpcMetrics, serve_metrics
from headrace.service.registration import Registration
from headrace.service.settings import ServiceSettings

log = get_logger(__name__)


class ServiceApp:
    """One process with one gRPC server, registered under one name. Make it inside a running event loop.

    Add servicers to `server` and their full names with `add_service`, set `on_stats` and `on_drain`, then `run`.
    """

    def __init__(self, settings: ServiceSettings, *, kind: str, capabilities: Mapping[str, str] | None = None) -> None:
        self.settings = settings
        self.kind = kind
        self.server = server([RpcMetrics()])
        self.service_names: list[str] = []
        self.on_stats: Callable[[], Mapping[str, float]] | None = None
        self.on_drain: Callable[[], Awaitable[None]] | None = None
        self.control = ControlClient(
            settings.control_address,
            rpc_timeout_s=settings.rpc_timeout_s,
            give_up_s=settings.register_timeout_s,
        )
        self.address = ""
        self._stop = asyncio.Event()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._registration = Registration(
            self.control,
            kind=kind,
            name=settings.resolved_name(kind),
            labels=settings.labels,
            capabilities=capabilities or {},
            stats=lambda: self.on_stats() if self.on_stats else {},
            on_drain=self.stop,
        )
        configure_logging(settings.log_level, settings.log_file, service=kind, worker_id=self.worker_id)

    @property
    def incarnation(self) -> str:
        """Fresh for each process start."""
        return self._registration.incarnation

    @property
    def worker_id(self) -> str:
        """name@incarnation."""
        return self._registration.worker_id

    def add_service(self, full_name: str) -> None:
        """Name a service for health checks and reflection: `DESCRIPTOR.services_by_name[…].full_name`."""
        self.service_names.append(full_name)

    def stop(self) -> None:
        """Begin the drain, as SIGTERM does."""
        self._stop.set()

    async def run(self, main: Callable[[], Awaitable[None]] | None = None) -> None:
        """Serve until SIGTERM, SIGINT, a drain from the control plane, or the end of `main`.

        Raises what `main` raises, `AddressInUse`, and `RegistrationFailed`. Everything is closed when it returns.
        """
        self._catch_signals()
        endpoint: MetricsEndpoint | None = None
        try:
            await self._serve()
            endpoint = serve_metrics(self.settings.host, self.settings.metrics_port)
            if await self._register(endpoint.address if endpoint else ""):
                await self._work(main)
        finally:
            await self._close()
            if endpoint is not None:
                endpoint.close()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Outside the main thread (tests) signals belong to somebody else.
            with suppress(ValueError, RuntimeError, NotImplementedError):
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("signal", signal=number.name)
        self._stop.set()
        # A second signal ends the process without waiting for the drain.
        asyncio.get_running_loop().remove_signal_handler(number)

    async def _serve(self) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = [*self.service_names, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.server)
        wanted = f"{self.settings.host}:{self.settings.port}"
        try:
            port = self.server.add_insecure_port(wanted)
        except RuntimeError as error:
            raise AddressInUse(
                f"cannot listen on {wanted}: {error}; choose another --port, or 0 for a free one"
            ) from None
        await self.server.start()
        self.address = f"{self.settings.host}:{port}"
        for name in ("", *self.service_names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        log.info("listening", address=self.address)

    async def _register(self, metrics_address: str) -> bool:
        """False if a signal came while the control plane was looked for."""
        registering = asyncio.ensure_future(
            self._registration.register(
                address=self.address,
                metrics_address=metrics_address,
                give_up_s=self.settings.register_timeout_s,
            )
        )
        return await self._unless_stopped(registering)

    async def _unless_stopped(self, *work: asyncio.Future[Any]) -> bool:
        """Wait for the first of `work`, or for the stop. False if the stop came first. Raises what the work raised."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait([stopped, *work], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        done = [task for task in work if task.done()]
        for task in done:
            task.result()
        if not done:
            await self._cancel(*work)
        return bool(done)

    async def _work(self, main: Callable[[], Awaitable[None]] | None) -> None:
        beating = asyncio.ensure_future(self._registration.heartbeat())
        working = [asyncio.ensure_future(main())] if main else []
        try:
            stopped = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait([stopped, beating, *working], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not any(task.done() for task in working):
                await self._drain()
        finally:
            await self._cancel(beating, *working)
        for task in (beating, *working):
            if not task.cancelled():
                task.result()

    async def _drain(self) -> None:
        await self._health.enter_graceful_shutdown()
        if self.on_drain is None:
            return
        try:
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await self.on_drain()
        except TimeoutError:
            log.warning("drain_timed_out", drain_timeout_s=self.settings.drain_timeout_s)

    @staticmethod
    async def _cancel(*tasks: asyncio.Future[Any]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        with suppress(grpc.aio.AioRpcError):
            await self.control.deregister(self.worker_id)
        await self.server.stop(grace=1.0)
        await self.control.close()
        log.info("stopped")


def run_service(build: Callable[[], Awaitable[None]]) -> None:
    """Run `build`, the async main of a service, and exit: 0 after a drain, 5 without a control plane, 1 otherwise."""
    configure_logging()
    try:
        asyncio.run(_awaited(build))
    except ServiceFailed as error:
        log.error("failed", reason=str(error))
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 -- the last line that the operator sees
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception:
        # The log is where the launcher and the operator look; a bare traceback on stderr would miss the log file.
        log.exception("crashed")
        raise SystemExit(1) from None
    finally:
        # The interpreter's last collection would look at every object of torch, which takes longer than the drain.
        gc.freeze()


async def _awaited(build: Callable[[], Awaitable[None]]) -> None:
    await build()
