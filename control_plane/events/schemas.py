"""Events as the API shows them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class Event(BaseModel):
    """A line of a job's log."""

    id: int
    job_id: str
    type: str
    data: dict[str, Any]
    at: datetime


class EventPage(BaseModel):
    """Oldest first. Ask again with `after=next_after`; `is_complete`: the job has ended and all is told."""

    items: list[Event]
    next_after: int
    is_complete: bool
