"""What the proxy tells a worker and what the worker tells the proxy, as plain values; the servicer knows the wire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference_svc.engine.engine import EngineStats, FinishReason, SamplingSpec


@dataclass(frozen=True, slots=True)
class Open:
    """First command of a job; ``engine_json`` overrides the worker's engine settings."""

    job_id: str
    job_epoch: int
    engine_json: str


@dataclass(frozen=True, slots=True)
class Add:
    """Continue ``token_ids``, whose last ``n_kept`` are kept tokens of this turn; its chunks carry ``epoch`` back."""

    request_id: str
    epoch: int
    token_ids: tuple[int, ...]
    n_kept: int
    sampling: SamplingSpec


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop between two steps."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring a version into host memory in the background. ``manifest`` is headrace.core.weights' Manifest."""

    policy_version: int
    node_address: str
    manifest: Any
    deadline_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Serve a resident version; generation stays paused until Resume."""

    policy_version: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget a resident version."""

    policy_version: int


Command = Open | Add | Abort | Pause | Resume | Prefetch | Load | Drop


@dataclass(frozen=True, slots=True)
class Fault:
    """Why something failed; ``code`` is stable."""

    code: str
    detail: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Hello:
    """Who the worker is and what it holds. Sizes are 0 before an engine exists."""

    worker_id: str
    engine: str
    serving_version: int | None
    weight_digest: str
    resident_versions: tuple[int, ...]
    max_running: int
    kv_tokens_total: int
    max_len: int
    kv_bytes_per_token: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one request. ``offset`` counts this turn's tokens before them. ``fault``: it never ran."""

    request_id: str
    epoch: int
    offset: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    weight_digest: str
    finish_reason: FinishReason | None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A version is in host memory, or why not. Seconds and bytes; ``exposed_pull_s`` is the idle part of the pull."""

    policy_version: int
    weight_digest: str
    pull_s: float = 0.0
    verify_s: float = 0.0
    bytes_moved: int = 0
    transport: str = ""
    exposed_pull_s: float = 0.0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """A version is served, or why not (then the old one still is)."""

    policy_version: int
    weight_digest: str
    load_s: float = 0.0
    kv_tokens_freed: int = 0
    requests_cancelled: int = 0
    fault: Fault | None = None


Event = Hello | Chunk | Prefetched | Loaded | EngineStats
