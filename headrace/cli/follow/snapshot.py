"""A job at one moment, as the view shows it: a pure reading of the API's answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.rest import TERMINAL


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Success on one task: held-out at the last evaluation, and the mean reward of recent training batches."""

    name: str
    sampled: float | None
    greedy: float | None
    recent: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at the job found. Everything that the server does not tell yet is absent."""

    job_id: str
    name: str
    phase: str
    step: int
    max_steps: int
    detail: str = ""
    reason: str | None = None
    tasks: tuple[TaskProgress, ...] = ()
    lag_histogram: tuple[tuple[int, int], ...] = ()
    lag_mean: float | None = None
    buffer: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    step_s: float | None = None
    eta_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.phase in TERMINAL


def read_snapshot(job: Mapping[str, Any]) -> Snapshot:
    """The snapshot of GET /jobs/{id}."""
    progress: Mapping[str, Any] = job.get("progress") or {}
    lag: Mapping[str, Any] = progress.get("lag") or {}
    return Snapshot(
        job_id=str(job["id"]),
        name=str(job.get("name", "")),
        phase=str(job["phase"]),
        step=int(job.get("step") or 0),
        max_steps=int(job.get("max_steps") or 0),
        detail=str(progress.get("phase_detail") or ""),
        reason=job.get("reason"),
        tasks=tuple(_task(name, told) for name, told in (progress.get("tasks") or {}).items()),
        lag_histogram=tuple(sorted((int(key), int(count)) for key, count in (lag.get("histogram") or {}).items())),
        lag_mean=lag.get("mean"),
        buffer=progress.get("buffer") or {},
        seconds=progress.get("seconds") or {},
        step_s=progress.get("step_s"),
        eta_s=progress.get("eta_s"),
    )


def _task(name: str, told: Mapping[str, Any]) -> TaskProgress:
    heldout: Mapping[str, Any] = told.get("heldout") or {}
    return TaskProgress(name, heldout.get("sampled"), heldout.get("greedy"), told.get("train_recent"))
