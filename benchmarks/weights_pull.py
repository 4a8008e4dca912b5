"""Pull and push of one version against a plain copy and against bytes over gRPC, all in the same run.

    python benchmarks/weights_pull.py --mib 256 --rounds 5

The node is a process of its own. One line of JSON: GiB/s, best and median of the rounds, and the ratio of the bests to
the copy. Absolute figures move with the machine's load; compare the ratios.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from headrace.client.weights import WeightsClient
from headrace.core.weights import VersionId
from headrace.service.grpc import channel, server
from headrace.wire.weights.v1 import weights_pb2_grpc
from weightstore import Publisher, Puller
from weightstore.node import Limits, Node
from weightstore.servicer import WeightsServicer

MIB = 1024**2
GIB = 1024**3
JOB = "benchmark"
BYTES_METHOD = "/benchmark.Bytes/Pull"
BYTES_CHUNK = MIB


async def node(cap_bytes: int) -> None:
    """A node, and beside it a method that streams as many bytes as it is asked for."""
    grpc_server = server()
    store = Node(Limits(memory_cap_bytes=cap_bytes))
    weights_pb2_grpc.add_WeightsServicer_to_server(WeightsServicer(store, "benchmark"), grpc_server)
    piece = bytes(BYTES_CHUNK)

    async def stream_bytes(request: bytes, context: Any) -> None:
        for _ in range(int(request)):
            await context.write(piece)

    handler = grpc.unary_stream_rpc_method_handler(stream_bytes)
    _, service, method = BYTES_METHOD.split("/")
    grpc_server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await store.sweep_forever()


async def timed(rounds: int, nbytes: int, work: Callable[[int], Awaitable[None]]) -> dict[str, float]:
    """GiB/s over the rounds, after one that warms up."""
    await work(-1)
    rates = []
    for number in range(rounds):
        started_s = time.perf_counter()
        await work(number)
        rates.append(nbytes / GIB / (time.perf_counter() - started_s))
    return {"best": round(max(rates), 2), "median": round(statistics.median(rates), 2)}


async def store_rates(address: str, mib: int, rounds: int, transport: Any) -> dict[str, Any]:
    tensors = {f"layer{index}": np.ones((mib * MIB // 4 // 16,), np.float32) for index in range(16)}
    client = WeightsClient.at(address)
    versions = iter(range(1000))
    async with Publisher([address], transport=transport) as publisher, Puller(transport=transport) as puller:

        async def push(_: int) -> None:
            number = next(versions)
            for array in tensors.values():
                array[0::1024] += 1
            snapshot = publisher.stage(VersionId(f"{JOB}-{transport}", number, 1), tensors)
            started_s = time.perf_counter()
            manifests.append((await publisher.push(snapshot)).manifest)
            pushes.append(mib * MIB / GIB / (time.perf_counter() - started_s))
            await client.commit(f"{JOB}-{transport}", number, manifests[-1].digest, epoch=1)
            await client.set_retention(f"{JOB}-{transport}", [number], epoch=1)

        async def pull(_: int) -> None:
            staged = await puller.pull(manifests[-1], address)
            lanes.append(staged.report.transport)
            staged.release()

        manifests: list[Any] = []
        pushes: list[float] = []
        lanes: list[str] = []
        for number in range(rounds + 1):
            await push(number)
        pulled = await timed(rounds, mib * MIB, pull)
        await client.release_job(f"{JOB}-{transport}", epoch=1)
    await client.close()
    pushed = {"best": round(max(pushes[1:]), 2), "median": round(statistics.median(pushes[1:]), 2)}
    return {"push": pushed, "pull": pulled, "transport": lanes[-1]}


async def measure(address: str, mib: int, rounds: int) -> dict[str, Any]:
    source, target = np.ones(mib * MIB, np.uint8), np.zeros(mib * MIB, np.uint8)

    async def copy(_: int) -> None:
        np.copyto(target, source)

    grpc_channel = channel(address)

    async def pull_grpc(_: int) -> None:
        offset = 0
        async for piece in grpc_channel.unary_stream(BYTES_METHOD)(str(mib).encode()):
            target[offset : offset + len(piece)] = np.frombuffer(piece, np.uint8)
            offset += len(piece)

    result: dict[str, Any] = {"mib": mib, "memcpy": await timed(rounds, mib * MIB, copy)}
    result["shm"] = await store_rates(address, mib, rounds, "shm")
    result["memcpy_again"] = await timed(rounds, mib * MIB, copy)
    result["tcp"] = await store_rates(address, mib, rounds, "tcp")
    result["grpc"] = await timed(rounds, mib * MIB, pull_grpc)
    await grpc_channel.close()
    memcpy = max(result["memcpy"]["best"], result["memcpy_again"]["best"])
    result["ratio_to_memcpy"] = {
        "pull_shm": round(result["shm"]["pull"]["best"] / memcpy, 3),
        "pull_tcp": round(result["tcp"]["pull"]["best"] / memcpy, 3),
        "grpc": round(result["grpc"]["best"] / memcpy, 3),
    }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--node", action="store_true", help="be the node; used by the benchmark itself")
    options = parser.parse_args()
    if options.node:
        asyncio.run(node(4 * options.mib * MIB))
        return
    command = [sys.executable, __file__, "--node", "--mib", str(options.mib)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            print(json.dumps(asyncio.run(measure(address, options.mib, options.rounds))))
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
