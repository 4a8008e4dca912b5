"""What the request table is told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.core.requests.record import Fault, FinishReason, LoadMode, Purpose, Sampling


@dataclass(frozen=True, slots=True)
class GenerationStarted:
    """A caller asked for a turn. `kept` are tokens of it that the caller already holds."""

    stream_id: int
    request_id: str
    assignment_epoch: int
    prompt: Sequence[int]
    sampling: Sampling
    prefix_key: str = ""
    task: str = ""
    purpose: Purpose = Purpose.TRAIN
    turn: int = 0
    kept: Sequence[int] = ()
    pinned_version: int | None = None
    start_version: int | None = None  # of the trajectory's first kept token, once it has one


@dataclass(frozen=True, slots=True)
class GenerationAborted:
    stream_id: int
    request_id: str


@dataclass(frozen=True, slots=True)
class CallerLeft:
    """A caller's stream broke; its requests are orphans until it comes back for them."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class TrajectoryEnded:
    """No turn of it comes any more; known by its prefix key."""

    prefix_key: str


@dataclass(frozen=True, slots=True)
class LiveTrajectory:
    """A trajectory with kept tokens, as its caller knows it."""

    prefix_key: str
    start_version: int
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TrajectoriesNamed:
    """What a caller has begun and not ended, at the start of its stream."""

    stream_id: int
    trajectories: tuple[LiveTrajectory, ...]


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker's stream opened and said what it serves. It runs nothing of ours."""

    worker_id: str
    max_running: int
    pool: str = "default"
    serving_version: int | None = None
    weight_digest: str = ""
    resident_versions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionsResident:
    """The versions that a worker holds in host memory, all of them."""

    worker_id: str
    policy_versions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RepackDue:
    """Look for tails to merge. KV capacity in tokens and bytes of KV per token as the engines say, by worker id."""

    kv_total_tokens: Mapping[str, int] = field(default_factory=dict)
    kv_bytes_per_token: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerLost:
    worker_id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReleased:
    """A worker is to take nothing new; it is closed once it runs nothing."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class ChunkReceived:
    """Tokens from a worker under one dispatch. ABORTED gives the request back unfinished; FAILED carries a fault."""

    worker_id: str
    request_id: str
    dispatch_epoch: int
    offset: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    policy_version: int
    weight_digest: str
    finish_reason: FinishReason | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class WeightUpdateAsked:
    """Bring workers to a version (none named: all). A barrier update makes it the floor for unpinned requests."""

    policy_version: int
    mode: LoadMode = LoadMode.CONTINUE
    worker_ids: tuple[str, ...] = ()
    is_barrier: bool = True


@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """A worker's answer to a load; with a fault it serves what it served before."""

    worker_id: str
    policy_version: int
    weight_digest: str = ""
    load_s: float = 0.0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class VersionPinned:
    """Hold `n_workers` workers at a version; 0 ends the hold. One hold at a time: a new one replaces it."""

    policy_version: int
    n_workers: int


@dataclass(frozen=True, slots=True)
class RolloutPaused:
    """New turns wait; what has begun goes on."""


@dataclass(frozen=True, slots=True)
class RolloutResumed:
    pass


@dataclass(frozen=True, slots=True)
class RolloutClosed:
    """Every request ends."""

    detail: str = "the rollout was closed"


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed: deadlines are looked at."""


Event = (
    GenerationStarted
    | GenerationAborted
    | CallerLeft
    | TrajectoryEnded
    | TrajectoriesNamed
    | WorkerJoined
    | WorkerLost
    | WorkerReleased
    | VersionsResident
    | RepackDue
    | ChunkReceived
    | WeightUpdateAsked
    | WeightsLoaded
    | VersionPinned
    | RolloutPaused
    | RolloutResumed
    | RolloutClosed
    | Ticked
)
