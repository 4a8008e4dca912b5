"""CPU time of the LLM proxy per turn, with everything real except the engines, which answer at once.

    python -m benchmarks.proxy_turns [--turns 8000] [--open 192] [--chunks 2] [--prompt 80]

The proxy runs in a process of its own; callers and engines share this one. Prints turns per second as seen here, and
the proxy's own CPU time per turn, which does not depend on how busy the other cores are.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from headrace.service.grpc import channel, server
from headrace.service.logging import configure_logging
from headrace.service.streams import FrameWriter, first_of
from headrace.wire.common.v1 import common_pb2 as common
from headrace.wire.engine.v1 import engine_pb2 as eng
from headrace.wire.engine.v1 import engine_pb2_grpc
from headrace.wire.inference.v1 import inference_pb2 as inf
from headrace.wire.inference.v1 import inference_pb2_grpc

WORKERS = ("engine-0@1", "engine-1@1")


class InstantEngine(engine_pb2_grpc.EngineServicer):
    """Answers every ADD with `n_chunks` chunks of two tokens."""

    def __init__(self, worker_id: str, n_chunks: int) -> None:
        self._hello = eng.EngineEvent(
            hello=eng.EngineHello(worker_id=worker_id, serving_version=0, weight_digest="d", max_running=32)
        )
        self._n_chunks = n_chunks

    async def Run(self, frames: AsyncIterator[eng.EngineFrame], context: Any) -> None:
        writer: FrameWriter[eng.EngineEvent] = FrameWriter(
            lambda events: context.write(eng.EngineEventFrame(events=events))
        )
        writer.put_nowait(self._hello)

        async def read() -> None:
            async for frame in frames:
                for command in frame.commands:
                    if command.HasField("open"):
                        writer.put_nowait(self._hello)
                    elif command.HasField("add"):
                        self._answer(command.add, writer)

        await first_of(read(), writer.run())

    def _answer(self, add: eng.AddRequest, writer: FrameWriter[eng.EngineEvent]) -> None:
        for index in range(self._n_chunks):
            is_last = index == self._n_chunks - 1
            chunk = eng.TokenChunk(
                request_id=add.request_id,
                epoch=add.epoch,
                offset=2 * index,
                token_ids=[5, 6],
                logprobs=[-1.0, -2.0],
                weight_digest="d",
                finish_reason=common.FINISH_REASON_STOP if is_last else common.FINISH_REASON_UNSPECIFIED,
            )
            writer.put_nowait(eng.EngineEvent(chunk=chunk))


async def proxy() -> None:
    """The measured process: prints its address and serves until it is killed."""
    from inference_svc.proxy.service import ProxyService
    from inference_svc.proxy.servicer import InferenceServicer
    from inference_svc.proxy.settings import ProxySettings

    service = ProxyService("proxy@1", ProxySettings(log_level="ERROR"))
    grpc_server = server()
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    configure_logging("ERROR")
    print(f"address 127.0.0.1:{port}", flush=True)
    await service.run()


def start(n: int, n_prompt: int) -> inf.GenerateCommand:
    sampling = common.SamplingSpec(temperature=1.0, top_p=1.0, seed=n, max_new_tokens=64, stop_token_ids=[1])
    return inf.GenerateCommand(
        start=inf.StartGeneration(
            request_id=f"t{n}/0/0",
            assignment_epoch=1,
            job_id="job",
            key=common.AttemptKey(trajectory_id=f"t{n}"),
            prompt_token_ids=range(2, 2 + n_prompt),
            sampling=sampling,
        )
    )


async def start_engine(worker_id: str, n_chunks: int) -> tuple[Any, inf.WorkerAddress]:
    grpc_server = server()
    engine_pb2_grpc.add_EngineServicer_to_server(InstantEngine(worker_id, n_chunks), grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    return grpc_server, inf.WorkerAddress(worker_id=worker_id, address=f"127.0.0.1:{port}")


async def open_rollout(stub: Any, addresses: list[inf.WorkerAddress]) -> Any:
    """The Manage call, once both engines have joined."""
    call = stub.Manage()
    opening = inf.ManageCommand(open=inf.OpenRollout(job_id="job", job_epoch=1))
    naming = inf.ManageCommand(workers=inf.SetWorkers(workers=addresses))
    await call.write(inf.ManageFrame(commands=[opening, naming]))
    seen: set[str] = set()
    async for frame in call:
        seen |= {event.worker.worker_id for event in frame.events if event.HasField("worker")}
        if seen == set(WORKERS):
            return call
    raise RuntimeError("the proxy ended the Manage stream")


async def drive(stub: Any, options: argparse.Namespace) -> None:
    """Keep `open` turns open until `turns` have ended."""
    call = stub.Generate()
    writer: FrameWriter[inf.GenerateCommand] = FrameWriter(lambda items: call.write(inf.GenerateFrame(commands=items)))
    n_started = n_ended = 0

    async def read() -> None:
        nonlocal n_started, n_ended
        async for frame in call:
            for chunk in frame.chunks:
                if chunk.finish_reason == common.FINISH_REASON_UNSPECIFIED:
                    continue
                if chunk.finish_reason != common.FINISH_REASON_STOP:
                    raise RuntimeError(f"a turn failed: {chunk}")
                n_ended += 1
                if n_started < options.turns:
                    n_started += 1
                    writer.put_nowait(start(n_started, options.prompt))
            if n_ended >= options.turns:
                return

    for _ in range(min(options.open, options.turns)):
        n_started += 1
        writer.put_nowait(start(n_started, options.prompt))
    await first_of(read(), writer.run())


def cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace) -> None:
    command = (sys.executable, "-m", "benchmarks.proxy_turns", "--role", "proxy")
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    engines: list[tuple[Any, inf.WorkerAddress]] = []
    try:
        assert child.stdout is not None
        address = (await child.stdout.readline()).decode().split()[1]
        engines += [await start_engine(worker_id, options.chunks) for worker_id in WORKERS]
        stub = inference_pb2_grpc.InferenceStub(channel(address))
        manage = await open_rollout(stub, [address for _, address in engines])
        began, used = time.perf_counter(), cpu_s(child.pid)
        await drive(stub, options)
        wall, cpu = time.perf_counter() - began, cpu_s(child.pid) - used
        manage.cancel()
        print(
            f"{options.turns / wall:.0f} turns/s here; CPU of the proxy {1e6 * cpu / options.turns:.0f} us per turn"
            f" = {options.turns / cpu:.0f} turns/s per core ({options.chunks} chunks a turn, {options.open} open)"
        )
    finally:
        child.kill()
        await child.wait()
        for grpc_server, _ in engines:
            await grpc_server.stop(grace=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the LLM proxy per turn")
    parser.add_argument("--role", choices=["measure", "proxy"], default="measure", help=argparse.SUPPRESS)
    for name, default in (("turns", 8000), ("open", 192), ("chunks", 2), ("prompt", 80)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    asyncio.run(proxy() if options.role == "proxy" else measure(options))


if __name__ == "__main__":
    main()
