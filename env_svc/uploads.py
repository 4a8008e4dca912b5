"""Blobs on their way to the control plane: batched, and patient while it restarts."""

import asyncio
import hashlib
from collections.abc import Awaitable, Mapping
from typing import Protocol

import grpc.aio

from env_svc.faults import InfraFault

MAX_BATCH_BYTES = 1024 * 1024
MAX_BATCH_BLOBS = 256


class BlobSink(Protocol):
    """Where blobs go; `headrace.service.control_client.ControlClient` is one."""

    def put_blobs(self, blobs: Mapping[str, bytes], *, give_up_s: float | None = None) -> Awaitable[None]: ...


def digest_of(data: bytes) -> str:
    """sha256 as hex."""
    return hashlib.sha256(data).hexdigest()


class Uploads:
    """Gathers the blobs of attempts that finish together; one call is in flight at a time."""

    def __init__(self, sink: BlobSink, give_up_s: float) -> None:
        self._sink, self._give_up_s = sink, give_up_s
        self._queue: asyncio.Queue[tuple[dict[str, bytes], asyncio.Future[None]]] = asyncio.Queue()

    async def put(self, *blobs: bytes) -> list[str]:
        """Store blobs and return their digests, in order.

        Raises:
            InfraFault: ``blob_upload``, after ``give_up_s``.
        """
        named = {digest_of(data): data for data in blobs}
        stored = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((named, stored))
        await stored
        return [digest_of(data) for data in blobs]

    async def run(self) -> None:
        """The uploader task. Endless."""
        while True:
            waiting = [await self._queue.get()]
            n_bytes = _size(waiting[0][0])
            while not self._queue.empty() and len(waiting) < MAX_BATCH_BLOBS and n_bytes < MAX_BATCH_BYTES:
                waiting.append(self._queue.get_nowait())
                n_bytes += _size(waiting[-1][0])
            await self._store(waiting)

    async def _store(self, waiting: list[tuple[dict[str, bytes], asyncio.Future[None]]]) -> None:
        blobs = {digest: data for named, _ in waiting for digest, data in named.items()}
        fault: InfraFault | None = None
        try:
            await self._sink.put_blobs(blobs, give_up_s=self._give_up_s)
        except grpc.aio.AioRpcError as error:
            fault = InfraFault("blob_upload", f"the control plane took no blobs: {error.code().name} {error.details()}")
        for _, stored in waiting:
            if stored.done():
                continue
            if fault is None:
                stored.set_result(None)
            else:
                stored.set_exception(fault)


def _size(blobs: Mapping[str, bytes]) -> int:
    return sum(len(data) for data in blobs.values())
