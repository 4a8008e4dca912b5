"""Wire messages to the request table's values and back."""

from headrace.core.requests import Fault, FinishReason, LoadMode, Purpose, Sampling
from headrace.core.requests.actions import EmitChunk, SendAdd
from headrace.core.requests.events import (
    ChunkReceived,
    GenerationStarted,
    LiveTrajectory,
    TrajectoriesNamed,
    WeightsLoaded,
    WeightUpdateAsked,
)
from headrace.core.requests.swap import ReportUpdate
from headrace.wire.common.v1 import common_pb2
from headrace.wire.engine.v1 import engine_pb2
from headrace.wire.inference.v1 import inference_pb2

FINISH_TO_WIRE = {
    None: common_pb2.FINISH_REASON_UNSPECIFIED,
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORTED: common_pb2.FINISH_REASON_ABORTED,
    FinishReason.FAILED: common_pb2.FINISH_REASON_FAILED,
}
FINISH_FROM_WIRE = {wire: finish for finish, wire in FINISH_TO_WIRE.items()}


def started_from_wire(stream_id: int, start: inference_pb2.StartGeneration) -> GenerationStarted:
    key = start.key
    return GenerationStarted(
        stream_id=stream_id,
        request_id=start.request_id,
        assignment_epoch=start.assignment_epoch,
        prompt=tuple(start.prompt_token_ids),
        sampling=_sampling_from_wire(start.sampling),
        prefix_key=prefix_key(key),
        task=start.task,
        purpose=Purpose.EVAL if start.purpose == common_pb2.PURPOSE_EVAL else Purpose.TRAIN,
        turn=start.turn,
        kept=tuple(start.kept_token_ids),
        pinned_version=start.pinned_version if start.HasField("pinned_version") else None,
        start_version=start.start_version if start.HasField("start_version") else None,
    )


def prefix_key(key: common_pb2.AttemptKey) -> str:
    return f"{key.trajectory_id}/{key.attempt}" if key.trajectory_id else ""


def named_from_wire(stream_id: int, live: inference_pb2.LiveTrajectories, job_id: str) -> TrajectoriesNamed:
    """Those of one job."""
    return TrajectoriesNamed(
        stream_id,
        tuple(
            LiveTrajectory(prefix_key(one.key), one.start_version, one.context_tokens)
            for one in live.trajectories
            if one.job_id == job_id
        ),
    )


def _sampling_from_wire(sampling: common_pb2.SamplingSpec) -> Sampling:
    return Sampling(
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        stop_token_ids=tuple(sampling.stop_token_ids),
    )


def add_to_wire(add: SendAdd) -> engine_pb2.EngineCommand:
    sampling = add.sampling
    return engine_pb2.EngineCommand(
        add=engine_pb2.AddRequest(
            request_id=add.request_id,
            epoch=add.dispatch_epoch,
            token_ids=(*add.prompt, *add.kept),
            n_kept=len(add.kept),
            prefix_key=add.prefix_key,
            sampling=common_pb2.SamplingSpec(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
                max_new_tokens=sampling.max_new_tokens,
                stop_token_ids=sampling.stop_token_ids,
            ),
        )
    )


def chunk_from_wire(worker_id: str, chunk: engine_pb2.TokenChunk) -> ChunkReceived:
    return ChunkReceived(
        worker_id=worker_id,
        request_id=chunk.request_id,
        dispatch_epoch=chunk.epoch,
        offset=chunk.offset,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        policy_version=chunk.policy_version,
        weight_digest=chunk.weight_digest,
        finish_reason=FINISH_FROM_WIRE.get(chunk.finish_reason, FinishReason.FAILED),
        fault=fault_from_wire(chunk.fault) if chunk.HasField("fault") else None,
    )


def chunk_to_wire(chunk: EmitChunk) -> inference_pb2.TokenChunk:
    return inference_pb2.TokenChunk(
        request_id=chunk.request_id,
        assignment_epoch=chunk.assignment_epoch,
        offset=chunk.offset,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        policy_version=chunk.policy_version,
        worker_id=chunk.worker_id,
        weight_digest=chunk.weight_digest,
        finish_reason=FINISH_TO_WIRE[chunk.finish_reason],
        fault=fault_to_wire(chunk.fault),
        discarded_tokens=chunk.n_discarded,
    )


def loaded_from_wire(worker_id: str, loaded: engine_pb2.WeightsLoaded) -> WeightsLoaded:
    return WeightsLoaded(
        worker_id,
        loaded.policy_version,
        loaded.weight_digest,
        loaded.load_s,
        fault_from_wire(loaded.fault) if loaded.HasField("fault") else None,
    )


def update_from_wire(update: inference_pb2.UpdateWeights, *, is_barrier: bool) -> WeightUpdateAsked:
    """Raises ValueError for a mode that does not exist."""
    mode = LoadMode(update.mode or LoadMode.CONTINUE)
    return WeightUpdateAsked(update.policy_version, mode, tuple(update.worker_ids), is_barrier)


def updated_to_wire(report: ReportUpdate, exposed_pull_s: float) -> inference_pb2.ManageEvent:
    return inference_pb2.ManageEvent(
        updated=inference_pb2.WeightsUpdated(
            worker_id=report.worker_id,
            policy_version=report.policy_version,
            weight_digest=report.weight_digest,
            pause_s=report.pause_s,
            load_s=report.load_s,
            kv_rebuild_s=report.rebuild_s,
            kv_rebuild_tokens=report.rebuild_tokens,
            exposed_pull_s=exposed_pull_s,
            fault=fault_to_wire(report.fault),
        )
    )


def prefetched_to_wire(worker_id: str, event: engine_pb2.WeightsPrefetched) -> inference_pb2.ManageEvent:
    return inference_pb2.ManageEvent(
        prefetched=inference_pb2.WeightsPrefetched(
            worker_id=worker_id,
            policy_version=event.policy_version,
            weight_digest=event.weight_digest,
            pull_s=event.pull_s,
            verify_s=event.verify_s,
            bytes_moved=event.bytes_moved,
            transport=event.transport,
            fault=event.fault if event.HasField("fault") else None,
        )
    )


def fault_from_wire(fault: common_pb2.Fault) -> Fault:
    return Fault(fault.code, fault.kind or "infra", fault.detail, fault.retryable)


def fault_to_wire(fault: Fault | None) -> common_pb2.Fault | None:
    if fault is None:
        return None
    return common_pb2.Fault(code=fault.code, kind=fault.kind, detail=fault.detail, retryable=fault.retryable)
