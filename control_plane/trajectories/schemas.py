"""Attempts as the API shows them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class Attempt(BaseModel):
    """One attempt at a trajectory: the ledger's unit."""

    trajectory_id: str
    attempt: int
    job_id: str
    group_id: str
    purpose: str
    task: str
    sibling: int
    kind: str
    mode: str
    state: str
    reason: str | None
    start_version: int | None
    finish_version: int | None
    sample_version: int | None
    step: int | None
    reward: float | None
    token_blob: str | None
    grading_blob: str | None
    n_tokens: int
    n_generated_tokens: int
    n_turns: int
    discarded_tokens: int
    invalid_actions: int
    finish_reason: str | None
    is_truncated: bool
    env_worker_id: str | None
    issued_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    closed_at: datetime | None


class AttemptPage(BaseModel):
    """Newest first."""

    items: list[Attempt]
    next_cursor: str | None


class Staleness(BaseModel):
    """In versions: finish - start, sample - finish, sample - start; null where one end is not known yet."""

    s_gen: int | None
    residence: int | None
    s_train: int | None


class AttemptDetail(Attempt):
    """An attempt with everything that is stored of it but its tokens."""

    reward_components: dict[str, Any]
    phases: dict[str, Any]
    fault: dict[str, Any]
    segments: list[dict[str, Any]]
    rewards: list[dict[str, Any]]
    staleness: Staleness


class Trajectory(BaseModel):
    """A trajectory and its attempts, first to last."""

    trajectory_id: str
    job_id: str
    group_id: str
    attempts: list[AttemptDetail]


class Tokens(BaseModel):
    """Per-token arrays of one length. `mask` is 1 where the model made the token."""

    trajectory_id: str
    attempt: int
    token_ids: list[int]
    mask: list[int]
    logprobs: list[float | None]
    versions: list[int | None]
    temperature: float
    segments: list[dict[str, Any]]
    turn_rewards: list[dict[str, Any]]


class Transcript(BaseModel):
    """What was said, as graders see it. Written by models and environments: show it as text, never as markup."""

    trajectory_id: str
    attempt: int
    document: dict[str, Any]
