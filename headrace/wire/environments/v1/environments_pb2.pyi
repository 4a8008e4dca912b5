from headrace.wire.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AssignmentFrame(_message.Message):
    __slots__ = ("commands",)
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    commands: _containers.RepeatedCompositeFieldContainer[AssignmentCommand]
    def __init__(self, commands: _Optional[_Iterable[_Union[AssignmentCommand, _Mapping]]] = ...) -> None: ...

class AssignmentCommand(_message.Message):
    __slots__ = ("open", "assign", "abort", "acknowledge", "proxy", "close", "pause", "resume")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ASSIGN_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    PROXY_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    open: OpenJob
    assign: Assign
    abort: Abort
    acknowledge: Acknowledge
    proxy: SetProxy
    close: CloseJob
    pause: PauseJob
    resume: ResumeJob
    def __init__(self, open: _Optional[_Union[OpenJob, _Mapping]] = ..., assign: _Optional[_Union[Assign, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., proxy: _Optional[_Union[SetProxy, _Mapping]] = ..., close: _Optional[_Union[CloseJob, _Mapping]] = ..., pause: _Optional[_Union[PauseJob, _Mapping]] = ..., resume: _Optional[_Union[ResumeJob, _Mapping]] = ...) -> None: ...

class OpenJob(_message.Message):
    __slots__ = ("job_id", "job_epoch", "spec_json", "model_files")
    class ModelFilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    MODEL_FILES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    job_epoch: int
    spec_json: str
    model_files: _containers.ScalarMap[str, bytes]
    def __init__(self, job_id: _Optional[str] = ..., job_epoch: _Optional[int] = ..., spec_json: _Optional[str] = ..., model_files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class SetProxy(_message.Message):
    __slots__ = ("address", "worker_id")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    worker_id: str
    def __init__(self, address: _Optional[str] = ..., worker_id: _Optional[str] = ...) -> None: ...

class Assign(_message.Message):
    __slots__ = ("key", "purpose", "group_id", "sibling", "task", "env_seed", "sampling_seed", "greedy", "pinned_version", "cohort", "cohort_size", "split")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SIBLING_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ENV_SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_SEED_FIELD_NUMBER: _ClassVar[int]
    GREEDY_FIELD_NUMBER: _ClassVar[int]
    PINNED_VERSION_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    COHORT_SIZE_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    purpose: _common_pb2.Purpose
    group_id: str
    sibling: int
    task: str
    env_seed: int
    sampling_seed: int
    greedy: bool
    pinned_version: int
    cohort: str
    cohort_size: int
    split: str
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., purpose: _Optional[_Union[_common_pb2.Purpose, str]] = ..., group_id: _Optional[str] = ..., sibling: _Optional[int] = ..., task: _Optional[str] = ..., env_seed: _Optional[int] = ..., sampling_seed: _Optional[int] = ..., greedy: bool = ..., pinned_version: _Optional[int] = ..., cohort: _Optional[str] = ..., cohort_size: _Optional[int] = ..., split: _Optional[str] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("key", "reason")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    reason: str
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[_common_pb2.AttemptKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[_common_pb2.AttemptKey, _Mapping]]] = ...) -> None: ...

class CloseJob(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseJob(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeJob(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OutcomeFrame(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("opened", "started", "finished", "failed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    opened: JobOpened
    started: AttemptStarted
    finished: AttemptFinished
    failed: AttemptFailed
    def __init__(self, opened: _Optional[_Union[JobOpened, _Mapping]] = ..., started: _Optional[_Union[AttemptStarted, _Mapping]] = ..., finished: _Optional[_Union[AttemptFinished, _Mapping]] = ..., failed: _Optional[_Union[AttemptFailed, _Mapping]] = ...) -> None: ...

class JobOpened(_message.Message):
    __slots__ = ("job_epoch", "worker_id", "slots", "running")
    JOB_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    job_epoch: int
    worker_id: str
    slots: int
    running: _containers.RepeatedCompositeFieldContainer[_common_pb2.AttemptKey]
    def __init__(self, job_epoch: _Optional[int] = ..., worker_id: _Optional[str] = ..., slots: _Optional[int] = ..., running: _Optional[_Iterable[_Union[_common_pb2.AttemptKey, _Mapping]]] = ...) -> None: ...

class AttemptStarted(_message.Message):
    __slots__ = ("key", "start_version")
    KEY_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    start_version: int
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., start_version: _Optional[int] = ...) -> None: ...

class AttemptFinished(_message.Message):
    __slots__ = ("key", "token_blob", "n_tokens", "n_generated_tokens", "n_turns", "segments", "env_reward", "reward_components", "finish_reason", "is_truncated", "grading_blob", "phases", "env_worker_id", "discarded_tokens", "invalid_actions", "nul_replaced", "observations_cut")
    class RewardComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BLOB_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_TURNS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ENV_REWARD_FIELD_NUMBER: _ClassVar[int]
    REWARD_COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    IS_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    GRADING_BLOB_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    ENV_WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INVALID_ACTIONS_FIELD_NUMBER: _ClassVar[int]
    NUL_REPLACED_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_CUT_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    token_blob: str
    n_tokens: int
    n_generated_tokens: int
    n_turns: int
    segments: _containers.RepeatedCompositeFieldContainer[_common_pb2.Segment]
    env_reward: float
    reward_components: _containers.ScalarMap[str, float]
    finish_reason: str
    is_truncated: bool
    grading_blob: str
    phases: PhaseSeconds
    env_worker_id: str
    discarded_tokens: int
    invalid_actions: int
    nul_replaced: int
    observations_cut: int
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., token_blob: _Optional[str] = ..., n_tokens: _Optional[int] = ..., n_generated_tokens: _Optional[int] = ..., n_turns: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[_common_pb2.Segment, _Mapping]]] = ..., env_reward: _Optional[float] = ..., reward_components: _Optional[_Mapping[str, float]] = ..., finish_reason: _Optional[str] = ..., is_truncated: bool = ..., grading_blob: _Optional[str] = ..., phases: _Optional[_Union[PhaseSeconds, _Mapping]] = ..., env_worker_id: _Optional[str] = ..., discarded_tokens: _Optional[int] = ..., invalid_actions: _Optional[int] = ..., nul_replaced: _Optional[int] = ..., observations_cut: _Optional[int] = ...) -> None: ...

class AttemptFailed(_message.Message):
    __slots__ = ("key", "fault", "n_generated_tokens", "start_version", "phases", "discarded_tokens", "is_reward_known")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    N_GENERATED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IS_REWARD_KNOWN_FIELD_NUMBER: _ClassVar[int]
    key: _common_pb2.AttemptKey
    fault: _common_pb2.Fault
    n_generated_tokens: int
    start_version: int
    phases: PhaseSeconds
    discarded_tokens: int
    is_reward_known: bool
    def __init__(self, key: _Optional[_Union[_common_pb2.AttemptKey, _Mapping]] = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ..., n_generated_tokens: _Optional[int] = ..., start_version: _Optional[int] = ..., phases: _Optional[_Union[PhaseSeconds, _Mapping]] = ..., discarded_tokens: _Optional[int] = ..., is_reward_known: bool = ...) -> None: ...

class PhaseSeconds(_message.Message):
    __slots__ = ("queue_s", "reset_s", "generate_s", "step_s", "lockstep_wait_s", "total_s")
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    RESET_S_FIELD_NUMBER: _ClassVar[int]
    GENERATE_S_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    LOCKSTEP_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    queue_s: float
    reset_s: float
    generate_s: float
    step_s: float
    lockstep_wait_s: float
    total_s: float
    def __init__(self, queue_s: _Optional[float] = ..., reset_s: _Optional[float] = ..., generate_s: _Optional[float] = ..., step_s: _Optional[float] = ..., lockstep_wait_s: _Optional[float] = ..., total_s: _Optional[float] = ...) -> None: ...

class TrajectoryTokens(_message.Message):
    __slots__ = ("token_ids", "spans", "logprobs", "segments", "temperature", "turn_rewards")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TURN_REWARDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    spans: _containers.RepeatedCompositeFieldContainer[TokenSpan]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    segments: _containers.RepeatedCompositeFieldContainer[_common_pb2.Segment]
    temperature: float
    turn_rewards: _containers.RepeatedCompositeFieldContainer[TurnReward]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., spans: _Optional[_Iterable[_Union[TokenSpan, _Mapping]]] = ..., logprobs: _Optional[_Iterable[float]] = ..., segments: _Optional[_Iterable[_Union[_common_pb2.Segment, _Mapping]]] = ..., temperature: _Optional[float] = ..., turn_rewards: _Optional[_Iterable[_Union[TurnReward, _Mapping]]] = ...) -> None: ...

class TokenSpan(_message.Message):
    __slots__ = ("start", "n_tokens")
    START_FIELD_NUMBER: _ClassVar[int]
    N_TOKENS_FIELD_NUMBER: _ClassVar[int]
    start: int
    n_tokens: int
    def __init__(self, start: _Optional[int] = ..., n_tokens: _Optional[int] = ...) -> None: ...

class TurnReward(_message.Message):
    __slots__ = ("turn", "reward")
    TURN_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    turn: int
    reward: float
    def __init__(self, turn: _Optional[int] = ..., reward: _Optional[float] = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("entry_point", "config_json", "seed", "actions", "deadline_s", "split")
    ENTRY_POINT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    entry_point: str
    config_json: str
    seed: int
    actions: _containers.RepeatedScalarFieldContainer[str]
    deadline_s: float
    split: str
    def __init__(self, entry_point: _Optional[str] = ..., config_json: _Optional[str] = ..., seed: _Optional[int] = ..., actions: _Optional[_Iterable[str]] = ..., deadline_s: _Optional[float] = ..., split: _Optional[str] = ...) -> None: ...

class ProbeResponse(_message.Message):
    __slots__ = ("observations", "rewards", "is_done", "fault")
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    observations: _containers.RepeatedScalarFieldContainer[str]
    rewards: _containers.RepeatedScalarFieldContainer[float]
    is_done: bool
    fault: _common_pb2.Fault
    def __init__(self, observations: _Optional[_Iterable[str]] = ..., rewards: _Optional[_Iterable[float]] = ..., is_done: bool = ..., fault: _Optional[_Union[_common_pb2.Fault, _Mapping]] = ...) -> None: ...
