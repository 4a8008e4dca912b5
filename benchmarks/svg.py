"""Line charts as SVG, for figures that live in the repository: no library, readable on light and dark pages."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 420, 250, 44, 36, 26
COLOURS = ("#2f7ed8", "#d8732f", "#5a9c3e", "#8a5fc0")
GREY = "#808080"

Series = Mapping[str, Sequence[Sequence[tuple[float, float]]]]


def panel(title: str, unit: str, series: Series, *, x0: float = 0) -> str:
    """One chart at `x0`: every run of a series is a thin line of the series' colour; y goes from 0 to 1."""
    right = max(x for runs in series.values() for run in runs for x, _ in run)
    parts = [_text(x0 + LEFT, TOP - 10, title, weight="bold")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(share)
        parts.append(f'<line x1="{x0 + LEFT}" x2="{x0 + WIDTH - 8}" y1="{y}" y2="{y}" stroke="{GREY}" opacity=".3"/>')
        parts.append(_text(x0 + LEFT - 6, y + 4, f"{share:g}", anchor="end"))
        parts.append(_text(_x(share * right, right, x0), HEIGHT - BOTTOM + 16, f"{share * right:.3g}", anchor="middle"))
    parts.append(_text(x0 + WIDTH - 8, HEIGHT - 4, unit, anchor="end"))
    for index, (name, runs) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        for run in runs:
            path = " ".join(f"{_x(x, right, x0):.1f},{_y(y):.1f}" for x, y in run)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6" opacity=".8"/>')
        parts.append(_text(x0 + WIDTH - 90, _y(0.3) + 16 * index, name, colour=colour, weight="bold"))
    return "\n".join(parts)


def document(panels: Sequence[str]) -> str:
    """Panels side by side."""
    width = WIDTH * len(panels)
    box = f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}>'
    return "\n".join([head, *panels, "</svg>", ""])


def _x(value: float, right: float, x0: float) -> float:
    return x0 + LEFT + (WIDTH - LEFT - 12) * value / right


def _y(value: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", colour: str = GREY) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
