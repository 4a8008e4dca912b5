"""What each pool costs each task, learned while it runs: seconds per generated token, and what the static tags lose.

send_to ─► routed(task, pool)            turns by where they went, for exploration
finish  ─► observe(task, pool, …)        an exponentially weighted mean, by tokens
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

Cell = tuple[str, str]
"""(task, pool)."""

HALF_LIFE_TOKENS = 4096
"""Tokens after which what was seen before weighs half."""


@dataclass(slots=True)
class PoolMean:
    """Seconds per generated token. The first tokens count in full, later ones by the half-life."""

    s_per_token: float = 0.0
    weight_tokens: float = 0.0
    n_turns: int = 0

    def add(self, n_tokens: int, seconds: float) -> None:
        kept = self.weight_tokens * 0.5 ** (n_tokens / HALF_LIFE_TOKENS)
        self.s_per_token = (self.s_per_token * kept + seconds) / (kept + n_tokens)
        self.weight_tokens = kept + n_tokens
        self.n_turns += 1


@dataclass(slots=True)
class AffinityProfile:
    """Always kept, whether routing uses it or not."""

    cells: dict[Cell, PoolMean] = field(default_factory=dict)
    n_routed: dict[Cell, int] = field(default_factory=dict)
    regret_s: dict[str, float] = field(default_factory=dict)

    def routed(self, task: str, pool: str) -> None:
        """A turn was sent to the pool."""
        self.n_routed[task, pool] = self.n_routed.get((task, pool), 0) + 1

    def observe(self, task: str, pool: str, n_tokens: int, seconds: float, *, static_pool: str | None = None) -> None:
        """A turn's tokens came from the pool in so many seconds; `static_pool` is where the tags would send it.

        Regret grows by what those tokens cost there beyond the best pool, by the means as they are now; a pool that
        the task never used has no mean and no regret.
        """
        if n_tokens < 1 or seconds < 0:
            return
        self.cells.setdefault((task, pool), PoolMean()).add(n_tokens, seconds)
        static = self.mean(task, static_pool or pool)
        best = min(mean.s_per_token for (name, _), mean in self.cells.items() if name == task)
        if static is not None:
            self.regret_s[task] = self.regret_s.get(task, 0.0) + n_tokens * (static - best)

    def mean(self, task: str, pool: str) -> float | None:
        """Seconds per generated token; None before the first turn."""
        cell = self.cells.get((task, pool))
        return cell.s_per_token if cell else None

    def means(self) -> Mapping[str, float]:
        """By `task/pool`."""
        return {f"{task}/{pool}": cell.s_per_token for (task, pool), cell in sorted(self.cells.items())}

    def ranked(self, task: str, pools: Iterable[str], *, explore_every: int) -> list[str]:
        """Pools by preference. One that had less than its share of exploration, a turn in `explore_every`, goes first.

        Exploration follows from the counts alone: the same turns in the same order are routed alike.
        """
        names = sorted(set(pools))
        total = sum(self.n_routed.get((task, pool), 0) for pool in names)
        share = total // (explore_every * len(names)) + 1 if names else 0

        def rank(pool: str) -> tuple[bool, float, int, str]:
            # A pool that has not answered yet counts as free: those unknown share the first turns.
            n_routed, mean = self.n_routed.get((task, pool), 0), self.mean(task, pool) or 0.0
            return n_routed >= share, mean, n_routed, pool

        return sorted(names, key=rank)
