"""The `Engine` service: frames of the wire to commands and back. One stream is one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.client.weights import manifest_from_wire
from headrace.core.weights.errors import WeightsError
from headrace.service.logging import get_logger
from headrace.service.streams import FrameWriter, first_of, pump
from headrace.wire.common.v1 import common_pb2
from headrace.wire.engine.v1 import engine_pb2, engine_pb2_grpc
from headrace.wire.weights.v1 import weights_pb2
from inference_svc.engine.engine import EngineStats, FinishReason, SamplingSpec
from inference_svc.worker import messages as msg
from inference_svc.worker.service import WorkerService

log = get_logger(__name__)

SERVICE_NAME = engine_pb2.DESCRIPTOR.services_by_name["Engine"].full_name

DRAINING = "this worker is shutting down"

FINISH = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORTED,
}


class EngineServicer(engine_pb2_grpc.EngineServicer):
    """Serves one proxy at a time: a new stream ends the one before it."""

    def __init__(self, service: WorkerService, *, stats_interval_s: float = 0.5) -> None:
        self._service = service
        self._stats_interval_s = stats_interval_s
        self._superseded = asyncio.Event()
        self._closing = asyncio.Event()

    async def close(self) -> None:
        """End the stream that is open, so that its proxy moves the requests elsewhere at once; take no other."""
        self._closing.set()
        self._superseded.set()

    async def Run(
        self, request_iterator: AsyncIterator[engine_pb2.EngineFrame], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        """Carry one session until its client goes, a newer stream comes (ABORTED), or a drain (UNAVAILABLE)."""
        if self._closing.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, DRAINING)
        self._superseded.set()
        superseded = self._superseded = asyncio.Event()
        writer: FrameWriter[engine_pb2.EngineEvent] = FrameWriter(
            lambda events: context.write(engine_pb2.EngineEventFrame(events=events))
        )
        session = self._service.begin(lambda event: _put(writer, event))

        async def perform(command: engine_pb2.EngineCommand) -> None:
            await self._service.apply(session, command_from_wire(command))

        try:
            await first_of(
                pump(request_iterator, lambda frame: frame.commands, perform),
                writer.run(),
                self._report(writer),
                _until(superseded),
            )
        except BadCommand as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._service.end(session)
        if self._closing.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, DRAINING)
        if superseded.is_set():
            await context.abort(grpc.StatusCode.ABORTED, "a newer stream drives this worker")

    async def _report(self, writer: FrameWriter[engine_pb2.EngineEvent]) -> None:
        while True:
            await asyncio.sleep(self._stats_interval_s)
            _put(writer, self._service.stats())


async def _until(event: asyncio.Event) -> None:
    await event.wait()


def _put(writer: FrameWriter[engine_pb2.EngineEvent], event: msg.Event) -> None:
    writer.put_nowait(event_to_wire(event))


class BadCommand(Exception):
    """A command that cannot be read; the stream ends, because the peer speaks another language."""


def command_from_wire(command: engine_pb2.EngineCommand) -> msg.Command:
    """The plain value of one command. Raises BadCommand."""
    kind = command.WhichOneof("command")
    match kind:
        case "add":
            return _add_from_wire(command.add)
        case "abort":
            return msg.Abort(command.abort.request_id)
        case "pause":
            return msg.Pause()
        case "resume":
            return msg.Resume()
        case "prefetch":
            return _prefetch_from_wire(command.prefetch)
        case "load":
            return msg.Load(command.load.policy_version)
        case "drop":
            return msg.Drop(command.drop.policy_version)
        case "open":
            return msg.Open(command.open.job_id, command.open.job_epoch, command.open.engine_json)
        case _:
            raise BadCommand(f"unknown engine command {kind!r}")


def _add_from_wire(add: engine_pb2.AddRequest) -> msg.Add:
    sampling = add.sampling
    return msg.Add(
        request_id=add.request_id,
        epoch=add.epoch,
        token_ids=tuple(add.token_ids),
        n_kept=add.n_kept,
        sampling=SamplingSpec(
            max_new_tokens=sampling.max_new_tokens,
            # float32 on the wire: 0.9 arrives as 0.89999998, and the trainer divides by the same number.
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=tuple(sampling.stop_token_ids),
            seed=sampling.seed,
        ),
    )


def _prefetch_from_wire(prefetch: engine_pb2.PrefetchWeights) -> msg.Prefetch:
    try:
        manifest = manifest_from_wire(weights_pb2.Manifest.FromString(prefetch.manifest))
    except (WeightsError, DecodeError, ValueError) as error:
        raise BadCommand(f"manifest of version {prefetch.policy_version}: {error}") from error
    return msg.Prefetch(prefetch.policy_version, prefetch.node_address, manifest, prefetch.deadline_s)


def event_to_wire(event: msg.Event) -> engine_pb2.EngineEvent:
    """One event as the wire carries it."""
    match event:
        case msg.Chunk():
            return engine_pb2.EngineEvent(chunk=_chunk_to_wire(event))
        case msg.Hello():
            return engine_pb2.EngineEvent(hello=_hello_to_wire(event))
        case msg.Prefetched():
            return engine_pb2.EngineEvent(prefetched=_prefetched_to_wire(event))
        case msg.Loaded():
            return engine_pb2.EngineEvent(loaded=_loaded_to_wire(event))
        case EngineStats():
            return engine_pb2.EngineEvent(stats=_stats_to_wire(event))


def _chunk_to_wire(chunk: msg.Chunk) -> engine_pb2.TokenChunk:
    finish = common_pb2.FINISH_REASON_UNSPECIFIED
    if chunk.fault is not None:
        finish = common_pb2.FINISH_REASON_FAILED
    elif chunk.finish_reason is not None:
        finish = FINISH[chunk.finish_reason]
    return engine_pb2.TokenChunk(
        request_id=chunk.request_id,
        epoch=chunk.epoch,
        offset=chunk.offset,
        token_ids=chunk.ids,
        logprobs=chunk.logprobs,
        policy_version=chunk.policy_version,
        weight_digest=chunk.weight_digest,
        finish_reason=finish,
        fault=_fault_to_wire(chunk.fault),
    )


def _hello_to_wire(hello: msg.Hello) -> engine_pb2.EngineHello:
    return engine_pb2.EngineHello(
        worker_id=hello.worker_id,
        engine=hello.engine,
        serving_version=hello.serving_version,
        weight_digest=hello.weight_digest,
        resident_versions=hello.resident_versions,
        max_running=hello.max_running,
        kv_total_tokens=hello.kv_tokens_total,
        max_len=hello.max_len,
        kv_bytes_per_token=hello.kv_bytes_per_token,
    )


def _prefetched_to_wire(event: msg.Prefetched) -> engine_pb2.WeightsPrefetched:
    return engine_pb2.WeightsPrefetched(
        policy_version=event.policy_version,
        weight_digest=event.weight_digest,
        pull_s=event.pull_s,
        verify_s=event.verify_s,
        bytes_moved=event.bytes_moved,
        transport=event.transport,
        exposed_pull_s=event.exposed_pull_s,
        fault=_fault_to_wire(event.fault),
    )


def _loaded_to_wire(event: msg.Loaded) -> engine_pb2.WeightsLoaded:
    return engine_pb2.WeightsLoaded(
        policy_version=event.policy_version,
        weight_digest=event.weight_digest,
        load_s=event.load_s,
        kv_freed_tokens=event.kv_tokens_freed,
        cancelled_requests=event.requests_cancelled,
        fault=_fault_to_wire(event.fault),
    )


def _stats_to_wire(stats: EngineStats) -> engine_pb2.EngineStats:
    return engine_pb2.EngineStats(
        running=stats.running,
        waiting=stats.waiting,
        kv_used_tokens=stats.kv_tokens_used,
        kv_total_tokens=stats.kv_tokens_total,
        busy_s=stats.busy_s,
        generated_tokens=stats.generated_tokens,
        prefill_tokens=stats.prefill_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
    )


def _fault_to_wire(fault: msg.Fault | None) -> common_pb2.Fault | None:
    if fault is None:
        return None
    return common_pb2.Fault(code=fault.code, kind="infra", detail=fault.detail, retryable=fault.is_retryable)
