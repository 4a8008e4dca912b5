from headrace.wire.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[GenerateCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[GenerateCommand, _Mapping]]] = ...) -> None: ...

class GenerateCommand(_message.Message):
    __slots__ = ("start", "abort", "end", "live")
    START_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    start: StartGeneration
    abort: AbortGeneration
    end: EndTrajectory
    live: LiveTrajectories
    def __init__(self, start: _Optional[_Union[StartGeneration, _Mapping]] = ..., abort: _Optional[_Union[AbortGeneration, _Mapping]] = ..., end: _Optional[_Union[EndTrajectory, _Mapping]] = ..., live: _Optional[_Union[LiveTrajectories, _Mapping]] = ...) -> None: ...

class StartGeneration(_message.Message):
    __slots__ = ("request_id", "assignment_epoch", "job_id", "key", "purpose", "task", "turn", "prompt_token_ids", "sampling", "kept_token_ids", "pinned_version", "start_version")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    KEPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    assignment_epoch: int
    job_id: str
    key: _common_pb2.AttemptKey
    purpose: _common_pb2.Purpose
    task: str
    turn: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingSpec
    kept_token_ids: _containers.RepeatedScalarFieldContainer[int]
    pinned_version: int
    start_version: int
    def __init__(self, request_id: _Optional[str] = ..., assignment_epoch: _Optional[int] = ..., job_id: _Optional[str] = ..., key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., task: _Optional[str] = ..., turn: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingSpec, _Mapping]] = ..., kept_token_ids: _Optional[_Iterable[int]] = ..., pinned_version: _Optional[int] = ..., start_version: _Optional[int] = ...) -> None: ...

class AbortGeneration(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class EndTrajectory(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ...) -> None: ...

class LiveTrajectories(_message.Message):
    __slots__ = ("trajectories",)
    TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    trajectories: _containers.RepeatedCompositeFieldContainer[LiveTrajectory]
    def __init__(self, trajectories: _Optional[_Iterable[_Union[LiveTrajectory, _Mapping]]] = ...) -> None: ...

class LiveTrajectory(_message.Message):
    __slots__ = ("job_id", "key", "task", "start_version", "context_tokens")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    key: _common_pb2.AttemptKey
    task: str
    start_version: int
    context_tokens: int
    def __init__(self, job_id: _Optional[str] = ..., key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., task: _Optional[str] = ..., start_version: _Optional[int] = ..., context_tokens: _Optional[int] = ...) -> None: ...

class TokenFrame(_message.Message):
    __slots__ = ("chunks",)
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[TokenChunk]
    def __init__(self, chunks: _Optional[_Iterable[_Union[TokenChunk, _Mapping]]] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("request_id", "assignment_epoch", "offset", "token_ids", "logprobs", "policy_version", "worker_id", "weight_digest", "finish_reason", "fault", "discarded_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    assignment_epoch: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    policy_version: int
    worker_id: str
    weight_digest: str
    finish_reason: _common_pb2.FinishReason
    fault: _common_pb2.Fault
    discarded_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., assignment_epoch: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., policy_version: _Optional[int] = ..., worker_id: _Optional[str] = ..., weight_digest: _Optional[str] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ..., discarded_tokens: _Optional[int] = ...) -> None: ...

class ManageFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[ManageCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[ManageCommand, _Mapping]]] = ...) -> None: ...

class ManageCommand(_message.Message):
    __slots__ = ("open", "workers", "prefetch", "update", "pin", "close", "pause", "resume")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    open: OpenRollout
    workers: SetWorkers
    prefetch: PrefetchWeights
    update: UpdateWeights
    pin: PinVersion
    close: CloseRollout
    pause: PauseRollout
    resume: ResumeRollout
    def __init__(self, open: _Optional[_Union[OpenRollout, _Mapping]] = ..., workers: _Optional[_Union[SetWorkers, _Mapping]] = ..., prefetch: _Optional[_Union[PrefetchWeights, _Mapping]] = ..., update: _Optional[_Union[UpdateWeights, _Mapping]] = ..., pin: _Optional[_Union[PinVersion, _Mapping]] = ..., close: _Optional[_Union[CloseRollout, _Mapping]] = ..., pause: _Optional[_Union[PauseRollout, _Mapping]] = ..., resume: _Optional[_Union[ResumeRollout, _Mapping]] = ...) -> None: ...

class OpenRollout(_message.Message):
    __slots__ = ("job_id", "job_epoch", "policy_json")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_JSON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_epoch: int
    policy_json: str
    def __init__(self, job_id: _Optional[str] = ..., job_epoch: _Optional[int] = ..., policy_json: _Optional[str] = ...) -> None: ...

class SetWorkers(_message.Message):
    __slots__ = ("workers",)
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerAddress]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerAddress, _Mapping]]] = ...) -> None: ...

class WorkerAddress(_message.Message):
    __slots__ = ("worker_id", "address", "pool")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    pool: str
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., pool: _Optional[str] = ...) -> None: ...

class PrefetchWeights(_message.Message):
    __slots__ = ("policy_version", "node_address", "manifest")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    node_address: str
    manifest: bytes
    def __init__(self, policy_version: _Optional[int] = ..., node_address: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class UpdateWeights(_message.Message):
    __slots__ = ("policy_version", "mode", "worker_ids")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WORKER_IDS_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    mode: str
    worker_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy_version: _Optional[int] = ..., mode: _Optional[str] = ..., worker_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PinVersion(_message.Message):
    __slots__ = ("policy_version", "n_workers")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    N_WORKERS_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    n_workers: int
    def __init__(self, policy_version: _Optional[int] = ..., n_workers: _Optional[int] = ...) -> None: ...

class CloseRollout(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseRollout(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRollout(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ManageEventFrame(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[ManageEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[ManageEvent, _Mapping]]] = ...) -> None: ...

class ManageEvent(_message.Message):
    __slots__ = ("opened", "worker", "prefetched", "updated", "stats", "lost", "wanted")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    UPDATED_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    opened: RolloutOpened
    worker: WorkerStatus
    prefetched: WeightsPrefetched
    updated: WeightsUpdated
    stats: RoutingStats
    lost: WorkerLost
    wanted: VersionWanted
    def __init__(self, opened: _Optional[_Union[RolloutOpened, _Mapping]] = ..., worker: _Optional[_Union[WorkerStatus, _Mapping]] = ..., prefetched: _Optional[_Union[WeightsPrefetched, _Mapping]] = ..., updated: _Optional[_Union[WeightsUpdated, _Mapping]] = ..., stats: _Optional[_Union[RoutingStats, _Mapping]] = ..., lost: _Optional[_Union[WorkerLost, _Mapping]] = ..., wanted: _Optional[_Union[VersionWanted, _Mapping]] = ...) -> None: ...

class RolloutOpened(_message.Message):
    __slots__ = ("job_epoch", "worker_id")
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    job_epoch: int
    worker_id: str
    def __init__(self, job_epoch: _Optional[int] = ..., worker_id: _Optional[str] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker_id", "serving_version", "weight_digest", "resident_versions", "running", "waiting", "kv_used_tokens", "kv_total_tokens", "pinned", "busy_s", "generated_tokens", "prefill_tokens")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    serving_version: int
    weight_digest: str
    resident_versions: _containers.RepeatedScalarFieldContainer[int]
    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    pinned: bool
    busy_s: float
    generated_tokens: int
    prefill_tokens: int
    def __init__(self, worker_id: _Optional[str] = ..., serving_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., resident_versions: _Optional[_Iterable[int]] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., pinned: bool = ..., busy_s: _Optional[float] = ..., generated_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ...) -> None: ...

class WeightsPrefetched(_message.Message):
    __slots__ = ("worker_id", "policy_version", "weight_digest", "pull_s", "verify_s", "bytes_moved", "transport", "fault")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    policy_version: int
    weight_digest: str
    pull_s: float
    verify_s: float
    bytes_moved: int
    transport: str
    fault: _common_pb2.Fault
    def __init__(self, worker_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., pull_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., bytes_moved: _Optional[int] = ..., transport: _Optional[str] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...

class WeightsUpdated(_message.Message):
    __slots__ = ("worker_id", "policy_version", "weight_digest", "pause_s", "load_s", "kv_rebuild_s", "kv_rebuild_tokens", "exposed_pull_s", "fault")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    KV_REBUILD_S_FIELD_NUMBER: _ClassVar[int]
    KV_REBUILD_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_PULL_S_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    policy_version: int
    weight_digest: str
    pause_s: float
    load_s: float
    kv_rebuild_s: float
    kv_rebuild_tokens: int
    exposed_pull_s: float
    fault: _common_pb2.Fault
    def __init__(self, worker_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., pause_s: _Optional[float] = ..., load_s: _Optional[float] = ..., kv_rebuild_s: _Optional[float] = ..., kv_rebuild_tokens: _Optional[int] = ..., exposed_pull_s: _Optional[float] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...

class RoutingStats(_message.Message):
    __slots__ = ("routed", "fallback_routed", "continued", "discarded_tokens", "fenced_chunks", "regenerated_tokens", "open_requests", "queued_requests", "bound_trajectories", "homeless_trajectories", "repack_looks", "repacks", "released_workers", "moved_trajectories", "moved_requests", "moved_tokens", "moved_kv_bytes", "repeated_prefill_tokens", "repack_pause_s", "first_token_after_s", "regret_s", "profile_s_per_token")
    class RegretSEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ProfileSPerTokenEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ROUTED_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_ROUTED_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FENCED_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    REGENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OPEN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    BOUND_TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    HOMELESS_TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    REPACK_LOOKS_FIELD_NUMBER: _ClassVar[int]
    REPACKS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_WORKERS_FIELD_NUMBER: _ClassVar[int]
    MOVED_TRAJECTORIES_FIELD_NUMBER: _ClassVar[int]
    MOVED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MOVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MOVED_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPEATED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPACK_PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    REGRET_S_FIELD_NUMBER: _ClassVar[int]
    PROFILE_S_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    routed: int
    fallback_routed: int
    continued: int
    discarded_tokens: int
    fenced_chunks: int
    regenerated_tokens: int
    open_requests: int
    queued_requests: int
    bound_trajectories: int
    homeless_trajectories: int
    repack_looks: int
    repacks: int
    released_workers: int
    moved_trajectories: int
    moved_requests: int
    moved_tokens: int
    moved_kv_bytes: int
    repeated_prefill_tokens: int
    repack_pause_s: float
    first_token_after_s: float
    regret_s: _containers.ScalarMap[str, float]
    profile_s_per_token: _containers.ScalarMap[str, float]
    def __init__(self, routed: _Optional[int] = ..., fallback_routed: _Optional[int] = ..., continued: _Optional[int] = ..., discarded_tokens: _Optional[int] = ..., fenced_chunks: _Optional[int] = ..., regenerated_tokens: _Optional[int] = ..., open_requests: _Optional[int] = ..., queued_requests: _Optional[int] = ..., bound_trajectories: _Optional[int] = ..., homeless_trajectories: _Optional[int] = ..., repack_looks: _Optional[int] = ..., repacks: _Optional[int] = ..., released_workers: _Optional[int] = ..., moved_trajectories: _Optional[int] = ..., moved_requests: _Optional[int] = ..., moved_tokens: _Optional[int] = ..., moved_kv_bytes: _Optional[int] = ..., repeated_prefill_tokens: _Optional[int] = ..., repack_pause_s: _Optional[float] = ..., first_token_after_s: _Optional[float] = ..., regret_s: _Optional[_Mapping[str, float]] = ..., profile_s_per_token: _Optional[_Mapping[str, float]] = ...) -> None: ...

class VersionWanted(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class WorkerLost(_message.Message):
    __slots__ = ("worker_id", "detail")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    detail: str
    def __init__(self, worker_id: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...
