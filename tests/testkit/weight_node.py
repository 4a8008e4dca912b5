"""A weight-store node on loopback: inside the test's event loop, or a process of its own that can be killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from headrace.client.weights import WeightsClient
from headrace.core.weights import Manifest, VersionId
from headrace.service.grpc import server
from headrace.wire.weights.v1 import weights_pb2_grpc
from weightstore import Published, Publisher
from weightstore.node import Limits, Node
from weightstore.servicer import WeightsServicer

MIB = 1024**2
START_S = 20.0


@dataclass
class RunningNode:
    node: Node
    address: str
    client: WeightsClient

    async def publish(self, publisher: Publisher, policy_version: int, tensors: Any, **content: Any) -> Published:
        """Push and commit."""
        published = await publisher.publish(version(policy_version), tensors, deadline_s=20, **content)
        await self.commit(published.manifest)
        return published

    async def commit(self, manifest: Manifest, epoch: int | None = None) -> bool:
        number = manifest.version
        return await self.client.commit(
            number.job_id, number.policy_version, manifest.digest, epoch=number.epoch if epoch is None else epoch
        )


def version(policy_version: int, *, epoch: int = 1, job_id: str = "job") -> VersionId:
    parent = policy_version - 1 if policy_version else None
    return VersionId(job_id, policy_version, epoch, parent=parent, step=policy_version)


@asynccontextmanager
async def running_node(limits: Limits | None = None, *, port: int = 0) -> AsyncIterator[RunningNode]:
    """In this event loop, so that a test can look into it."""
    node = Node(limits or Limits(memory_cap_bytes=256 * MIB, chunk_bytes=MIB))
    grpc_server = server()
    servicer = WeightsServicer(node, incarnation=os.urandom(4).hex())
    weights_pb2_grpc.add_WeightsServicer_to_server(servicer, grpc_server)  # type: ignore[no-untyped-call]
    port = grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    await grpc_server.start()
    sweeping = asyncio.ensure_future(node.sweep_forever())
    client = WeightsClient.at(f"127.0.0.1:{port}")
    try:
        yield RunningNode(node, f"127.0.0.1:{port}", client)
    finally:
        await client.close()
        sweeping.cancel()
        await grpc_server.stop(grace=0)
        node.close()


class ChildProcess:
    """A Python process of this repository that prints lines; killed at the end whatever happens."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str) -> "ChildProcess":
        paths = os.pathsep.join(path for path in sys.path if path)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
        )
        return cls(process)

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S):
            return (await self.process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def pause(self) -> None:
        """A moment for the process to get on."""
        await asyncio.sleep(0.05)

    async def exit_code(self) -> int:
        async with asyncio.timeout(START_S):
            return await self.process.wait()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def child(*arguments: str) -> AsyncIterator[ChildProcess]:
    process = await ChildProcess.start(*arguments)
    try:
        yield process
    finally:
        await process.kill()
