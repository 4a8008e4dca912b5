"""Steps, versions and metrics as the API shows them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class Step(BaseModel):
    """A training step: sampled when its batch is taken, committed with the version that it made."""

    job_id: str
    step: int
    state: str
    batch_digest: str
    policy_version: int
    published_version: int | None
    replays: int
    n_groups: int
    n_tokens: int
    metrics: dict[str, Any]
    seconds: dict[str, Any]
    ledger: dict[str, Any]
    sampled_at: datetime
    committed_at: datetime | None


class StepPage(BaseModel):
    """Newest first."""

    items: list[Step]
    next_cursor: str | None


class Version(BaseModel):
    """A published weight version."""

    job_id: str
    policy_version: int
    parent_version: int | None
    depth: int
    step: int
    state: str
    manifest_digest: str
    total_bytes: int
    seconds: dict[str, Any]
    committed_at: datetime


class VersionPage(BaseModel):
    """Newest first."""

    items: list[Version]
    next_cursor: str | None


class Series(BaseModel):
    """Points are [step, value] in ascending step order; null where the value was no finite number."""

    name: str
    n_points: int
    points: list[tuple[int, float | None]]


class MetricsView(BaseModel):
    """`names` lists every series of the job, whichever were asked for."""

    job_id: str
    names: list[str]
    series: list[Series]
