"""What the shell is to do, in the imperative. Every action carries ids, so doing one twice is harmless."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.core.job.rows import BatchGroup, Key


@dataclass(frozen=True, slots=True)
class AssignAttempt:
    """Send to the environment process; None `pinned_version`: any version that the policy allows."""

    key: Key
    env_worker_id: str
    purpose: str
    group_id: str
    sibling: int
    task: str
    env_seed: int
    sampling_seed: int
    is_greedy: bool
    pinned_version: int | None
    split: str
    cohort: str = ""
    cohort_size: int = 0


@dataclass(frozen=True, slots=True)
class AbortAttempt:
    key: Key
    env_worker_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class AcknowledgeAttempt:
    key: Key
    env_worker_id: str


@dataclass(frozen=True, slots=True)
class ScoreAttempt:
    key: Key
    task: str
    reward_names: tuple[str, ...]
    grading_blob: str
    reward_try: int


@dataclass(frozen=True, slots=True)
class PublishState:
    policy_version: int
    parent_version: int | None
    step: int


@dataclass(frozen=True, slots=True)
class PrefetchWeights:
    policy_version: int


@dataclass(frozen=True, slots=True)
class UpdateWeights:
    policy_version: int
    mode: str
    worker_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PinVersion:
    """Hold `n_workers` at this version; 0 lets go."""

    policy_version: int
    n_workers: int


@dataclass(frozen=True, slots=True)
class RetainVersions:
    """What the weight store must keep: the current version and everything pinned."""

    policy_version: int
    pinned: frozenset[int]


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A batch, or one part of it: the digest is over everything up to and including this part."""

    step: int
    batch_digest: str
    policy_version: int
    publish_version: int
    groups: tuple[BatchGroup, ...]
    part: int = 0
    n_parts: int = 1


@dataclass(frozen=True, slots=True)
class PauseRollout:
    pass


@dataclass(frozen=True, slots=True)
class ResumeRollout:
    pass


@dataclass(frozen=True, slots=True)
class CloseTraining:
    export_path: str


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job has reached its last phase; release everything it holds."""

    phase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Announce:
    """A line of the job's event log."""

    type: str
    data: Mapping[str, object] = field(default_factory=dict)


Action = (
    AssignAttempt
    | AbortAttempt
    | AcknowledgeAttempt
    | ScoreAttempt
    | PublishState
    | PrefetchWeights
    | UpdateWeights
    | PinVersion
    | RetainVersions
    | TrainStep
    | PauseRollout
    | ResumeRollout
    | CloseTraining
    | EndJob
    | Announce
)
