"""What one turn of a runner writes, in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.core.job.actions import Announce
from headrace.core.job.state import Changes, Phase


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """A version's manifest as it travels (serialized weights.v1.Manifest) and its digest."""

    data: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class MetricPoint:
    name: str
    step: int
    value: float


@dataclass(slots=True)
class Turn:
    """Everything that changed. `outbox` payloads get ids when they are written; `sent` are ids of earlier ones."""

    now: float
    changes: Changes
    phase: Phase
    reason: str
    state: Mapping[str, Any]
    ledger: Mapping[str, Any]
    step: int
    current_version: int | None
    announced: Sequence[Announce] = ()
    outbox: Sequence[Mapping[str, Any]] = ()
    sent: Sequence[int] = ()
    manifests: Mapping[int, StoredManifest] = field(default_factory=dict)
    metrics: Sequence[MetricPoint] = ()
    version_seconds: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # summed over workers
    progress: Mapping[str, Any] | None = None
    result: Mapping[str, Any] | None = None
    desired_done: str | None = None  # the owner's wish that this turn has answered
