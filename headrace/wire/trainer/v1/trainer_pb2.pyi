from headrace.wire.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrainerFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[TrainerCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[TrainerCommand, _Mapping]]] = ...) -> None: ...

class TrainerCommand(_message.Message):
    __slots__ = ("open", "train", "checkpoint", "close", "publish", "weights")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    open: OpenTraining
    train: TrainStep
    checkpoint: SaveCheckpoint
    close: CloseTraining
    publish: PublishState
    weights: SetWeights
    def __init__(self, open: _Optional[_Union[OpenTraining, _Mapping]] = ..., train: _Optional[_Union[TrainStep, _Mapping]] = ..., checkpoint: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., close: _Optional[_Union[CloseTraining, _Mapping]] = ..., publish: _Optional[_Union[PublishState, _Mapping]] = ..., weights: _Optional[_Union[SetWeights, _Mapping]] = ...) -> None: ...

class OpenTraining(_message.Message):
    __slots__ = ("job_id", "job_epoch", "spec_json", "weights_address", "restore_step")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_STEP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_epoch: int
    spec_json: str
    weights_address: str
    restore_step: int
    def __init__(self, job_id: _Optional[str] = ..., job_epoch: _Optional[int] = ..., spec_json: _Optional[str] = ..., weights_address: _Optional[str] = ..., restore_step: _Optional[int] = ...) -> None: ...

class PublishState(_message.Message):
    __slots__ = ("policy_version", "parent_version", "step", "lost_epoch")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    parent_version: int
    step: int
    lost_epoch: int
    def __init__(self, policy_version: _Optional[int] = ..., parent_version: _Optional[int] = ..., step: _Optional[int] = ..., lost_epoch: _Optional[int] = ...) -> None: ...

class SetWeights(_message.Message):
    __slots__ = ("weights_address",)
    WEIGHTS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    weights_address: str
    def __init__(self, weights_address: _Optional[str] = ...) -> None: ...

class TrainStep(_message.Message):
    __slots__ = ("step", "batch_digest", "policy_version", "publish_version", "groups", "probe", "part", "n_parts")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    N_PARTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    batch_digest: str
    policy_version: int
    publish_version: int
    groups: _containers.RepeatedCompositeFieldContainer[TrainGroup]
    probe: _containers.RepeatedCompositeFieldContainer[ProbeSample]
    part: int
    n_parts: int
    def __init__(self, step: _Optional[int] = ..., batch_digest: _Optional[str] = ..., policy_version: _Optional[int] = ..., publish_version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[TrainGroup, _Mapping]]] = ..., probe: _Optional[_Iterable[_Union[ProbeSample, _Mapping]]] = ..., part: _Optional[int] = ..., n_parts: _Optional[int] = ...) -> None: ...

class TrainGroup(_message.Message):
    __slots__ = ("group_id", "task", "members")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    task: str
    members: _containers.RepeatedCompositeFieldContainer[TrainMember]
    def __init__(self, group_id: _Optional[str] = ..., task: _Optional[str] = ..., members: _Optional[_Iterable[_Union[TrainMember, _Mapping]]] = ...) -> None: ...

class TrainMember(_message.Message):
    __slots__ = ("key", "sibling", "token_blob", "reward", "is_truncated", "lag", "weight")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIBLING_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BLOB_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    IS_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    sibling: int
    token_blob: str
    reward: float
    is_truncated: bool
    lag: int
    weight: float
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., sibling: _Optional[int] = ..., token_blob: _Optional[str] = ..., reward: _Optional[float] = ..., is_truncated: bool = ..., lag: _Optional[int] = ..., weight: _Optional[float] = ...) -> None: ...

class ProbeSample(_message.Message):
    __slots__ = ("token_ids", "n_prompt", "logprobs", "worker_id")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    N_PROMPT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    n_prompt: int
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    worker_id: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., n_prompt: _Optional[int] = ..., logprobs: _Optional[_Iterable[float]] = ..., worker_id: _Optional[str] = ...) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseTraining(_message.Message):
    __slots__ = ("export_path",)
    EXPORT_PATH_FIELD_NUMBER: _ClassVar[int]
    export_path: str
    def __init__(self, export_path: _Optional[str] = ...) -> None: ...

class TrainerEventFrame(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[TrainerEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[TrainerEvent, _Mapping]]] = ...) -> None: ...

class TrainerEvent(_message.Message):
    __slots__ = ("opened", "published", "progress", "finished", "checkpoint", "closed", "fault")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    opened: TrainingOpened
    published: StatePublished
    progress: StepProgress
    finished: StepFinished
    checkpoint: CheckpointSaved
    closed: TrainingClosed
    fault: TrainingFault
    def __init__(self, opened: _Optional[_Union[TrainingOpened, _Mapping]] = ..., published: _Optional[_Union[StatePublished, _Mapping]] = ..., progress: _Optional[_Union[StepProgress, _Mapping]] = ..., finished: _Optional[_Union[StepFinished, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointSaved, _Mapping]] = ..., closed: _Optional[_Union[TrainingClosed, _Mapping]] = ..., fault: _Optional[_Union[TrainingFault, _Mapping]] = ...) -> None: ...

class TrainingOpened(_message.Message):
    __slots__ = ("job_epoch", "worker_id", "step", "policy_version", "model_files", "n_parameters", "vocab_size", "max_len", "is_attached")
    class ModelFilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    N_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    IS_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    job_epoch: int
    worker_id: str
    step: int
    policy_version: int
    model_files: _containers.ScalarMap[str, bytes]
    n_parameters: int
    vocab_size: int
    max_len: int
    is_attached: bool
    def __init__(self, job_epoch: _Optional[int] = ..., worker_id: _Optional[str] = ..., step: _Optional[int] = ..., policy_version: _Optional[int] = ..., model_files: _Optional[_Mapping[str, bytes]] = ..., n_parameters: _Optional[int] = ..., vocab_size: _Optional[int] = ..., max_len: _Optional[int] = ..., is_attached: bool = ...) -> None: ...

class StatePublished(_message.Message):
    __slots__ = ("policy_version", "manifest", "push_s", "publication_stall_s", "bytes_moved")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PUSH_S_FIELD_NUMBER: _ClassVar[int]
    PUBLICATION_STALL_S_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    manifest: bytes
    push_s: float
    publication_stall_s: float
    bytes_moved: int
    def __init__(self, policy_version: _Optional[int] = ..., manifest: _Optional[bytes] = ..., push_s: _Optional[float] = ..., publication_stall_s: _Optional[float] = ..., bytes_moved: _Optional[int] = ...) -> None: ...

class StepProgress(_message.Message):
    __slots__ = ("step", "phase", "done", "total")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    step: int
    phase: str
    done: int
    total: int
    def __init__(self, step: _Optional[int] = ..., phase: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class StepFinished(_message.Message):
    __slots__ = ("step", "batch_digest", "publish_version", "manifest", "metrics", "seconds", "bytes_moved", "is_skipped", "skip_reason", "checkpoint_step")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    IS_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SKIP_REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    batch_digest: str
    publish_version: int
    manifest: bytes
    metrics: _containers.ScalarMap[str, float]
    seconds: _containers.ScalarMap[str, float]
    bytes_moved: int
    is_skipped: bool
    skip_reason: str
    checkpoint_step: int
    def __init__(self, step: _Optional[int] = ..., batch_digest: _Optional[str] = ..., publish_version: _Optional[int] = ..., manifest: _Optional[bytes] = ..., metrics: _Optional[_Mapping[str, float]] = ..., seconds: _Optional[_Mapping[str, float]] = ..., bytes_moved: _Optional[int] = ..., is_skipped: bool = ..., skip_reason: _Optional[str] = ..., checkpoint_step: _Optional[int] = ...) -> None: ...

class CheckpointSaved(_message.Message):
    __slots__ = ("step", "path")
    STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    step: int
    path: str
    def __init__(self, step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class TrainingClosed(_message.Message):
    __slots__ = ("export_path",)
    EXPORT_PATH_FIELD_NUMBER: _ClassVar[int]
    export_path: str
    def __init__(self, export_path: _Optional[str] = ...) -> None: ...

class TrainingFault(_message.Message):
    __slots__ = ("fault", "step")
    FAULT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    fault: _common_pb2.Fault
    step: int
    def __init__(self, fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ..., step: _Optional[int] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("model_path",)
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    model_path: str
    def __init__(self, model_path: _Optional[str] = ...) -> None: ...

class InspectResponse(_message.Message):
    __slots__ = ("architecture", "vocab_size", "max_len", "fault")
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    architecture: str
    vocab_size: int
    max_len: int
    fault: _common_pb2.Fault
    def __init__(self, architecture: _Optional[str] = ..., vocab_size: _Optional[int] = ..., max_len: _Optional[int] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...
