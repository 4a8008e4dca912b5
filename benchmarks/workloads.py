"""Graders that benchmarks name in their jobs."""

import time

SLOW_S = 1.0


def share(completions: list[str]) -> float:
    """The share of ``a`` in everything that was said: what the synthetic environment's own reward is without noise."""
    text = "".join(completions)
    return text.count("a") / len(text) if text else 0.0


def slow_share(completions: list[str]) -> float:
    """`share`, after as long as a model that judges would take."""
    time.sleep(SLOW_S)
    return share(completions)
