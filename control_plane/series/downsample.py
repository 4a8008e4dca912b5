"""Fewer points, same peaks."""

from collections.abc import Sequence

Point = tuple[int, float | None]


def downsample(points: Sequence[Point], max_points: int) -> list[Point]:
    """At most `max_points` of the points: first and last, and the lowest and highest of each equal stretch.

    Points are (step, value) in ascending step order and stay so. Missing values are kept only where a stretch has no
    other. `max_points` is at least 4.
    """
    if max_points < 4:
        raise ValueError(f"max_points is {max_points}; at least 4 are needed for ends and extremes")
    if len(points) <= max_points:
        return list(points)
    inner = points[1:-1]
    n_stretches = (max_points - 2) // 2
    kept = [points[0]]
    for index in range(n_stretches):
        stretch = inner[index * len(inner) // n_stretches : (index + 1) * len(inner) // n_stretches]
        kept.extend(_extremes(stretch))
    kept.append(points[-1])
    return kept


def _extremes(stretch: Sequence[Point]) -> list[Point]:
    known = [(value, step) for step, value in stretch if value is not None]
    if not known:
        return list(stretch[:1])
    steps = sorted({min(known)[1], max(known)[1]})
    return [point for point in stretch if point[0] in steps]
