"""What waits in a job, how stale it is, and what was lost: the terminal's side of buffer and ledger."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headrace.cli.views.parts import bar, facts, grid, number, percent, seconds

STATES = {"ready": ("█", "green"), "complete": ("▓", "yellow"), "open": ("░", "cyan")}
PARTS = {"s_gen": "generating (s_gen)", "residence": "waiting (residence)", "s_train": "in all (s_train)"}
SPREAD = "version_spread"
USED = ("trained", "evaluated")
MOST_CELLS = 40


def stock(view: Mapping[str, Any]) -> Table:
    """Groups by task and start version, newest first, as bars of their states; too old ones are red."""
    alpha, current = view.get("alpha"), view.get("current_version")
    title = f"buffer at version {'-' if current is None else current}"
    table = grid(title, ["task", "start version", "groups", "lag", "age, s"], [], left=3)
    table.columns[1].justify = "right"
    for (task, version), rows in _by_version(view["stock"]):
        lag = rows[0]["lag"]
        style = "red" if alpha is not None and lag is not None and lag > alpha else ""
        ages = f"{min(r['age_min_s'] for r in rows):.1f} – {max(r['age_max_s'] for r in rows):.1f}"
        name = "no token yet" if version is None else str(version)
        table.add_row(task, Text(name, style), _cells(rows), "-" if lag is None else Text(str(lag), style), ages)
    if not view["stock"]:
        table.add_row("nothing waits", "", "", "", "")
    return table


def _by_version(
    rows: Iterable[Mapping[str, Any]],
) -> list[tuple[tuple[str, int | None], list[Mapping[str, Any]]]]:
    found: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["task"], row["version"]), []).append(row)
    newest = lambda item: (item[0][0], item[0][1] is not None, -(item[0][1] or 0))  # noqa: E731
    return sorted(found.items(), key=newest)


def _cells(rows: Iterable[Mapping[str, Any]]) -> Text:
    counts = {row["state"]: row["groups"] for row in rows}
    drawn, told = Text(), []
    for state, (cell, style) in STATES.items():
        if count := counts.get(state, 0):
            drawn.append(cell * min(count, MOST_CELLS), style)
            told.append(f"{count} {state}")
    return drawn.append("  " + ", ".join(told))


def flow(view: Mapping[str, Any], progress: Mapping[str, Any]) -> Table:
    """Rates and ages of the buffer, and attempts in flight."""
    told: Mapping[str, float] = progress.get("flow") or {}
    states: Counter[str] = Counter()
    for row in view["in_flight"]:
        states[row["state"]] += row["attempts"]
    alpha = view.get("alpha")
    limit = "of any lag" if alpha is None else f"of lag {alpha} at most"
    values = {"a step takes": f"{view['wanted']} groups {limit}"}
    values |= {"attempts in flight": ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"}
    if told:
        values |= {
            "groups ready": f"{number(told['depth'])} now, {told['depth_mean']:.2f} on average",
            "rates": f"{told['arrivals_per_s']:.2f} in, {told['departures_per_s']:.2f} out, groups per second",
            "stay": f"{seconds(told['residence_mean_s'])} on average; those in it now {seconds(told['age_mean_s'])}",
            "Little's law": f"depth / (rate x stay) = {told['littles_law_ratio']:.3f}",
        }
    return facts("", values)


def staleness(progress: Mapping[str, Any], alpha: int | None) -> Table:
    """Histograms by task: updates that attempts went through, of what was trained and of what was not."""
    table = grid("staleness, in updates of the weights", ["task", "became", "attempts"], [], left=2)
    for name in (*PARTS.values(), "apart within a group"):
        table.add_column(name, header_style="dim", no_wrap=True)
    table.show_lines = True
    for task, outcomes in (progress.get("staleness") or {}).items():
        for outcome in sorted(outcomes, key=lambda name: (name not in USED, name)):
            parts = outcomes[outcome]
            limit = alpha if outcome in USED else None
            columns = [_histogram(parts.get(name) or {}, limit if name == "s_train" else None) for name in PARTS]
            count = sum((parts.get("s_train") or {}).values())
            table.add_row(task, outcome, number(count), *columns, _histogram(parts.get(SPREAD) or {}, None))
    if not table.rows:
        table.add_row("nothing yet", *[""] * 6)
    return table


def _histogram(counts: Mapping[str, int], limit: int | None) -> Text:
    total = sum(counts.values())
    drawn = Text()
    for value in sorted(counts, key=int):
        share = counts[value] / total
        style = "red" if limit is not None and int(value) > limit else "blue"
        drawn.append("\n" if drawn else "").append(f"{value} ")
        drawn.append(f"{bar(share, 8):<8}", style).append(f" {percent(share)}")
    return drawn if drawn else Text("-")


def censoring(progress: Mapping[str, Any]) -> list[RenderableType]:
    """Kept against killed, by task and length; nothing where nothing was killed."""
    found: list[RenderableType] = []
    for task, told in (progress.get("censoring") or {}).items():
        if not told["killed"]["n"]:
            continue
        distance = told["length_distance"]
        title = f"kept and killed of {task}; lengths {'-' if distance is None else f'{distance:.3f}'} apart"
        sides = [
            (
                name,
                number(told[name]["n"]),
                number(told[name]["mean_tokens"]),
                number(told[name]["mean_reward"]),
                percent(told[name]["reward_known_share"]),
            )
            for name in ("kept", "killed")
        ]
        found.append(grid(title, ["", "attempts", "mean tokens", "mean reward", "reward known"], sides))
        strata = [
            (
                f"up to {row['up_to_tokens']}",
                number(row["kept"]),
                number(row["killed"]),
                percent(row["completion_probability"]),
                Text(bar(row["completion_probability"], 12), "green"),
            )
            for row in told["strata"]
        ]
        table = grid("", ["tokens", "kept", "killed", "completed", ""], strata)
        table.columns[-1].justify = "left"
        found.append(table)
    return found


def losses(ledger: Mapping[str, Any]) -> Table:
    """What left without being trained, by name and task."""
    recorded = ledger.get("recorded") or {}
    issued: Mapping[str, int] = (recorded.get("issued") or {}).get("train") or {}
    closed: Mapping[str, Mapping[str, int]] = (recorded.get("closed") or {}).get("train") or {}
    whole = sum(issued.values())
    names = sorted({name for states in closed.values() for name in states if name not in USED})
    rows: list[Sequence[str | Text]] = []
    for name in names:
        counts = [closed.get(task, {}).get(name, 0) for task in sorted(issued)]
        share = sum(counts) / whole if whole else 0.0
        rows.append((name, Text(f"{bar(share, 16):<16} {percent(share)}"), *map(number, [sum(counts), *counts])))
    columns = ["loss", "of all attempts issued", "attempts", *sorted(issued)]
    return grid("losses by name", columns, rows or [("none", *[""] * (len(columns) - 1))], left=2)
