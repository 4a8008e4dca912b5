"""What a reward worker counts."""

import threading
from collections.abc import Mapping

from prometheus_client import Counter, Histogram

GRADED = Counter("headrace_rewards_graded_total", "Items graded, by outcome", ["outcome"])
REPORTED = Counter("headrace_rewards_reported_total", "Reports, by whether they were the first write", ["is_first"])
GRADER_SECONDS = Histogram(
    "headrace_grader_seconds", "Time in graders", buckets=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
)


class Tally:
    """Cumulative counts, safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, float] = {}

    def graded(self, outcome: str, seconds: float) -> None:
        """One item; ``outcome`` is scored, abstained or the fault's code."""
        GRADED.labels(outcome).inc()
        GRADER_SECONDS.observe(seconds)
        self._add("graded", 1)
        self._add("grader_s", seconds)
        if outcome not in ("scored", "abstained"):
            self._add("faults", 1)

    def reported(self, accepted: list[bool]) -> None:
        """Answers to reports; those that came second are duplicate executions."""
        n_first = sum(accepted)
        REPORTED.labels("true").inc(n_first)
        REPORTED.labels("false").inc(len(accepted) - n_first)
        self._add("duplicates", len(accepted) - n_first)

    def dead_letter(self) -> None:
        """A message that is no batch."""
        self._add("dead_letters", 1)

    def figures(self) -> Mapping[str, float]:
        """For the heartbeat."""
        with self._lock:
            return dict(self._counts)

    def _add(self, name: str, amount: float) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0.0) + amount
