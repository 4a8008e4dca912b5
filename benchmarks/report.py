"""What a benchmark says: one JSON document for machines, a table for people."""

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

Row = Mapping[str, Any]
Size = TypeVar("Size", bound=Any)


@dataclass(frozen=True, slots=True)
class Report:
    """`ratio` is the one figure, `against` what it is to be compared with; `rows` are the table."""

    name: str
    claim: str
    ratio: float | None
    against: str
    rows: Sequence[Row]
    notes: Sequence[str] = field(default_factory=tuple)

    def document(self) -> dict[str, Any]:
        """The JSON document, with the command and the hardware it ran on."""
        return {**asdict(self), "command": command(), "hardware": hardware()}

    def text(self) -> str:
        """The table and what it shows."""
        ratio = "no figure" if self.ratio is None else f"{self.ratio:.3g}"
        lines = [f"{self.name}: {self.claim}", "", *table(self.rows), ""]
        return "\n".join([*lines, f"ratio {ratio}; {self.against}", *self.notes, hardware()])


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every benchmark understands."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, to see that it works; its figures mean little")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--repeats", type=int, default=0, help="repetitions; 0: the benchmark's own number")
    return parser


def sized(size: Size, options: argparse.Namespace) -> Size:
    """A benchmark's size with the repetitions that were asked for."""
    return replace(size, repeats=options.repeats) if options.repeats else size


def show(report: Report, *, as_json: bool) -> None:
    """Print the report."""
    print(json.dumps(report.document(), indent=1) if as_json else report.text())


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def table(rows: Sequence[Row]) -> list[str]:
    """Rows as aligned columns; nested values are left to the JSON document."""
    if not rows:
        return ["(no rows)"]
    names = [name for name in dict.fromkeys(key for row in rows for key in row) if not _is_nested(rows, name)]
    cells = [names, *[[_cell(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in cells]


def _is_nested(rows: Sequence[Row], name: str) -> bool:
    return any(isinstance(row.get(name), dict | list) for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def median(values: Sequence[float]) -> float:
    """The median; NaN of nothing."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> str:
    """Lowest to highest."""
    return f"{min(values):.3g}-{max(values):.3g}" if values else "-"


def command() -> str:
    """How this process was started."""
    return shlex.join(["python", str(Path(sys.argv[0])), *sys.argv[1:]])


def hardware() -> str:
    """Processor, cores, memory, system and Python."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} cores ({_processor()}), {memory_gib:.0f} GiB, {system}; load {load}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
