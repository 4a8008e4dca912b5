"""A process' place in the control plane: register, heartbeat, register again when it is forgotten."""

import asyncio
import os
import uuid
from collections.abc import Callable, Mapping

import grpc.aio

import headrace
from headrace.service.control_client import ControlClient
from headrace.service.errors import RegistrationFailed
from headrace.service.grpc import is_transient
from headrace.service.logging import get_logger
from headrace.wire.control.v1 import control_pb2

DEFAULT_INTERVAL_S = 1.0

log = get_logger(__name__)


class Registration:
    """One incarnation of a named process.

    The first registration gives up after its deadline; after that nothing does: a control plane that restarts finds
    its processes again by their heartbeats, which it answers with `known = false`.
    """

    def __init__(
        self,
        control: ControlClient,
        *,
        kind: str,
        name: str,
        labels: Mapping[str, str],
        capabilities: Mapping[str, str],
        stats: Callable[[], Mapping[str, float]],
        on_drain: Callable[[], None],
    ) -> None:
        self._control = control
        self._stats = stats
        self._on_drain = on_drain
        self._interval_s = DEFAULT_INTERVAL_S
        self.incarnation = uuid.uuid4().hex[:12]
        self.worker_id = f"{name}@{self.incarnation}"
        self._request = control_pb2.RegisterRequest(
            kind=kind,
            name=name,
            incarnation=self.incarnation,
            labels=labels,
            capabilities=capabilities,
            pid=os.getpid(),
            version=headrace.__version__,
        )

    async def register(self, *, address: str, metrics_address: str, give_up_s: float) -> None:
        """Register, trying for `give_up_s`. Raises `RegistrationFailed` with the reason and what to check."""
        self._request.address = address
        self._request.metrics_address = metrics_address
        try:
            answer = await self._control.register(self._request, give_up_s=give_up_s)
        except grpc.aio.AioRpcError as error:
            raise RegistrationFailed(self._explain(error, give_up_s)) from error
        self._accept(answer)

    async def heartbeat(self) -> None:
        """The heartbeat task, endless."""
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                answer = await self._control.heartbeat(self.worker_id, self._stats())
                if not answer.known:
                    log.info("forgotten_by_control_plane", control_address=self._control.address)
                    self._accept(await self._control.register(self._request, give_up_s=self._interval_s))
                elif answer.drain:
                    log.info("drain_requested")
                    self._on_drain()
            except grpc.aio.AioRpcError as error:
                log.warning("heartbeat_failed", code=error.code().name, detail=error.details())

    def _accept(self, answer: control_pb2.RegisterResponse) -> None:
        if answer.heartbeat_interval_s > 0:
            self._interval_s = answer.heartbeat_interval_s
        log.info("registered", control_address=self._control.address, address=self._request.address)

    def _explain(self, error: grpc.aio.AioRpcError, give_up_s: float) -> str:
        address = self._control.address
        if is_transient(error):
            return (
                f"no control plane answered at {address} within {give_up_s:g} s "
                f"({error.code().name}); is it running, and is --control-address right?"
            )
        return f"the control plane at {address} refused this process: {error.code().name}: {error.details()}"
