"""Roles of the weight store as processes to kill: `python -m testkit.weight_process node|publish|pull …`."""

import asyncio
import sys

import numpy as np
from testkit.weight_node import MIB, running_node, version

from headrace.client.weights import WeightsClient
from weightstore import Publisher, Puller
from weightstore.node import Limits
from weightstore.puller import Staging
from weightstore.transfer import Sender

N_BUCKETS = 10


def ten_buckets(fill: int) -> dict[str, np.ndarray]:
    """Ten tensors of 1 MiB, which are ten buckets with `bucket_bytes` of 1 MiB."""
    return {f"w{index}": np.full(MIB // 4, fill * 100 + index, dtype=np.float32) for index in range(N_BUCKETS)}


async def node(port: str) -> None:
    async with running_node(Limits(memory_cap_bytes=256 * MIB, chunk_bytes=MIB, window=1), port=int(port)) as running:
        print(running.address, flush=True)
        await asyncio.Event().wait()


async def publish(address: str, policy_version: str, fill: str, stop_after: str) -> None:
    """Stops for ever after it sent `stop_after` chunks."""
    n_left = int(stop_after)
    send = Sender.send

    def send_some(self: Sender, credit: object) -> None:
        nonlocal n_left
        if not n_left:
            print("stuck", flush=True)
            return
        n_left -= 1
        send(self, credit)  # type: ignore[arg-type]

    Sender.send = send_some  # type: ignore[method-assign]
    async with Publisher([address], bucket_bytes=MIB) as publisher:
        await publisher.publish(version(int(policy_version)), ten_buckets(int(fill)))
    print("done", flush=True)


async def hold(address: str, policy_version: str) -> None:
    """Pulls and keeps its session open."""
    client = WeightsClient.at(address)
    puller = Puller()
    await puller.pull(await client.get_manifest("job", int(policy_version)), address)
    print("done", flush=True)
    await asyncio.Event().wait()


async def pull(address: str, policy_version: str, stop_after: str) -> None:
    """Stops for ever after it verified `stop_after` buckets."""
    n_left = int(stop_after)
    verify = Staging.verify

    async def verify_some(self: Staging, bucket: int) -> bool:
        nonlocal n_left
        if not n_left:
            print("stuck", flush=True)
            await asyncio.Event().wait()
        n_left -= 1
        return await verify(self, bucket)

    Staging.verify = verify_some  # type: ignore[method-assign]
    client = WeightsClient.at(address)
    manifest = await client.get_manifest("job", int(policy_version))
    async with Puller() as puller:
        await puller.pull(manifest, address, deadline_s=60)
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run({"node": node, "publish": publish, "pull": pull, "hold": hold}[sys.argv[1]](*sys.argv[2:]))
