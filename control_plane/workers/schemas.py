"""Workers as the API shows them."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel

Kind = Literal["inference", "proxy", "trainer", "env", "reward", "weights"]
State = Literal["live", "lapsed", "replaced", "gone"]


class Worker(BaseModel):
    """One incarnation of a worker process. `stats` are its last heartbeat's."""

    worker_id: str
    kind: str
    name: str
    incarnation: str
    address: str
    metrics_address: str
    labels: dict[str, str]
    capabilities: dict[str, str]
    stats: dict[str, Any]
    state: str
    is_draining: bool
    job_id: str | None
    pid: int | None
    registered_at: datetime
    last_seen_at: datetime
    heartbeat_age_s: float


class WorkerPage(BaseModel):
    """By worker id."""

    items: list[Worker]
    next_cursor: str | None
