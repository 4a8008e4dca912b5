"""The proxy's side of the `Engine` stream, for tests: sends commands, collects what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from headrace.client.weights import manifest_to_wire
from headrace.core.weights.manifest import Manifest
from headrace.service.grpc import channel
from headrace.wire.common.v1 import common_pb2
from headrace.wire.engine.v1 import engine_pb2, engine_pb2_grpc

Command = engine_pb2.EngineCommand


def add(request_id: str, token_ids: Sequence[int], *, epoch: int = 1, n_kept: int = 0, **sampling: Any) -> Command:
    """An ADD with 8 new tokens at temperature 1 unless ``sampling`` says otherwise."""
    spec = common_pb2.SamplingSpec(**{"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 8, "seed": 1, **sampling})
    request = engine_pb2.AddRequest(
        request_id=request_id, epoch=epoch, token_ids=token_ids, n_kept=n_kept, sampling=spec
    )
    return Command(add=request)


def abort(request_id: str) -> Command:
    return Command(abort=engine_pb2.AbortRequest(request_id=request_id))


def pause() -> Command:
    return Command(pause=engine_pb2.PauseGeneration())


def resume() -> Command:
    return Command(resume=engine_pb2.ResumeGeneration())


def load(policy_version: int) -> Command:
    return Command(load=engine_pb2.LoadWeights(policy_version=policy_version))


def drop(policy_version: int) -> Command:
    return Command(drop=engine_pb2.DropWeights(policy_version=policy_version))


def open_job(job_id: str = "job_1", engine_json: str = "") -> Command:
    return Command(open=engine_pb2.OpenEngine(job_id=job_id, job_epoch=1, engine_json=engine_json))


def prefetch(manifest: Manifest, node_address: str = "node:1", deadline_s: float = 5.0) -> Command:
    command = engine_pb2.PrefetchWeights(
        policy_version=manifest.version.policy_version,
        node_address=node_address,
        manifest=manifest_to_wire(manifest).SerializeToString(),
        deadline_s=deadline_s,
    )
    return Command(prefetch=command)


class Turn:
    """What came back for one request under one epoch."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.digests: set[str] = set()
        self.first_offset: int | None = None
        self.finish_reason = common_pb2.FINISH_REASON_UNSPECIFIED
        self.fault: common_pb2.Fault | None = None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason != common_pb2.FINISH_REASON_UNSPECIFIED

    def accept(self, chunk: engine_pb2.TokenChunk) -> None:
        """Append a chunk; offsets must join up and nothing may follow the end."""
        assert not self.is_finished, f"a chunk after the last one: {chunk}"
        if self.first_offset is None:
            self.first_offset = chunk.offset
        assert chunk.offset == self.first_offset + len(self.ids)
        assert len(chunk.token_ids) == len(chunk.logprobs)
        self.ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.versions.extend([chunk.policy_version] * len(chunk.token_ids))
        if chunk.token_ids:
            self.digests.add(chunk.weight_digest)
        self.finish_reason = chunk.finish_reason
        if chunk.HasField("fault"):
            self.fault = chunk.fault


class EngineClient:
    """One Engine.Run stream."""

    def __init__(self, address: str) -> None:
        self._channel = channel(address)
        self._call: Any = engine_pb2_grpc.EngineStub(self._channel).Run()  # type: ignore[no-untyped-call]
        self._turns: dict[tuple[str, int], Turn] = {}
        self._changed = asyncio.Condition()
        self.hellos: list[engine_pb2.EngineHello] = []
        self.loaded: list[engine_pb2.WeightsLoaded] = []
        self.prefetched: list[engine_pb2.WeightsPrefetched] = []
        self.stats: list[engine_pb2.EngineStats] = []
        self.n_frames = 0
        self.n_chunks = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for frame in self._call:
                self.n_frames += 1
                async with self._changed:
                    for event in frame.events:
                        self._accept(event)
                    self._changed.notify_all()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        async with self._changed:
            self._changed.notify_all()

    def _accept(self, event: engine_pb2.EngineEvent) -> None:
        match event.WhichOneof("event"):
            case "chunk":
                self.n_chunks += 1
                self.turn(event.chunk.request_id, event.chunk.epoch).accept(event.chunk)
            case "hello":
                self.hellos.append(event.hello)
            case "loaded":
                self.loaded.append(event.loaded)
            case "prefetched":
                self.prefetched.append(event.prefetched)
            case "stats":
                self.stats.append(event.stats)
            case other:
                raise AssertionError(f"an event that this client does not know: {other}")

    async def send(self, *commands: Command) -> None:
        """One frame with these commands."""
        await self._call.write(engine_pb2.EngineFrame(commands=commands))

    def turn(self, request_id: str, epoch: int = 1) -> Turn:
        """What has come so far."""
        return self._turns.setdefault((request_id, epoch), Turn())

    async def finished(self, request_id: str, epoch: int = 1, timeout_s: float = 10.0) -> Turn:
        """Wait for a request's last chunk."""
        turn = self.turn(request_id, epoch)
        await self.until(lambda: turn.is_finished, timeout_s)
        return turn

    async def tokens(self, request_id: str, count: int, epoch: int = 1, timeout_s: float = 10.0) -> Turn:
        """Wait until a request has ``count`` tokens."""
        turn = self.turn(request_id, epoch)
        await self.until(lambda: len(turn.ids) >= count, timeout_s)
        return turn

    async def until(self, is_reached: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for a condition over what has come."""
        async with asyncio.timeout(timeout_s), self._changed:
            while not is_reached():
                if self._reader.done():
                    raise AssertionError("the stream ended before that")
                await self._changed.wait()

    async def ended(self, timeout_s: float = 5.0) -> None:
        """Wait for the worker to end the stream."""
        done, _ = await asyncio.wait([self._reader], timeout=timeout_s)
        assert done, "the stream is still open"

    async def serve(self, manifest: Manifest, node_address: str = "node:1") -> engine_pb2.WeightsLoaded:
        """Prefetch, load and resume one version; returns the load's event."""
        version, before = manifest.version.policy_version, len(self.loaded)
        await self.send(prefetch(manifest, node_address, 30.0))
        await self.until(lambda: any(event.policy_version == version for event in self.prefetched), 30.0)
        await self.send(load(version), resume())
        await self.until(lambda: len(self.loaded) > before, 60.0)
        return self.loaded[-1]

    async def close(self) -> None:
        """Drop the connection as a proxy that dies does."""
        self._call.cancel()
        await asyncio.wait([self._reader], timeout=5.0)
        await self._channel.close()
