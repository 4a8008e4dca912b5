"""The end of a job: tables for people, and one line of JSON for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.cli.follow.snapshot import mean_seconds
from headrace.cli.follow.view import BUSY, WALL, WALL_REST, share

MODES = ("sampled", "greedy")
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


def print_report(
    job: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], ledger: Mapping[str, Any], console: Console
) -> None:
    """Held-out success, where the time went, the ledger, and where the model lies."""
    result: Mapping[str, Any] = job.get("result") or {}
    if result.get("tasks"):
        console.print(_success(result["tasks"]))
    committed = [step for step in steps if step["state"] == "committed"]
    if committed:
        console.print(_time(mean_seconds(committed)))
    rows = [
        ("steps", f"{result.get('steps', job.get('step'))} of {job.get('max_steps')}{_spread(committed)}"),
        ("time", ", ".join(f"{name} {result[key]:.1f} s" for name, key in TIMES if result.get(key) is not None)),
        *(("ledger", f"{purpose}: {line}") for purpose, line in equations(ledger)),
        ("max trained lag", result.get("max_trained_lag")),
        ("engine/trainer logprob gap", _scientific(result.get("engine_trainer_logprob_gap"))),
        ("model", result.get("model")),
    ]
    for name, value in rows:
        if value not in (None, ""):
            # A path must stay whole, so that it can be copied.
            console.print(f"{name:<28}{value}", soft_wrap=True, highlight=False, markup=False)


TIMES = (("job", "wall_s"), ("training", "train_s"))


def _success(tasks: Mapping[str, Any]) -> Table:
    table = Table(title="held-out success, before → after")
    table.add_column("task", no_wrap=True)
    for mode in MODES:
        table.add_column(mode, no_wrap=True)
    for name, told in tasks.items():
        table.add_row(name, *(_change(told.get(mode) or {}) for mode in MODES))
    return table


def _change(told: Mapping[str, float | None]) -> str:
    before, after = told.get("before"), told.get("after")
    rise = f" ({after - before:+.3f})" if before is not None and after is not None else ""
    return f"{share(before)} → {share(after)}{rise}"


def _time(seconds: Mapping[str, float]) -> Table:
    table = Table(title="seconds per step, mean")
    table.add_column("wall, adds up")
    table.add_column("s", justify="right")
    table.add_column("busy meanwhile")
    table.add_column("s", justify="right")
    wall = [(label, seconds.get(name, 0.0)) for label, name in (*WALL, WALL_REST, ("step", "step"))]
    busy = [(label, seconds.get(name, 0.0)) for label, name in BUSY]
    for row in range(max(len(wall), len(busy))):
        cells = [side[row] if row < len(side) else ("", None) for side in (wall, busy)]
        table.add_row(*(text for label, value in cells for text in (label, "" if value is None else f"{value:.3f}")))
    return table


def _spread(steps: Sequence[Mapping[str, Any]]) -> str:
    lengths = sorted(step["seconds"]["step"] for step in steps if "step" in step["seconds"])
    if not lengths:
        return ""
    return f"; a step took {lengths[len(lengths) // 2]:.2f} s in the median, {lengths[-1]:.2f} s at most"


def equations(ledger: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each purpose with its side of the ledger in words."""
    lines = []
    for side in ledger.get("equations", []):
        parts = {**side["used"], **side["exits"], **side["in_flight"]}
        counts = " + ".join(f"{count} {state}" for state, count in parts.items())
        word = "balanced" if side["balanced"] else "DOES NOT BALANCE"
        lines.append((side["purpose"], f"{side['left']} issued = {counts or 0}, {word}"))
    return lines


def _scientific(value: float | None) -> str | None:
    return None if value is None else f"{value:.2e}"
