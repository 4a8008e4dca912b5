"""The conservation ledger: every attempt that was issued is trained, evaluated, lost under a name, or in flight.

    issued = trained + sum(exits) + in flight        (purpose train)
    issued = evaluated + sum(exits) + in flight      (purpose eval)

The left side counts issues, the right side counts closings and live attempts, each on its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class AttemptState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SCORING = "scoring"
    READY = "ready"
    SAMPLED = "sampled"
    TRAINED = "trained"
    EVALUATED = "evaluated"
    EVICTED_STALE = "evicted_stale"
    OFF_LINEAGE = "off_lineage"
    ROLLED_BACK = "rolled_back"
    SURPLUS = "surplus"
    FILTERED = "filtered"
    GROUP_DROPPED = "group_dropped"
    UNSCORABLE = "unscorable"
    FAILED_ENV = "failed_env"
    FAILED_INFRA = "failed_infra"
    ABORTED = "aborted"


IN_FLIGHT = frozenset(
    {AttemptState.QUEUED, AttemptState.RUNNING, AttemptState.SCORING, AttemptState.READY, AttemptState.SAMPLED}
)
USED = frozenset({AttemptState.TRAINED, AttemptState.EVALUATED})
EXITS = frozenset(AttemptState) - IN_FLIGHT - USED
REFILLED = frozenset({AttemptState.FAILED_ENV, AttemptState.FAILED_INFRA, AttemptState.UNSCORABLE})
_LOSSES = EXITS - {AttemptState.ROLLED_BACK, AttemptState.UNSCORABLE}

TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.QUEUED: frozenset({AttemptState.RUNNING, AttemptState.SCORING}) | _LOSSES,
    AttemptState.RUNNING: frozenset({AttemptState.SCORING}) | _LOSSES,
    AttemptState.SCORING: frozenset({AttemptState.READY, AttemptState.EVALUATED, AttemptState.UNSCORABLE}) | _LOSSES,
    AttemptState.READY: frozenset({AttemptState.SAMPLED}) | _LOSSES,
    AttemptState.SAMPLED: frozenset({AttemptState.TRAINED, AttemptState.ABORTED}),
    AttemptState.TRAINED: frozenset({AttemptState.ROLLED_BACK}),
}


class LedgerError(AssertionError):
    """The equation does not hold; the message gives both sides."""


@dataclass(slots=True)
class Ledger:
    """Counts by (purpose, task): issued, and closed by final state; generated tokens by final state."""

    issued: Counter[tuple[str, str]] = field(default_factory=Counter)
    closed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    discarded_tokens: int = 0

    def issue(self, purpose: str, task: str) -> None:
        self.issued[purpose, task] += 1

    def close(self, purpose: str, task: str, state: AttemptState, n_tokens: int) -> None:
        self.closed[purpose, task, state.value] += 1
        self.tokens[purpose, task, state.value] += n_tokens

    def check(self, in_flight: Iterable[tuple[str, str]]) -> None:
        """Raises LedgerError unless issued = closed + in flight for every purpose and task."""
        for key, (issued, closed, live) in self._sides(Counter(in_flight)).items():
            if issued != closed + live:
                raise LedgerError(f"{key}: issued {issued} != closed {closed} + in flight {live}")

    def _sides(self, live: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Issued, closed and in flight of every purpose and task."""
        closed: Counter[tuple[str, str]] = Counter()
        for (purpose, task, _), count in self.closed.items():
            closed[purpose, task] += count
        return {
            key: (self.issued[key], closed[key], live.get(key, 0))
            for key in self.issued.keys() | closed.keys() | live.keys()
        }

    def to_json(self, in_flight: Iterable[tuple[str, str, str]]) -> dict[str, object]:
        """What is stored with the job: both sides of the equation, by purpose and task, and tokens by final state."""
        live = Counter(in_flight)
        by_task: Counter[tuple[str, str]] = Counter()
        for (purpose, task, _), count in live.items():
            by_task[purpose, task] += count
        sides = self._sides(by_task)
        return {
            "issued": _nest(self.issued),
            "closed": _nest(self.closed),
            "in_flight": _nest(live),
            "tokens": _nest(self.tokens),
            "discarded_tokens": self.discarded_tokens,
            "is_balanced": all(issued == closed + n for issued, closed, n in sides.values()),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> "Ledger":
        ledger = cls()
        ledger.issued.update(_flatten(stored.get("issued"), 2))
        ledger.closed.update(_flatten(stored.get("closed"), 3))
        ledger.tokens.update(_flatten(stored.get("tokens"), 3))
        discarded = stored.get("discarded_tokens", 0)
        ledger.discarded_tokens = discarded if isinstance(discarded, int) else 0
        return ledger


def _nest(counts: Mapping[Any, int]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, count in sorted(counts.items()):
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = count
    return tree


def _flatten(tree: object, depth: int, path: tuple[str, ...] = ()) -> dict[Any, int]:
    if depth == 0:
        return {path: tree} if isinstance(tree, int) else {}
    if not isinstance(tree, Mapping):
        return {}
    flat: dict[Any, int] = {}
    for name, child in tree.items():
        flat.update(_flatten(child, depth - 1, (*path, str(name))))
    return flat
