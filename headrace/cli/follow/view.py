"""How a snapshot looks: panels in a terminal, one line elsewhere."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.follow.snapshot import Snapshot
from headrace.cli.output import duration

BLOCKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 28


def plain_line(snapshot: Snapshot) -> str:
    """One line for a log or a pipe."""
    words = [f"{snapshot.phase} step {snapshot.step}/{snapshot.max_steps}"]
    if snapshot.detail:
        words.append(snapshot.detail)
    words += [f"{task.name} {_best(task.recent, task.sampled)}" for task in snapshot.tasks]
    if snapshot.lag_mean is not None:
        words.append(f"lag {snapshot.lag_mean:.2f}")
    if snapshot.step_s is not None:
        words.append(f"{snapshot.step_s:.2f} s/step")
    if snapshot.eta_s is not None:
        words.append(f"eta {duration(snapshot.eta_s)}")
    return "  ".join(words)


def _best(recent: float | None, heldout: float | None) -> str:
    value = recent if recent is not None else heldout
    return "-" if value is None else f"{value:.2f}"


def live_view(snapshot: Snapshot, curves: Mapping[str, list[float]]) -> Panel:
    """The whole view. `curves` holds the recent training reward of each task, oldest first."""
    parts: list[RenderableType] = [_progress(snapshot), Text(), _tasks(snapshot, curves), Text(), _facts(snapshot)]
    if snapshot.seconds:
        parts += [Text(), _seconds(snapshot.seconds)]
    title = f"{snapshot.name}  {snapshot.job_id}"
    return Panel(
        Group(*parts), title=title, subtitle="Ctrl-C detaches; the job goes on", border_style=_colour(snapshot)
    )


def _colour(snapshot: Snapshot) -> str:
    return {"succeeded": "green", "failed": "red", "cancelled": "yellow"}.get(snapshot.phase, "cyan")


def _progress(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    pace = f"{snapshot.step_s:.2f} s/step" if snapshot.step_s is not None else ""
    eta = f"eta {duration(snapshot.eta_s)}" if snapshot.eta_s is not None else ""
    grid.add_row(
        Text(snapshot.phase, style="bold"),
        f"step {snapshot.step}/{snapshot.max_steps}",
        ProgressBar(total=max(snapshot.max_steps, 1), completed=snapshot.step, width=BAR_WIDTH),
        pace,
        eta,
        Text(snapshot.detail, style="dim"),
    )
    return grid


def _tasks(snapshot: Snapshot, curves: Mapping[str, list[float]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("task", "held-out sampled", "held-out greedy", "training reward"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    table.add_column("")
    for task in snapshot.tasks:
        curve = curves.get(task.name, [])
        table.add_row(
            task.name, share(task.sampled), share(task.greedy), share(task.recent), Text(sparkline(curve), "green")
        )
    return table


def share(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def sparkline(values: list[float], width: int = BAR_WIDTH) -> str:
    """Values of 0 to 1 as blocks, the newest at the right."""
    shown = values[-width:]
    return "".join(BLOCKS[round(min(max(value, 0.0), 1.0) * (len(BLOCKS) - 1))] for value in shown)


def _facts(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    lags = "  ".join(f"L={lag}: {count}" for lag, count in snapshot.lag_histogram) or "-"
    mean = f"   mean {snapshot.lag_mean:.2f}" if snapshot.lag_mean is not None else ""
    grid.add_row(Text("staleness", style="dim"), f"{lags}{mean}")
    counts = "  ".join(f"{state} {count}" for state, count in snapshot.buffer.items()) or "-"
    grid.add_row(Text("buffer", style="dim"), counts)
    return grid


def _seconds(seconds: Mapping[str, float]) -> Table:
    grid = Table.grid(padding=(0, 2))
    total = sum(seconds.values()) or 1.0
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        bar = "█" * max(round(value / total * BAR_WIDTH), 1 if value else 0)
        grid.add_row(Text(name.replace("_", " "), style="dim"), f"{value:6.3f} s", Text(bar, style="cyan"))
    return grid
