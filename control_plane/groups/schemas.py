"""Groups as the API shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

GroupState = Literal["open", "complete", "ready", "taken", "dropped"]


class Group(BaseModel):
    """A group; `attempts` counts its attempts by state."""

    id: str
    job_id: str
    ordinal: int
    purpose: str
    task: str
    env_seed: int
    parent_group: str | None
    requeues: int
    admitted_version: int
    cohort: str
    state: str
    reason: str | None
    ready_order: int | None
    step: int | None
    created_at: datetime
    ready_at: datetime | None
    closed_at: datetime | None
    attempts: dict[str, int]


class GroupPage(BaseModel):
    """Newest admission first."""

    items: list[Group]
    next_cursor: str | None
