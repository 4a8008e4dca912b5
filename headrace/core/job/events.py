"""What happened to a job, in the past tense. Every event is handled at a time that the shell passes beside it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.job.rows import Key, SegmentRow


@dataclass(frozen=True, slots=True)
class TrainerOpened:
    """The trainer holds the job at `step`; `is_attached`: it is the same process, nothing was restored."""

    worker_id: str
    step: int
    is_attached: bool


@dataclass(frozen=True, slots=True)
class TrainerLost:
    worker_id: str


@dataclass(frozen=True, slots=True)
class StatePublished:
    """The parameters as they are were sealed in the weight store under this number."""

    policy_version: int
    manifest_digest: str
    total_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepFinished:
    step: int
    batch_digest: str
    publish_version: int
    manifest_digest: str
    total_bytes: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    checkpoint_step: int = 0


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """A training command failed, or a service refused the job; `is_retryable`: the same command may succeed later."""

    code: str
    detail: str
    is_retryable: bool = False


@dataclass(frozen=True, slots=True)
class TrainingClosed:
    export_path: str


@dataclass(frozen=True, slots=True)
class WorkersChanged:
    """The inference workers assigned to the job and alive."""

    worker_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """What a worker serves and holds, from the proxy; a worker that lost its engine serves nothing."""

    worker_id: str
    serving_version: int | None
    resident_versions: frozenset[int]


@dataclass(frozen=True, slots=True)
class WeightsPrefetched:
    worker_id: str
    policy_version: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class WeightsUpdated:
    worker_id: str
    policy_version: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ProxyOpened:
    """The proxy (re)opened the rollout and knows nothing of the job's versions yet."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class EnvOpened:
    """An environment process answered OpenJob with what it has in hand."""

    worker_id: str
    slots: int
    in_hand: frozenset[Key]


@dataclass(frozen=True, slots=True)
class EnvLost:
    worker_id: str


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    key: Key
    start_version: int


@dataclass(frozen=True, slots=True)
class AttemptFinished:
    """The episode ended; `env_reward` None: graders decide."""

    key: Key
    token_blob: str
    grading_blob: str
    n_tokens: int
    n_generated_tokens: int
    n_turns: int
    segments: tuple[SegmentRow, ...]
    env_reward: float | None
    finish_reason: str
    is_truncated: bool
    env_worker_id: str
    reward_components: Mapping[str, float] = field(default_factory=dict)
    phases: Mapping[str, float] = field(default_factory=dict)
    discarded_tokens: int = 0
    invalid_actions: int = 0  # turns that the environment could not read as an action


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """No trajectory came of it; `kind` is env or infra."""

    key: Key
    kind: str
    code: str
    detail: str
    n_generated_tokens: int = 0
    env_worker_id: str = ""
    discarded_tokens: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RewardReported:
    """First report of a reward; `score` None: abstained or unscorable."""

    key: Key
    reward_name: str
    score: float | None
    fault: str = ""
    is_retryable: bool = False
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PauseRequested:
    pass


@dataclass(frozen=True, slots=True)
class ResumeRequested:
    pass


@dataclass(frozen=True, slots=True)
class CancelRequested:
    reason: str = "cancelled by its owner"


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing happened; deadlines are looked at."""


Event = (
    TrainerOpened
    | TrainerLost
    | StatePublished
    | StepFinished
    | TrainingFailed
    | TrainingClosed
    | WorkersChanged
    | WorkerReported
    | WeightsPrefetched
    | WeightsUpdated
    | ProxyOpened
    | EnvOpened
    | EnvLost
    | AttemptStarted
    | AttemptFinished
    | AttemptFailed
    | RewardReported
    | PauseRequested
    | ResumeRequested
    | CancelRequested
    | TimePassed
)
