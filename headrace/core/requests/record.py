"""One logical request: its states, its tokens, and the story that an error tells.

    QUEUED ──dispatch──► RUNNING ──load begins──► SUSPENDED ──resume──► RUNNING
      ▲  ▲                │   │                      │  │
      │  └──worker lost───┘   └────finish───► ENDED ◄┘  │
      │  └──worker lost or its load failed──────────────┘
      └──caller came back── PARKED ◄── caller's stream broke, its engine work was ended

A dispatch is a spell on one worker, named by a dispatch epoch that no other spell has. A suspended request keeps its
dispatch, so that tokens which the engine made before the swap still count.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate


class Purpose(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    FAILED = "failed"


class LoadMode(StrEnum):
    """What becomes of requests that run when a worker loads: kept and continued, thrown away, or waited for."""

    CONTINUE = "continue"
    DISCARD = "discard"
    FINISH_FIRST = "finish_first"


class RequestState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    PARKED = "parked"
    ENDED = "ended"


TRANSITIONS: Mapping[RequestState, frozenset[RequestState]] = {
    RequestState.QUEUED: frozenset({RequestState.RUNNING, RequestState.PARKED, RequestState.ENDED}),
    RequestState.RUNNING: frozenset(
        {RequestState.QUEUED, RequestState.SUSPENDED, RequestState.PARKED, RequestState.ENDED}
    ),
    RequestState.SUSPENDED: frozenset(
        {RequestState.QUEUED, RequestState.RUNNING, RequestState.PARKED, RequestState.ENDED}
    ),
    RequestState.PARKED: frozenset({RequestState.QUEUED, RequestState.ENDED}),
    RequestState.ENDED: frozenset(),
}
ON_WORKER = frozenset({RequestState.RUNNING, RequestState.SUSPENDED})


class TableError(RuntimeError):
    """A broken invariant or an impossible transition; the message holds the request's history."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Complete. `max_new_tokens` counts from the turn's start; temperature 0 is greedy; top_k 0 is every token."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why one item failed. `kind` is env or infra, `code` is stable."""

    code: str
    kind: str
    detail: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of generated tokens that one worker made under one version."""

    policy_version: int
    worker_id: str
    weight_digest: str
    n_tokens: int


@dataclass(slots=True, eq=False)
class LogicalRequest:
    """A turn in the proxy's hands. The first `n_caller_kept` tokens came from the caller, without logprobs here."""

    request_id: str
    assignment_epoch: int
    stream_id: int | None
    prompt: Sequence[int]
    sampling: Sampling
    task: str
    purpose: Purpose
    turn: int
    prefix_key: str
    pinned_version: int | None
    arrival: int
    queued_at: float
    state: RequestState = RequestState.QUEUED
    worker_id: str | None = None
    dispatch_epoch: int = 0
    ticket: int = 0
    n_caller_kept: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    n_discarded_unsaid: int = 0
    n_worker_losses: int = 0
    n_refusals: int = 0
    n_dispatches: int = 0
    orphaned_at: float | None = None
    home: str = ""  # the worker that its trajectory is bound to
    dispatched_at: float = 0.0
    n_at_dispatch: int = 0  # tokens that it had
    moved_at: float | None = None  # repacked, and no token since
    history: deque[str] = field(default_factory=lambda: deque(maxlen=16))

    @property
    def is_continuation(self) -> bool:
        """Has been with an engine before, or came with tokens: it goes first, also while new turns wait."""
        return self.n_dispatches > 0 or self.n_caller_kept > 0

    def move(self, state: RequestState, why: str) -> None:
        """Change state along the table; raises TableError with the history otherwise."""
        if state not in TRANSITIONS[self.state]:
            raise TableError(f"request {self.request_id}: {self.state} -> {state} ({why}) after {self.story()}")
        self.history.append(f"{why}: {self.state} -> {state}")
        self.state = state
        if state not in ON_WORKER:
            self.worker_id = None

    def story(self) -> str:
        return "; ".join(self.history) or "its start"

    def append(self, ids: Sequence[int], logprobs: Sequence[float], source: Segment) -> None:
        """Keep tokens that follow those held; `source.n_tokens` is len(ids)."""
        self.tokens.extend(ids)
        self.logprobs.extend(logprobs)
        last = self.segments[-1] if self.segments else None
        if last and (last.policy_version, last.worker_id, last.weight_digest) == (
            source.policy_version,
            source.worker_id,
            source.weight_digest,
        ):
            self.segments[-1] = Segment(
                last.policy_version, last.worker_id, last.weight_digest, last.n_tokens + source.n_tokens
            )
        else:
            self.segments.append(source)

    def discard(self) -> int:
        """Throw the turn's tokens away; returns how many, and remembers to tell the caller."""
        n_thrown = len(self.tokens)
        self.tokens, self.logprobs, self.segments, self.n_caller_kept = [], [], [], 0
        self.n_discarded_unsaid += n_thrown
        return n_thrown

    def finish_of_held(self) -> FinishReason | None:
        """The finish that the held tokens already amount to, if any: an engine refuses such a request."""
        if self.tokens and self.tokens[-1] in self.sampling.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.tokens) >= self.sampling.max_new_tokens else None

    def pieces_from(self, offset: int) -> list[tuple[int, Segment]]:
        """(offset, segment) of the tokens at and after `offset`, which is at least `n_caller_kept`."""
        ends = accumulate((segment.n_tokens for segment in self.segments), initial=self.n_caller_kept)
        pieces = []
        for start, segment in zip(ends, self.segments, strict=False):
            skip = max(0, offset - start)
            if skip < segment.n_tokens:
                cut = Segment(segment.policy_version, segment.worker_id, segment.weight_digest, segment.n_tokens - skip)
                pieces.append((start + skip, cut))
        return pieces

    def check(self) -> None:
        """Raises TableError when the record contradicts itself."""
        n_made = sum(segment.n_tokens for segment in self.segments)
        if len(self.tokens) != self.n_caller_kept + n_made or len(self.logprobs) != n_made:
            raise TableError(
                f"request {self.request_id}: {len(self.tokens)} tokens, {self.n_caller_kept} from the caller, "
                f"{n_made} in segments, {len(self.logprobs)} logprobs, after {self.story()}"
            )
        if (self.worker_id is not None) != (self.state in ON_WORKER):
            raise TableError(f"request {self.request_id}: {self.state} on {self.worker_id}, after {self.story()}")
