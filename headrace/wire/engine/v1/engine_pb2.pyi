from headrace.wire.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EngineFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[EngineCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[EngineCommand, _Mapping]]] = ...) -> None: ...

class EngineCommand(_message.Message):
    __slots__ = ("add", "abort", "pause", "resume", "prefetch", "load", "drop", "open")
    ADD_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    add: AddRequest
    abort: AbortRequest
    pause: PauseGeneration
    resume: ResumeGeneration
    prefetch: PrefetchWeights
    load: LoadWeights
    drop: DropWeights
    open: OpenEngine
    def __init__(self, add: _Optional[_Union[AddRequest, _Mapping]] = ..., abort: _Optional[_Union[AbortRequest, _Mapping]] = ..., pause: _Optional[_Union[PauseGeneration, _Mapping]] = ..., resume: _Optional[_Union[ResumeGeneration, _Mapping]] = ..., prefetch: _Optional[_Union[PrefetchWeights, _Mapping]] = ..., load: _Optional[_Union[LoadWeights, _Mapping]] = ..., drop: _Optional[_Union[DropWeights, _Mapping]] = ..., open: _Optional[_Union[OpenEngine, _Mapping]] = ...) -> None: ...

class OpenEngine(_message.Message):
    __slots__ = ("job_id", "job_epoch", "engine_json")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_JSON_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_epoch: int
    engine_json: str
    def __init__(self, job_id: _Optional[str] = ..., job_epoch: _Optional[int] = ..., engine_json: _Optional[str] = ...) -> None: ...

class AddRequest(_message.Message):
    __slots__ = ("request_id", "epoch", "token_ids", "n_kept", "sampling", "prefix_key")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_KEPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_KEY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    n_kept: int
    sampling: _common_pb2.SamplingSpec
    prefix_key: str
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., n_kept: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.SamplingSpec, _Mapping]] = ..., prefix_key: _Optional[str] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class PauseGeneration(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeGeneration(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefetchWeights(_message.Message):
    __slots__ = ("policy_version", "node_address", "manifest", "deadline_s")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    node_address: str
    manifest: bytes
    deadline_s: float
    def __init__(self, policy_version: _Optional[int] = ..., node_address: _Optional[str] = ..., manifest: _Optional[bytes] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class LoadWeights(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class DropWeights(_message.Message):
    __slots__ = ("policy_version",)
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    def __init__(self, policy_version: _Optional[int] = ...) -> None: ...

class EngineEventFrame(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[EngineEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[EngineEvent, _Mapping]]] = ...) -> None: ...

class EngineEvent(_message.Message):
    __slots__ = ("hello", "chunk", "prefetched", "loaded", "stats")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PREFETCHED_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    hello: EngineHello
    chunk: TokenChunk
    prefetched: WeightsPrefetched
    loaded: WeightsLoaded
    stats: EngineStats
    def __init__(self, hello: _Optional[_Union[EngineHello, _Mapping]] = ..., chunk: _Optional[_Union[TokenChunk, _Mapping]] = ..., prefetched: _Optional[_Union[WeightsPrefetched, _Mapping]] = ..., loaded: _Optional[_Union[WeightsLoaded, _Mapping]] = ..., stats: _Optional[_Union[EngineStats, _Mapping]] = ...) -> None: ...

class EngineHello(_message.Message):
    __slots__ = ("worker_id", "engine", "serving_version", "weight_digest", "resident_versions", "max_running", "kv_total_tokens", "max_len", "kv_bytes_per_token")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    engine: str
    serving_version: int
    weight_digest: str
    resident_versions: _containers.RepeatedScalarFieldContainer[int]
    max_running: int
    kv_total_tokens: int
    max_len: int
    kv_bytes_per_token: int
    def __init__(self, worker_id: _Optional[str] = ..., engine: _Optional[str] = ..., serving_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., resident_versions: _Optional[_Iterable[int]] = ..., max_running: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., max_len: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("request_id", "epoch", "offset", "token_ids", "logprobs", "policy_version", "weight_digest", "finish_reason", "fault")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    epoch: int
    offset: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    policy_version: int
    weight_digest: str
    finish_reason: _common_pb2.FinishReason
    fault: _common_pb2.Fault
    def __init__(self, request_id: _Optional[str] = ..., epoch: _Optional[int] = ..., offset: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., policy_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...

class WeightsPrefetched(_message.Message):
    __slots__ = ("policy_version", "weight_digest", "pull_s", "verify_s", "bytes_moved", "transport", "exposed_pull_s", "fault")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    VERIFY_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    EXPOSED_PULL_S_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    weight_digest: str
    pull_s: float
    verify_s: float
    bytes_moved: int
    transport: str
    exposed_pull_s: float
    fault: _common_pb2.Fault
    def __init__(self, policy_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., pull_s: _Optional[float] = ..., verify_s: _Optional[float] = ..., bytes_moved: _Optional[int] = ..., transport: _Optional[str] = ..., exposed_pull_s: _Optional[float] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...

class WeightsLoaded(_message.Message):
    __slots__ = ("policy_version", "weight_digest", "load_s", "kv_freed_tokens", "cancelled_requests", "fault")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LOAD_S_FIELD_NUMBER: _ClassVar[int]
    KV_FREED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    weight_digest: str
    load_s: float
    kv_freed_tokens: int
    cancelled_requests: int
    fault: _common_pb2.Fault
    def __init__(self, policy_version: _Optional[int] = ..., weight_digest: _Optional[str] = ..., load_s: _Optional[float] = ..., kv_freed_tokens: _Optional[int] = ..., cancelled_requests: _Optional[int] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...

class EngineStats(_message.Message):
    __slots__ = ("running", "waiting", "kv_used_tokens", "kv_total_tokens", "busy_s", "generated_tokens", "prefill_tokens", "prefix_hit_tokens")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    busy_s: float
    generated_tokens: int
    prefill_tokens: int
    prefix_hit_tokens: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_total_tokens: _Optional[int] = ..., busy_s: _Optional[float] = ..., generated_tokens: _Optional[int] = ..., prefill_tokens: _Optional[int] = ..., prefix_hit_tokens: _Optional[int] = ...) -> None: ...
