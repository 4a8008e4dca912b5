"""The LLM proxy between real clients and real workers (scripted engine, weights in memory), all over loopback gRPC."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from testkit.engines import TINY_CONFIG, prompt_of, tiny_weights
from testkit.weight_source import MemorySource

from headrace.client.weights import manifest_to_wire
from headrace.core.weights.manifest import Manifest
from headrace.service.grpc import channel, server
from headrace.wire.common.v1 import common_pb2
from headrace.wire.engine.v1 import engine_pb2_grpc
from headrace.wire.inference.v1 import inference_pb2, inference_pb2_grpc
from inference_svc.proxy.service import ProxyService
from inference_svc.proxy.servicer import InferenceServicer
from inference_svc.proxy.settings import ProxySettings
from inference_svc.worker.build import build_engine
from inference_svc.worker.options import EngineOptions
from inference_svc.worker.service import WorkerIdentity, WorkerService
from inference_svc.worker.servicer import EngineServicer
from inference_svc.worker.shelf import WeightShelf

UNSPECIFIED = common_pb2.FINISH_REASON_UNSPECIFIED
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
ABORTED, FAILED = common_pb2.FINISH_REASON_ABORTED, common_pb2.FINISH_REASON_FAILED
WAIT_S = 10.0


async def until(is_reached: Callable[[], bool], within_s: float = WAIT_S, what: object = "") -> float:
    """Wait for a condition; returns the seconds it took."""
    began = time.perf_counter()
    while not is_reached():
        waited_s = time.perf_counter() - began
        assert waited_s < within_s, f"not reached within {within_s} s: {what() if callable(what) else what}"
        await asyncio.sleep(0.005)
    return time.perf_counter() - began


@dataclass(eq=False)
class RunningWorker:
    """A worker's service in this event loop."""

    worker_id: str
    service: WorkerService
    source: MemorySource
    address: str
    server: grpc.aio.Server
    pool: str = "default"

    @property
    def load(self) -> int:
        stats = self.service.stats()
        return stats.running + stats.waiting

    async def stop(self) -> None:
        await self.server.stop(grace=0)
        await self.service.close()


async def start_worker(
    worker_id: str, *, pool: str = "default", port: int = 0, engine: str = "scripted", **options: Any
) -> RunningWorker:
    """`options` are EngineOptions' fields; the default engine makes about 200 tokens/s for each request."""
    source = MemorySource()
    engine_options = EngineOptions(**{"t0_s": 0.005, "max_len": 4096, "kv_tokens": 1 << 20, **options})
    identity = WorkerIdentity(worker_id, engine, build_engine, engine_options, chunk_linger_s=0.01)
    service = WorkerService(identity, WeightShelf(source, 3))
    grpc_server = server()
    engine_pb2_grpc.add_EngineServicer_to_server(EngineServicer(service, stats_interval_s=0.1), grpc_server)
    bound = grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    await grpc_server.start()
    return RunningWorker(worker_id, service, source, f"127.0.0.1:{bound}", grpc_server, pool)


class Runner:
    """A job runner's Manage stream."""

    def __init__(self, address: str, *, job_epoch: int = 1, job_id: str = "job_1", policy: str = "{}") -> None:
        self._channel = channel(address)
        self._call: Any = inference_pb2_grpc.InferenceStub(self._channel).Manage()
        self._opening = inference_pb2.OpenRollout(job_id=job_id, job_epoch=job_epoch, policy_json=policy)
        self.opened: list[inference_pb2.RolloutOpened] = []
        self.workers: dict[str, inference_pb2.WorkerStatus] = {}
        self.prefetched: list[inference_pb2.WeightsPrefetched] = []
        self.updated: list[inference_pb2.WeightsUpdated] = []
        self.stats = inference_pb2.RoutingStats()
        self.lost: list[inference_pb2.WorkerLost] = []
        self.wanted: list[int] = []
        self.error: grpc.aio.AioRpcError | None = None
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                for event in frame.events:
                    self._accept(event)
        except grpc.aio.AioRpcError as error:
            self.error = error

    def _accept(self, event: inference_pb2.ManageEvent) -> None:
        match event.WhichOneof("event"):
            case "opened":
                self.opened.append(event.opened)
            case "worker":
                self.workers[event.worker.worker_id] = event.worker
            case "prefetched":
                self.prefetched.append(event.prefetched)
            case "updated":
                self.updated.append(event.updated)
            case "stats":
                self.stats = event.stats
            case "wanted":
                self.wanted.append(event.wanted.policy_version)
            case "lost":
                self.lost.append(event.lost)
                self.workers.pop(event.lost.worker_id, None)

    async def send(self, **command: Any) -> None:
        """One command by its field's name: `send(update=UpdateWeights(…))`."""
        await self._call.write(inference_pb2.ManageFrame(commands=[inference_pb2.ManageCommand(**command)]))

    async def open(self) -> None:
        await self.send(open=self._opening)
        await until(lambda: bool(self.opened), what=lambda: self.error)

    async def name(self, *workers: tuple[str, str, str]) -> None:
        """(worker id, address, pool), the whole set."""
        named = [inference_pb2.WorkerAddress(worker_id=w, address=a, pool=p) for w, a, p in workers]
        await self.send(workers=inference_pb2.SetWorkers(workers=named))

    async def prefetch(self, manifest: Manifest, node_address: str = "node:1") -> None:
        await self.send(
            prefetch=inference_pb2.PrefetchWeights(
                policy_version=manifest.version.policy_version,
                node_address=node_address,
                manifest=manifest_to_wire(manifest).SerializeToString(),
            )
        )

    async def update(self, policy_version: int, mode: str = "continue", worker_ids: Sequence[str] = ()) -> None:
        await self.send(
            update=inference_pb2.UpdateWeights(policy_version=policy_version, mode=mode, worker_ids=worker_ids)
        )

    async def pin(self, policy_version: int, n_workers: int) -> None:
        await self.send(pin=inference_pb2.PinVersion(policy_version=policy_version, n_workers=n_workers))

    def serving(self, policy_version: int) -> list[str]:
        return sorted(
            worker_id
            for worker_id, status in self.workers.items()
            if status.HasField("serving_version") and status.serving_version == policy_version
        )

    def n_resident(self, policy_version: int) -> int:
        return sum(policy_version in status.resident_versions for status in self.workers.values())

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._channel.close(None)


@dataclass
class Turn:
    """One logical request as its caller sees it."""

    start: inference_pb2.StartGeneration
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    n_discarded: int = 0
    finish: int = UNSPECIFIED
    fault: common_pb2.Fault | None = None

    def accept(self, chunk: inference_pb2.TokenChunk) -> None:
        assert self.finish == UNSPECIFIED, f"a chunk after the last one: {chunk}"
        assert chunk.assignment_epoch == self.start.assignment_epoch
        if chunk.discarded_tokens:
            assert chunk.discarded_tokens == len(self.ids)
            self.n_discarded += chunk.discarded_tokens
            self.ids, self.logprobs, self.versions, self.workers = [], [], [], []
        assert chunk.offset == len(self.ids), f"{chunk} where {len(self.ids)} tokens are held"
        assert len(chunk.token_ids) == len(chunk.logprobs)
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.versions += [chunk.policy_version] * len(chunk.token_ids)
        self.workers += [chunk.worker_id] * len(chunk.token_ids)
        if chunk.token_ids:
            self.digests.add(chunk.weight_digest)
        self.finish = chunk.finish_reason
        self.fault = chunk.fault if chunk.HasField("fault") else None

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(version, tokens) in order."""
        spans: list[tuple[int, int]] = []
        for version in self.versions:
            if spans and spans[-1][0] == version:
                spans[-1] = (version, spans[-1][1] + 1)
            else:
                spans.append((version, 1))
        return spans


class Caller:
    """An environment manager's Generate stream."""

    def __init__(self, address: str, *, job_id: str = "job_1") -> None:
        self._channel = channel(address)
        self._call: Any = inference_pb2_grpc.InferenceStub(self._channel).Generate()
        self._job_id = job_id
        self.turns: dict[str, Turn] = {}
        self.error: grpc.aio.AioRpcError | None = None
        self._writing = asyncio.Lock()  # a stream takes one write at a time
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                for chunk in frame.chunks:
                    self.turns[chunk.request_id].accept(chunk)
        except grpc.aio.AioRpcError as error:
            self.error = error

    def request(self, name: str, max_new_tokens: int = 40, **fields: Any) -> inference_pb2.StartGeneration:
        """The start of turn 0 of the first attempt of trajectory `name`."""
        sampling = common_pb2.SamplingSpec(temperature=1.0, top_p=1.0, seed=7, max_new_tokens=max_new_tokens)
        fields.setdefault("prompt_token_ids", prompt_of(12))
        fields.setdefault("purpose", common_pb2.PURPOSE_TRAIN)
        return inference_pb2.StartGeneration(
            request_id=f"{name}/0/0",
            assignment_epoch=fields.pop("assignment_epoch", 1),
            job_id=fields.pop("job_id", self._job_id),
            key=common_pb2.AttemptKey(trajectory_id=name, attempt=0),
            sampling=sampling,
            **fields,
        )

    async def _write(self, *commands: inference_pb2.GenerateCommand) -> None:
        async with self._writing:
            await self._call.write(inference_pb2.GenerateFrame(commands=commands))

    async def send(self, *starts: inference_pb2.StartGeneration) -> list[Turn]:
        """Start requests in one frame."""
        turns = [Turn(start) for start in starts]
        self.turns.update({turn.start.request_id: turn for turn in turns})
        commands = [inference_pb2.GenerateCommand(start=start) for start in starts]
        await self._write(*commands)
        return turns

    async def tell(self, **command: Any) -> None:
        """One command by its field's name: `tell(end=EndTrajectory(…))`."""
        await self._write(inference_pb2.GenerateCommand(**command))

    async def start(self, name: str, max_new_tokens: int = 40, **fields: Any) -> Turn:
        return (await self.send(self.request(name, max_new_tokens, **fields)))[0]

    async def start_many(self, n: int, max_new_tokens: int = 40, **fields: Any) -> list[Turn]:
        return await self.send(*(self.request(f"t{i}", max_new_tokens, **fields) for i in range(n)))

    async def abort(self, *turns: Turn) -> None:
        commands = [
            inference_pb2.GenerateCommand(abort=inference_pb2.AbortGeneration(request_id=turn.start.request_id))
            for turn in turns
        ]
        await self._write(*commands)

    async def take_up(self, turn: Turn, assignment_epoch: int) -> Turn:
        """Ask again for a turn of another stream, with the tokens that its caller has."""
        start = inference_pb2.StartGeneration()
        start.CopyFrom(turn.start)
        start.assignment_epoch = assignment_epoch
        del start.kept_token_ids[:]
        start.kept_token_ids.extend(turn.ids)
        again = Turn(start, turn.ids, turn.logprobs, turn.versions, turn.workers, turn.digests)
        self.turns[start.request_id] = again
        await self._write(inference_pb2.GenerateCommand(start=start))
        return again

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._channel.close(None)


async def finished(*turns: Turn, within_s: float = WAIT_S) -> None:
    await until(
        lambda: all(turn.finish != UNSPECIFIED for turn in turns),
        within_s,
        lambda: [(turn.start.request_id, len(turn.ids)) for turn in turns if turn.finish == UNSPECIFIED],
    )


@dataclass(eq=False)
class Stack:
    """A proxy, its runner, its workers and callers; everything that was opened is closed at the end."""

    service: ProxyService
    address: str
    server: grpc.aio.Server
    pump: "asyncio.Task[None]"
    runner: Runner
    workers: dict[str, RunningWorker] = field(default_factory=dict)
    callers: list[Caller] = field(default_factory=list)
    published: set[int] = field(default_factory=set)

    def caller(self, **fields: Any) -> Caller:
        caller = Caller(self.address, **fields)
        self.callers.append(caller)
        return caller

    async def add_worker(self, worker_id: str, **options: Any) -> RunningWorker:
        worker = self.workers[worker_id] = await start_worker(worker_id, **options)
        for policy_version in sorted(self.published):
            worker.source.put(policy_version, tiny_weights(policy_version), TINY_CONFIG)
        await self.name_workers()
        await until(lambda: worker_id in self.runner.workers, what="join")
        return worker

    async def name_workers(self, *left_out: str) -> None:
        named = [(w.worker_id, w.address, w.pool) for w in self.workers.values() if w.worker_id not in left_out]
        await self.runner.name(*named)

    async def make_resident(self, policy_version: int, *, without: Sequence[str] = ()) -> Manifest:
        """The same version in every worker's host memory, except those left out."""
        manifest: Manifest | None = None
        self.published.add(policy_version)
        for worker in self.workers.values():
            weights = tiny_weights(policy_version)
            manifest = worker.source.put(policy_version, weights, TINY_CONFIG)
            if worker.worker_id in without:
                worker.source.gate = asyncio.Event()
        assert manifest is not None
        await self.runner.prefetch(manifest)
        expected = len(self.workers) - len(without)
        await until(lambda: self.runner.n_resident(policy_version) >= expected, what="prefetch")
        return manifest

    async def serve(self, policy_version: int, mode: str = "continue") -> Manifest:
        """Bring all workers to a version."""
        manifest = await self.make_resident(policy_version)
        await self.runner.update(policy_version, mode)
        await until(lambda: len(self.runner.serving(policy_version)) == len(self.workers), what="update")
        return manifest

    @property
    def load(self) -> int:
        return sum(worker.load for worker in self.workers.values())

    async def close(self) -> None:
        for caller in self.callers:
            await caller.close()
        await self.runner.close()
        self.pump.cancel()
        with suppress(asyncio.CancelledError):
            await self.pump
        await self.service.close()
        await self.server.stop(grace=0)
        for worker in self.workers.values():
            await worker.stop()


async def start_proxy(
    port: int = 0, **settings: Any
) -> tuple[ProxyService, grpc.aio.Server, str, "asyncio.Task[None]"]:
    service = ProxyService("proxy@1", ProxySettings(**{"tick_s": 0.05, "status_interval_s": 0.1, **settings}))
    grpc_server = server()
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), grpc_server)
    bound = grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    await grpc_server.start()
    return service, grpc_server, f"127.0.0.1:{bound}", asyncio.create_task(service.run())


@asynccontextmanager
async def running_stack(
    *, n_workers: int = 2, policy: str = "{}", options: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Stack]:
    """A proxy with `n_workers` workers that serve version 1."""
    service, grpc_server, address, pump = await start_proxy(**settings)
    stack = Stack(service, address, grpc_server, pump, Runner(address, policy=policy))
    try:
        await stack.runner.open()
        for index in range(n_workers):
            await stack.add_worker(f"inference-{index}@a", **(options or {}))
        if n_workers:
            await stack.serve(1)
        yield stack
    finally:
        await stack.close()
