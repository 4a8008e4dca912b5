"""How a snapshot looks: panels in a terminal, one line elsewhere."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.follow.snapshot import Snapshot
from headrace.cli.output import duration

BLOCKS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 28

# Consecutive parts of a step, from one commit to the next: they add up to it.
WALL = (("buffer wait", "buffer_wait"), ("train", "train_wall"), ("exposed pull", "exposed_pull"), ("load", "load"))
WALL_REST = ("overhead", "overhead")
# How long each resource worked meanwhile; these overlap with the wall and with each other.
BUSY = (
    ("generation", "busy/generation"),
    ("environment", "busy/environment"),
    ("reward", "busy/reward"),
    ("push", "push"),
    ("KV rebuild", "kv_rebuild"),
)


def plain_line(snapshot: Snapshot) -> str:
    """One line for a log or a pipe."""
    words = [f"{snapshot.phase} step {snapshot.step}/{snapshot.max_steps}"]
    if snapshot.detail:
        words.append(snapshot.detail)
    for task in snapshot.tasks:
        value = task.recent if task.recent is not None else task.sampled
        words.append(f"{task.name} {'-' if value is None else f'{value:.2f}'}")
    if snapshot.lag_mean is not None:
        words.append(f"lag {snapshot.lag_mean:.2f}")
    if snapshot.step_s is not None:
        words.append(f"{snapshot.step_s:.2f} s/step")
    if snapshot.eta_s is not None:
        words.append(f"eta {duration(snapshot.eta_s)}")
    return "  ".join(words)


def live_view(snapshot: Snapshot) -> Panel:
    """The whole view."""
    parts: list[RenderableType] = [_progress(snapshot), Text(), _tasks(snapshot), Text(), _facts(snapshot)]
    if snapshot.seconds:
        parts += [Text(), _time(snapshot.seconds)]
    title = f"{snapshot.name}  {snapshot.job_id}"
    return Panel(Group(*parts), title=title, border_style=_colour(snapshot))


def _colour(snapshot: Snapshot) -> str:
    return {"succeeded": "green", "failed": "red", "cancelled": "yellow"}.get(snapshot.phase, "cyan")


def _progress(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(
        Text(snapshot.phase, style="bold"),
        f"step {snapshot.step}/{snapshot.max_steps}",
        ProgressBar(total=max(snapshot.max_steps, 1), completed=snapshot.step, width=BAR_WIDTH),
        f"{snapshot.step_s:.2f} s/step" if snapshot.step_s is not None else "",
        f"eta {duration(snapshot.eta_s)}" if snapshot.eta_s is not None else "",
        Text(snapshot.detail, style="dim"),
    )
    return grid


def _tasks(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("task", "held-out sampled", "held-out greedy", "training reward"):
        table.add_column(heading, justify="left" if heading == "task" else "right")
    table.add_column("")
    for task in snapshot.tasks:
        curve = Text(sparkline(task.curve), "green")
        table.add_row(task.name, share(task.sampled), share(task.greedy), share(task.recent), curve)
    return table


def share(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def sparkline(values: Sequence[float], width: int = BAR_WIDTH) -> str:
    """Values of 0 to 1 as blocks, the newest at the right."""
    return "".join(BLOCKS[round(min(max(value, 0.0), 1.0) * (len(BLOCKS) - 1))] for value in values[-width:])


def _facts(snapshot: Snapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    lags = "  ".join(f"L={lag}: {count}" for lag, count in snapshot.lag_histogram) or "-"
    mean = f"   mean {snapshot.lag_mean:.2f}" if snapshot.lag_mean is not None else ""
    grid.add_row(Text("staleness", style="dim"), f"{lags}{mean}")
    counts = "  ".join(f"{state} {count}" for state, count in snapshot.buffer.items()) or "-"
    grid.add_row(Text("buffer", style="dim"), counts)
    return grid


def _time(seconds: Mapping[str, float]) -> Table:
    grid = Table.grid(padding=(0, 2))
    whole = seconds.get("step") or 1.0
    for label, name in (*WALL, WALL_REST):
        value = seconds.get(name, 0.0)
        bar = "█" * min(max(round(value / whole * BAR_WIDTH), 1 if value > 0 else 0), BAR_WIDTH)
        grid.add_row(Text(label, style="dim"), f"{value:6.3f} s", Text(bar, style="cyan"))
    busy = "  ".join(f"{label} {seconds[name]:.2f} s" for label, name in BUSY if name in seconds)
    grid.add_row(Text("meanwhile", style="dim"), "", busy)
    return grid
