"""The control plane as a service process calls it: deadlines on every call, retries while it restarts."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import grpc.aio

from headrace.service.backoff import delays_s
from headrace.service.grpc import channel, is_transient
from headrace.wire.common.v1 import common_pb2
from headrace.wire.control.v1 import control_pb2, control_pb2_grpc

BLOB_BATCH_BYTES = 1024 * 1024

Answer = TypeVar("Answer")


class ControlClient:
    """Async stub of `Control`. Every method raises `grpc.aio.AioRpcError` when its time is over.

    `rpc_timeout_s` bounds one call; `give_up_s` bounds a call together with its retries, which are made for
    transient errors alone. All calls are safe to repeat: registration is by name and incarnation, rewards and blobs
    have natural keys.
    """

    def __init__(self, address: str, *, rpc_timeout_s: float = 10.0, give_up_s: float = 60.0) -> None:
        self.address = address
        self._rpc_timeout_s = rpc_timeout_s
        self._give_up_s = give_up_s
        self._channel = channel(address)
        self._stub = control_pb2_grpc.ControlStub(self._channel)

    async def register(
        self, request: control_pb2.RegisterRequest, *, give_up_s: float | None = None
    ) -> control_pb2.RegisterResponse:
        return await self._retry(lambda timeout_s: self._stub.Register(request, timeout=timeout_s), give_up_s)

    async def heartbeat(
        self, worker_id: str, stats: Mapping[str, float] | None = None, state: Mapping[str, str] | None = None
    ) -> control_pb2.HeartbeatResponse:
        """One try: the next heartbeat is the retry."""
        request = control_pb2.HeartbeatRequest(worker_id=worker_id, stats=stats or {}, state=state or {})
        answer: control_pb2.HeartbeatResponse = await self._stub.Heartbeat(request, timeout=self._rpc_timeout_s)
        return answer

    async def deregister(self, worker_id: str, *, timeout_s: float = 1.0) -> None:
        """One try: a process that cannot say goodbye lapses."""
        await self._stub.Deregister(control_pb2.DeregisterRequest(worker_id=worker_id), timeout=timeout_s)

    async def report_rewards(
        self, reports: Sequence[control_pb2.RewardReport], *, give_up_s: float | None = None
    ) -> list[bool]:
        """Whether each report was the first write of its reward, in order."""
        request = control_pb2.ReportRewardsRequest(reports=reports)
        answer = await self._retry(lambda timeout_s: self._stub.ReportRewards(request, timeout=timeout_s), give_up_s)
        return list(answer.accepted)

    async def put_blobs(self, blobs: Mapping[str, bytes], *, give_up_s: float | None = None) -> None:
        """Store blobs by sha256 hex digest, about 1 MiB a call."""
        for batch in _batches(blobs.items()):
            await self._put(batch, give_up_s)

    async def _put(self, batch: Sequence[tuple[str, bytes]], give_up_s: float | None) -> None:
        request = control_pb2.PutBlobsRequest(
            blobs=[common_pb2.Blob(digest=digest, data=data) for digest, data in batch]
        )
        await self._retry(lambda timeout_s: self._stub.PutBlobs(request, timeout=timeout_s), give_up_s)

    async def get_blobs(self, digests: Iterable[str], *, give_up_s: float | None = None) -> dict[str, bytes]:
        """The blobs among `digests` that exist."""
        request = control_pb2.GetBlobsRequest(digests=list(digests))
        answer = await self._retry(lambda timeout_s: self._stub.GetBlobs(request, timeout=timeout_s), give_up_s)
        return {blob.digest: blob.data for blob in answer.blobs}

    async def close(self) -> None:
        await self._channel.close(None)

    async def _retry(self, call: Callable[[float], Awaitable[Answer]], give_up_s: float | None) -> Answer:
        loop = asyncio.get_running_loop()
        end = loop.time() + (self._give_up_s if give_up_s is None else give_up_s)
        for delay_s in delays_s():
            left_s = end - loop.time()
            try:
                return await call(max(min(self._rpc_timeout_s, left_s), 0.001))
            except grpc.aio.AioRpcError as error:
                if not is_transient(error) or loop.time() + delay_s >= end:
                    raise
            await asyncio.sleep(delay_s)
        raise AssertionError("delays_s never ends")


def _batches(blobs: Iterable[tuple[str, bytes]]) -> Iterable[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for digest, data in blobs:
        if batch and size + len(data) > BLOB_BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((digest, data))
        size += len(data)
    if batch:
        yield batch
