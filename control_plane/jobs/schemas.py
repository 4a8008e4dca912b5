"""Jobs as the API shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

Phase = Literal["queued", "starting", "running", "pausing", "paused", "cancelling", "cancelled", "succeeded", "failed"]


class Job(BaseModel):
    """A job without its spec."""

    id: str
    name: str
    labels: dict[str, str]
    phase: Phase
    desired: Literal["pause", "resume", "cancel"] | None
    reason: str | None
    priority: int
    seed: int
    step: int
    max_steps: int
    current_version: int | None
    progress: dict[str, Any]
    result: dict[str, Any]
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


class JobWithSpec(Job):
    """A job with its resolved spec."""

    spec: dict[str, Any]


class SubmittedJob(Job):
    """A job just submitted; `warnings` names what no live service could check."""

    warnings: list[str]


class JobPage(BaseModel):
    """Newest first."""

    items: list[Job]
    next_cursor: str | None


class Validation(BaseModel):
    """A spec that would be accepted, as it would be stored."""

    spec: dict[str, Any]
    digest: str
    warnings: list[str]
