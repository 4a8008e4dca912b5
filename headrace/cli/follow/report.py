"""The end of a job: a table for people, and one line of JSON for programs."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cli.follow.view import share

KEYS = (
    "steps",
    "train_s",
    "wall_s",
    "ledger_balanced",
    "max_trained_lag",
    "engine_trainer_logprob_gap",
    "model",
)


def last_line(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the demo prints as its last line: the job, success per task before and after, and the checks."""
    result: Mapping[str, Any] = job.get("result") or {}
    tasks = {
        name: {mode: {when: (told.get(mode) or {}).get(when) for when in ("before", "after")} for mode in MODES}
        for name, told in (result.get("tasks") or {}).items()
    }
    return {"job": job["id"], "tasks": tasks, **{key: result.get(key) for key in KEYS}}


MODES = ("sampled", "greedy")


def print_report(job: Mapping[str, Any], console: Console) -> None:
    """Held-out success, time, ledger, and where the model lies."""
    result: Mapping[str, Any] = job.get("result") or {}
    if result.get("tasks"):
        console.print(_success(result["tasks"]))
    rows = [
        ("steps", f"{result.get('steps', job.get('step'))} of {job.get('max_steps')}"),
        ("time", _times(result)),
        ("seconds per step", _pairs(result.get("seconds"))),
        ("ledger", _ledger(result)),
        ("max trained lag", result.get("max_trained_lag")),
        ("engine/trainer logprob gap", _scientific(result.get("engine_trainer_logprob_gap"))),
        ("model", result.get("model")),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        if value not in (None, ""):
            grid.add_row(name, str(value))
    console.print(grid)


def _success(tasks: Mapping[str, Any]) -> Table:
    table = Table(title="held-out success")
    table.add_column("task")
    for mode in MODES:
        for when in ("before", "after", "rise"):
            table.add_column(f"{mode} {when}", justify="right")
    for name, told in tasks.items():
        table.add_row(name, *(cell for mode in MODES for cell in _cells(told.get(mode) or {})))
    return table


def _cells(told: Mapping[str, float | None]) -> tuple[str, str, str]:
    before, after = told.get("before"), told.get("after")
    rise = f"{after - before:+.3f}" if before is not None and after is not None else "-"
    return share(before), share(after), rise


def _times(result: Mapping[str, Any]) -> str:
    step_s: Mapping[str, float] = result.get("step_s") or {}
    words = [
        f"{name} {result[key]:.1f} s" for name, key in (("job", "wall_s"), ("train", "train_s")) if result.get(key)
    ]
    words += [f"step {name} {value:.2f} s" for name, value in step_s.items()]
    return ", ".join(words)


def _pairs(seconds: Mapping[str, float] | None) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in (seconds or {}).items())


def _ledger(result: Mapping[str, Any]) -> str:
    balanced = result.get("ledger_balanced")
    if balanced is None:
        return ""
    ledger: Mapping[str, Any] = result.get("ledger") or {}
    exits = ", ".join(f"{reason} {count}" for reason, count in (ledger.get("exits") or {}).items() if count)
    counts = [f"{key.replace('_', ' ')} {ledger[key]}" for key in ("issued", "trained", "in_flight") if key in ledger]
    words = ["balanced" if balanced else "DOES NOT BALANCE", *counts]
    return ", ".join([*words, f"lost by name: {exits}"] if exits else words)


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"
