"""What redundancy and staleness select: who finishes, who is killed, and how far that shifts what is trained.

A killed sibling is a censored observation: its length is only known to be at least what it had. Strata are powers of
two of generated tokens; a killed one counts in the stratum it had reached.

    completion probability of (task, stratum) = kept / (kept + killed)
    inverse-propensity weight = min(cap, 1 / probability), scaled to mean 1 over what was kept
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def stratum(n_tokens: int) -> int:
    """Upper edge of the length stratum: 1, 2, 4, 8, … generated tokens; 0 for none."""
    return 0 if n_tokens <= 0 else 1 << (n_tokens - 1).bit_length()


@dataclass(slots=True)
class Censoring:
    """Kept and killed attempts by (task, stratum), with sums for the shift between them."""

    kept: Counter[tuple[str, int]] = field(default_factory=Counter)
    killed: Counter[tuple[str, int]] = field(default_factory=Counter)
    lengths: dict[str, list[float]] = field(default_factory=dict)  # n, sum, rewards, n rewards

    def keep(self, task: str, n_tokens: int, reward: float | None) -> None:
        self.kept[task, stratum(n_tokens)] += 1
        self._sum("kept", task, n_tokens, reward)

    def kill(self, task: str, n_tokens: int, reward: float | None) -> None:
        """`reward` None: it was not known yet."""
        self.killed[task, stratum(n_tokens)] += 1
        self._sum("killed", task, n_tokens, reward)

    def _sum(self, side: str, task: str, n_tokens: int, reward: float | None) -> None:
        sums = self.lengths.setdefault(f"{side}/{task}", [0.0, 0.0, 0.0, 0.0])
        sums[0] += 1
        sums[1] += n_tokens
        if reward is not None:
            sums[2] += reward
            sums[3] += 1

    def probability(self, task: str, n_tokens: int) -> float:
        """Completion probability of the stratum; 1 where nothing was seen."""
        key = (task, stratum(n_tokens))
        seen = self.kept[key] + self.killed[key]
        return self.kept[key] / seen if seen else 1.0

    def weights(self, members: Sequence[tuple[str, int]], cap: float) -> list[float]:
        """One weight per (task, generated tokens), capped, with mean 1; where nothing was ever kept: all 1."""
        raw = [min(cap, 1.0 / max(self.probability(task, n), 1e-9)) for task, n in members]
        mean = sum(raw) / len(raw) if raw else 1.0
        return [weight / mean for weight in raw]

    def report(self) -> dict[str, Any]:
        """By task: completion probability per stratum, means of kept and killed, the distance of their lengths."""
        tasks = sorted({task for task, _ in self.kept.keys() | self.killed.keys()})
        return {task: self._of_task(task) for task in tasks}

    def _of_task(self, task: str) -> dict[str, Any]:
        edges = sorted({edge for name, edge in self.kept.keys() | self.killed.keys() if name == task})
        return {
            "strata": [
                {
                    "up_to_tokens": edge,
                    "kept": self.kept[task, edge],
                    "killed": self.killed[task, edge],
                    "completion_probability": self.probability(task, edge),
                }
                for edge in edges
            ],
            "kept": self._means("kept", task),
            "killed": self._means("killed", task),
            "length_distance": _total_variation(
                [self.kept[task, edge] for edge in edges], [self.killed[task, edge] for edge in edges]
            ),
        }

    def _means(self, side: str, task: str) -> dict[str, float | None]:
        n, tokens, rewards, n_rewards = self.lengths.get(f"{side}/{task}", [0.0, 0.0, 0.0, 0.0])
        return {
            "n": n,
            "mean_tokens": tokens / n if n else None,
            "mean_reward": rewards / n_rewards if n_rewards else None,
            "reward_known_share": n_rewards / n if n else None,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "kept": [[*key, count] for key, count in sorted(self.kept.items())],
            "killed": [[*key, count] for key, count in sorted(self.killed.items())],
            "lengths": self.lengths,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Censoring":
        return cls(
            _counter(stored["kept"]), _counter(stored["killed"]), {k: list(v) for k, v in stored["lengths"].items()}
        )


def _counter(rows: Iterable[Sequence[Any]]) -> Counter[tuple[str, int]]:
    return Counter({(str(task), int(edge)): int(count) for task, edge, count in rows})


def _total_variation(left: Sequence[int], right: Sequence[int]) -> float | None:
    """Half the L1 distance of two histograms, in [0, 1]; None where one is empty."""
    n_left, n_right = sum(left), sum(right)
    if not n_left or not n_right:
        return None
    return sum(abs(a / n_left - b / n_right) for a, b in zip(left, right, strict=True)) / 2
