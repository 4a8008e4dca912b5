"""Answers about the server itself."""

from typing import Any

from pydantic import BaseModel


class Health(BaseModel):
    """The process answers."""

    status: str


class Check(BaseModel):
    """One thing that a job needs."""

    name: str
    ok: bool
    detail: str


class Readiness(BaseModel):
    """200 when all checks hold, 503 otherwise."""

    ready: bool
    checks: list[Check]


class Capabilities(BaseModel):
    """What this server can do."""

    version: str
    schemas: list[str]
    algorithms: list[str]
    loss_reductions: list[str]
    corrections: list[str]
    engines: list[str]
    presets: dict[str, dict[str, Any]]
    worker_kinds: list[str]
    limits: dict[str, float]
