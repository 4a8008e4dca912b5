"""Tables for people, JSON for programs: tables and JSON on stdout, notes on stderr."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click


def emit_json(document: Any) -> None:
    """One JSON document, on one line when it is one of a stream."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def emit_json_line(document: Any) -> None:
    """One JSON object a line."""
    click.echo(json.dumps(document, ensure_ascii=False))


def note(message: str) -> None:
    """A line for the person at the terminal."""
    click.echo(message, err=True)


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Rows under headings, as wide as they need to be; says so when there are none."""
    cells = [[text(row.get(column)) for column in columns] for row in rows]
    if not cells:
        note("none")
        return
    headings = [column.upper().replace("_", " ") for column in columns]
    widths = [max(len(row[i]) for row in [headings, *cells]) for i in range(len(columns))]
    for row in [headings, *cells]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def pairs(values: Mapping[str, Any]) -> None:
    """Names and values, one a line."""
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        click.echo(f"{name.ljust(width)}  {text(value)}")


def text(value: Any) -> str:
    """A value as a person reads it: `-` for nothing, three digits for fractions, compact JSON for the rest."""
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1 else f"{value:.2f}".rstrip("0").rstrip(".")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value)


def age(timestamp: str | None) -> str:
    """How long ago an ISO timestamp was, in its two greatest units."""
    if not timestamp:
        return "-"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds())
    return duration(max(seconds, 0))


def duration(seconds: float) -> str:
    """`75` → `1m15s`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
