"""Ledger and buffer as the API shows them."""

from typing import Any

from pydantic import BaseModel


class Equation(BaseModel):
    """`left` issued = `right` used + exits + in flight, as recorded; `rows` counts the attempts' rows again."""

    purpose: str
    left: int
    right: int
    used: dict[str, int]
    exits: dict[str, int]
    in_flight: dict[str, int]
    rows: dict[str, int]
    balanced: bool


class LedgerView(BaseModel):
    """`recorded` is the runner's ledger as it stands in the database."""

    job_id: str
    recorded: dict[str, Any]
    equations: list[Equation]
    balanced: bool


class StockRow(BaseModel):
    """Groups of one state, task and oldest start version (null: nothing generated yet). Ages in seconds."""

    state: str
    task: str
    version: int | None
    lag: int | None
    groups: int
    age_min_s: float
    age_mean_s: float
    age_max_s: float


class AttemptCount(BaseModel):
    """Attempts in flight by task and state."""

    task: str
    state: str
    attempts: int


class BufferView(BaseModel):
    """What waits. A group whose `lag` exceeds `alpha` is never trained; `wanted` is B, the groups of one step."""

    job_id: str
    current_version: int | None
    alpha: int | None
    wanted: int
    stock: list[StockRow]
    in_flight: list[AttemptCount]
