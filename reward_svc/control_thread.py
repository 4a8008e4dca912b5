"""The control plane as the worker's threads see it: one event loop in a thread of its own.

Celery's pool is made of threads, so nothing forks after this thread and its channels exist.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import grpc.aio

from headrace.service.control_client import ControlClient
from headrace.service.errors import RegistrationFailed
from headrace.service.logging import get_logger
from headrace.service.registration import Registration
from headrace.wire.control.v1 import control_pb2
from reward_svc.settings import RewardSettings
from reward_svc.tally import Tally

MARGIN_S = 5.0
STOP_TIMEOUT_S = 5.0
REPORTS_PER_CALL = 64

Answer = TypeVar("Answer")

log = get_logger(__name__)


class ControlThread:
    """Registers this worker, keeps its heartbeat, and carries calls to any control plane that a batch names."""

    def __init__(self, settings: RewardSettings, tally: Tally) -> None:
        self._settings, self._tally = settings, tally
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="control", daemon=True)
        self._clients: dict[str, ControlClient] = {}
        self._registered: asyncio.Task[None] | None = None
        self.worker_id = ""

    def start(self, metrics_address: str) -> None:
        """Start the loop; registration goes on beside, for a worker can grade before it is listed."""
        self._thread.start()
        self.worker_id = self._run(self._begin(metrics_address), STOP_TIMEOUT_S)

    def get_blobs(self, address: str, digests: Sequence[str]) -> dict[str, bytes]:
        """Raises grpc.aio.AioRpcError after ``report_give_up_s``."""
        give_up_s = self._settings.report_give_up_s
        return self._run(self._get(address, digests, give_up_s), give_up_s + MARGIN_S)

    def report(self, address: str, reports: Sequence[control_pb2.RewardReport]) -> list[bool]:
        """Whether each report was the first write. Raises grpc.aio.AioRpcError after ``report_give_up_s``."""
        give_up_s = self._settings.report_give_up_s
        return self._run(self._report(address, reports, give_up_s), give_up_s + MARGIN_S)

    def stop(self) -> None:
        """Say goodbye and end the loop."""
        try:
            self._run(self._end(), STOP_TIMEOUT_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self, work: Coroutine[Any, Any, Answer], timeout_s: float) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    async def _begin(self, metrics_address: str) -> str:
        registration = Registration(
            self._client(self._settings.control_address),
            kind="reward",
            name=self._settings.resolved_name("reward"),
            labels=self._settings.labels,
            capabilities={"queue": self._settings.queue, "concurrency": str(self._settings.concurrency)},
            stats=self._tally.figures,
            # Celery drains on this signal: the batch in hand is finished, no other is taken.
            on_drain=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
        self._registered = asyncio.create_task(self._keep_registered(registration, metrics_address))
        return registration.worker_id

    async def _keep_registered(self, registration: Registration, metrics_address: str) -> None:
        while True:
            try:
                await registration.register(
                    address="", metrics_address=metrics_address, give_up_s=self._settings.register_timeout_s
                )
                await registration.heartbeat()
            except RegistrationFailed as error:
                log.warning("not_registered", reason=str(error))
                await asyncio.sleep(1.0)

    async def _get(self, address: str, digests: Sequence[str], give_up_s: float) -> dict[str, bytes]:
        return await self._client(address).get_blobs(digests, give_up_s=give_up_s)

    async def _report(self, address: str, reports: Sequence[control_pb2.RewardReport], give_up_s: float) -> list[bool]:
        accepted: list[bool] = []
        for start in range(0, len(reports), REPORTS_PER_CALL):
            some = reports[start : start + REPORTS_PER_CALL]
            accepted += await self._client(address).report_rewards(some, give_up_s=give_up_s)
        return accepted

    async def _end(self) -> None:
        if self._registered is not None:
            self._registered.cancel()
            await asyncio.gather(self._registered, return_exceptions=True)
        for client in self._clients.values():
            try:
                if client.address == self._settings.control_address:
                    await client.deregister(self.worker_id)
            except grpc.aio.AioRpcError as error:
                log.info("not_deregistered", code=error.code().name)
            await client.close()

    def _client(self, address: str) -> ControlClient:
        if address not in self._clients:
            self._clients[address] = ControlClient(address, rpc_timeout_s=self._settings.rpc_timeout_s)
        return self._clients[address]
