"""What the request table wants done, in this order."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.core.requests.record import Fault, FinishReason, Sampling
from headrace.core.requests.swap import CloseWorker, LoadWeights, PauseWorker, ReportUpdate, ResumeWorker


@dataclass(frozen=True, slots=True)
class SendAdd:
    """Start a dispatch. The engine gets `prompt` followed by `kept`."""

    worker_id: str
    request_id: str
    dispatch_epoch: int
    prompt: Sequence[int]
    kept: Sequence[int]
    sampling: Sampling
    prefix_key: str


@dataclass(frozen=True, slots=True)
class SendAbort:
    worker_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class EmitChunk:
    """Tokens for the caller; `offset` counts the turn's tokens before them. The caller first drops `n_discarded`."""

    stream_id: int
    request_id: str
    assignment_epoch: int
    offset: int
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    policy_version: int = 0
    worker_id: str = ""
    weight_digest: str = ""
    finish_reason: FinishReason | None = None
    fault: Fault | None = None
    n_discarded: int = 0


@dataclass(frozen=True, slots=True)
class WantVersion:
    """Trajectories wait for a version that no idle worker holds: have it prefetched."""

    policy_version: int


Action = (
    SendAdd
    | SendAbort
    | EmitChunk
    | PauseWorker
    | LoadWeights
    | ResumeWorker
    | ReportUpdate
    | CloseWorker
    | WantVersion
)
