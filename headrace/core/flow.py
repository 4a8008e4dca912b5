"""Steady-state accounting of a stock: arrivals, departures, depth over time, and Little's law.

For any stock observed from empty to empty, time-average depth = arrival rate x mean residence exactly; in between the
two sides differ by what is still inside. A lasting difference means that something enters or leaves uncounted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Flow:
    """Times in seconds of the shell's clock."""

    began_at: float | None = None
    seen_at: float = 0.0
    depth: int = 0
    depth_seconds: float = 0.0
    arrived: int = 0
    left: int = 0
    residence_s: float = 0.0
    age_s: float = 0.0  # summed entry times of what is inside, for its present age

    def arrive(self, now: float) -> None:
        self._advance(now)
        self.depth += 1
        self.arrived += 1
        self.age_s += now

    def leave(self, now: float, entered_at: float) -> None:
        self._advance(now)
        self.depth -= 1
        self.left += 1
        self.residence_s += now - entered_at
        self.age_s -= entered_at

    def _advance(self, now: float) -> None:
        if self.began_at is None:
            self.began_at = self.seen_at = now
        self.depth_seconds += self.depth * (now - self.seen_at)
        self.seen_at = now

    def summary(self, now: float) -> dict[str, float]:
        """Depth, rates per second, mean residence and age, and both sides of Little's law with their ratio."""
        self._advance(now)
        elapsed = max(now - (self.began_at or now), 1e-9)
        present_age = self.depth * now - self.age_s
        residence = (self.residence_s + present_age) / max(self.arrived, 1)
        average = self.depth_seconds / elapsed
        expected = self.arrived / elapsed * residence
        return {
            "depth": float(self.depth),
            "depth_mean": average,
            "arrivals_per_s": self.arrived / elapsed,
            "departures_per_s": self.left / elapsed,
            "residence_mean_s": self.residence_s / max(self.left, 1),
            "age_mean_s": present_age / max(self.depth, 1),
            "littles_law_ratio": average / expected if expected > 0 else 1.0,
        }

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Flow":
        return cls(**stored)
