"""Groups as the API shows them."""

from datetime import datetime
from typing import Literal

from pydantic import BaseModel

GroupState = Literal["open", "complete", "ready", "taken", "dropped", "evaluated"]


class Group(BaseModel):
    """A group; `attempts` counts its attempts by state.

    `env_seed` is what its members share, as text: many JSON readers do not keep 63 bits of a number.
    """

    id: str
    job_id: str
    ordinal: int
    purpose: str
    task: str
    env_seed: str
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
