"""A job at one moment, as the view shows it: a pure reading of the API's answers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.client.rest import TERMINAL

REWARD, LAG = "reward/", "staleness/s_train_"


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """Success on one task: held-out at the last evaluation, and mean rewards of recent batches, oldest first."""

    name: str
    sampled: float | None
    greedy: float | None
    curve: tuple[float, ...]

    @property
    def recent(self) -> float | None:
        return self.curve[-1] if self.curve else None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one look at the job found. Everything that the server does not tell yet is absent."""

    job_id: str
    name: str
    phase: str
    step: int
    max_steps: int
    detail: str = ""
    tasks: tuple[TaskProgress, ...] = ()
    lag_histogram: tuple[tuple[int, int], ...] = ()
    buffer: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    eta_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.phase in TERMINAL

    @property
    def step_s(self) -> float | None:
        return self.seconds.get("step")

    @property
    def lag_mean(self) -> float | None:
        """Of the trajectories in recent batches."""
        count = sum(n for _, n in self.lag_histogram)
        return sum(lag * n for lag, n in self.lag_histogram) / count if count else None


def read_snapshot(job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]] = ()) -> Snapshot:
    """The snapshot of GET /jobs/{id} and its newest steps, newest first as the API gives them."""
    progress: Mapping[str, Any] = job.get("progress") or {}
    committed = [step for step in reversed(steps) if step["state"] == "committed"]
    in_flight = {"in flight": progress["in_flight"]} if "in_flight" in progress else {}
    return Snapshot(
        job_id=str(job["id"]),
        name=str(job.get("name", "")),
        phase=str(job["phase"]),
        step=int(job.get("step") or 0),
        max_steps=int(job.get("max_steps") or 0),
        detail=_detail(progress),
        tasks=_tasks(progress, committed),
        lag_histogram=_lags(committed),
        buffer={**(progress.get("buffer") or {}), **in_flight},
        seconds=mean_seconds(committed),
        eta_s=progress.get("eta_s"),
    )


def mean_seconds(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds per step by part, over steps that tell the part."""
    sums: Counter[str] = Counter()
    for step in steps:
        sums.update(step["seconds"])
    return {name: total / len(steps) for name, total in sums.items()}


def _detail(progress: Mapping[str, Any]) -> str:
    evaluating: Mapping[str, Any] | None = progress.get("evaluating")
    if not evaluating:
        return ""
    return f"evaluating version {evaluating['policy_version']}: {evaluating['done']} of {evaluating['of']}"


def _tasks(progress: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> tuple[TaskProgress, ...]:
    evaluated: Mapping[str, Mapping[str, float]] = progress.get("evaluated") or {}
    newest = evaluated[max(evaluated, key=int)] if evaluated else {}
    names = dict.fromkeys(key.rpartition("/")[0] for key in newest)
    names |= dict.fromkeys(progress.get("train_reward") or {})
    return tuple(
        TaskProgress(name, newest.get(f"{name}/sampled"), newest.get(f"{name}/greedy"), _curve(steps, REWARD + name))
        for name in names
    )


def _curve(steps: Sequence[Mapping[str, Any]], metric: str) -> tuple[float, ...]:
    return tuple(step["metrics"][metric] for step in steps if step["metrics"].get(metric) is not None)


def _lags(steps: Sequence[Mapping[str, Any]]) -> tuple[tuple[int, int], ...]:
    counts: Counter[int] = Counter()
    for step in steps:
        for name, value in step["metrics"].items():
            lag = name.removeprefix(LAG)
            if lag.isdigit():
                counts[int(lag)] += int(value)
    return tuple(sorted(counts.items()))
