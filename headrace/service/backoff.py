"""Waiting between attempts."""

from collections.abc import Iterator


def delays_s(first_s: float = 0.1, most_s: float = 1.0) -> Iterator[float]:
    """Endless waits that double from `first_s` to `most_s`."""
    delay = first_s
    while True:
        yield delay
        delay = min(2 * delay, most_s)
