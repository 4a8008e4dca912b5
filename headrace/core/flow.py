"""Steady-state accounting of a stock: arrivals, departures, depth over time, and Little's law.

For any stock observed from empty to empty, time-average depth = arrival rate x mean residence exactly; before that the
residence of what is still inside counts as far as it has come. The left side comes from what was counted here, the
right side from the stock's own entry times: a difference means that something entered or left uncounted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NOTHING_S = 1e-9


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

    def arrive(self, now: float) -> None:
        self._advance(now)
        self.depth += 1
        self.arrived += 1

    def leave(self, now: float, entered_at: float) -> None:
        self._advance(now)
        self.depth -= 1
        self.left += 1
        self.residence_s += now - entered_at

    def _advance(self, now: float) -> float:
        """Seconds since the first look."""
        if self.began_at is None:
            self.began_at = self.seen_at = now
        self.depth_seconds += self.depth * (now - self.seen_at)
        self.seen_at = now
        return now - self.began_at

    def summary(self, now: float, entered_at: Iterable[float]) -> dict[str, float]:
        """Depth, rates per second, mean residence and age, and the two sides of Little's law as a ratio.

        `entered_at` is when each thing inside came in, as the stock knows it: what was counted here cannot vouch for
        itself.
        """
        elapsed = max(self._advance(now), _NOTHING_S)
        ages = [now - at for at in entered_at]
        stayed_s = self.residence_s + sum(ages)
        return {
            "depth": float(self.depth),
            "depth_mean": self.depth_seconds / elapsed,
            "arrivals_per_s": self.arrived / elapsed,
            "departures_per_s": self.left / elapsed,
            "residence_mean_s": self.residence_s / max(self.left, 1),
            "age_mean_s": sum(ages) / max(len(ages), 1),
            # Depth over rate x stay; the span of the observation cancels.
            "littles_law_ratio": (self.depth_seconds + _NOTHING_S) / (max(stayed_s, 0.0) + _NOTHING_S),
        }

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Flow":
        """Names that are not known any more are passed over."""
        return cls(**{name: stored[name] for name in cls.__slots__})
