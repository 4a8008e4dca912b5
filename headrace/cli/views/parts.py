"""What the views share: where they are printed, bars, tables."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH_OF_PIPES = 160
EIGHTHS = " ▏▎▍▌▋▊▉█"


def stdout() -> Console:
    """The terminal; a pipe or a file gets lines wide enough for every table."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_PIPES)


def show(parts: Iterable[RenderableType]) -> None:
    """Print on stdout, a blank line between two."""
    console = stdout()
    for index, part in enumerate(parts):
        if index:
            console.print()
        console.print(part)


def bar(share: float | None, width: int) -> str:
    """A share of 0 to 1 as a bar of up to `width` cells, to an eighth of one; something is never drawn as nothing."""
    share = min(max(share or 0.0, 0.0), 1.0)
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def percent(share: float | None) -> str:
    """`4.5 %`; whole from ten on."""
    if share is None:
        return "-"
    return f"{100 * share:.{0 if share >= 0.1 or share == 0 else 1}f} %"


def seconds(value: float | None) -> str:
    """A time with its unit: µs, ms, s, minutes or hours."""
    if value is None:
        return "-"
    for least, unit, scale in ((5400.0, "h", 3600.0), (90.0, "min", 60.0), (0.95, "s", 1.0), (0.0005, "ms", 0.001)):
        if value >= least:
            return f"{value / scale:.{0 if value / scale >= 100 else 1}f} {unit}"
    return f"{value * 1e6:.0f} µs" if value > 1e-6 else "0 s"


def number(value: float | None) -> str:
    """Whole numbers with their thousands apart, three digits of others."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}" if abs(value) < 100 else f"{value:,.1f}"


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], left: int = 1) -> Table:
    """A table whose first `left` columns are words and whose others are numbers, at the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < left else "right", no_wrap=True, header_style="dim")
    for row in rows:
        table.add_row(*row)
    return table


def facts(title: str, values: Mapping[str, str | Text]) -> Table:
    """Names and what they are, one a line."""
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify, table.title_style = title or None, "left", "bold"
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table
