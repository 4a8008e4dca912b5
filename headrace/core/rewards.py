"""Rewards of one attempt: what was reported, when to ask again, and the one number that comes of it.

    waiting ──report(score)──► scored
       │  └───report(None)───► abstained
       │  └───report(fault)──► waiting (another try) or unscorable
       └──deadline──► waiting (another try) or unscorable

A missing reward is never filled in. The first final outcome of a name stands; what comes later is ignored.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RewardState(StrEnum):
    """Where one named reward of one attempt stands."""

    WAITING = "waiting"
    SCORED = "scored"
    ABSTAINED = "abstained"
    UNSCORABLE = "unscorable"


@dataclass(frozen=True, slots=True)
class RewardRule:
    """weight: factor in the sum; timeout_s: deadline of one try; tries: how often it is sent before it is given up."""

    name: str
    weight: float = 1.0
    timeout_s: float = 60.0
    tries: int = 3

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"weight of reward {self.name!r} is {self.weight}; it must be finite")
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise ValueError(f"timeout_s of reward {self.name!r} is {self.timeout_s}; it must be positive")
        if self.tries < 1:
            raise ValueError(f"tries of reward {self.name!r} is {self.tries}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class SendReward:
    """Ask for a reward: the task carries (attempt, name, try)."""

    name: str
    try_number: int


@dataclass(slots=True)
class _Ticket:
    rule: RewardRule
    state: RewardState = RewardState.WAITING
    try_number: int = 0
    deadline_s: float = -math.inf
    score: float | None = None
    fault: str = ""


class RewardBook:
    """The named rewards of one attempt. Times are arguments, in seconds of any one clock."""

    def __init__(self, rules: Sequence[RewardRule]) -> None:
        names = [rule.name for rule in rules]
        if len(set(names)) != len(names):
            raise ValueError(f"reward names repeat: {names}")
        self._tickets = {rule.name: _Ticket(rule) for rule in rules}

    def due(self, now_s: float) -> list[SendReward]:
        """What has to be sent now: never sent, or past its deadline with tries left; the others are given up."""
        sends = []
        for ticket in self._tickets.values():
            if ticket.state is not RewardState.WAITING or now_s < ticket.deadline_s:
                continue
            if ticket.try_number >= ticket.rule.tries:
                ticket.state = RewardState.UNSCORABLE
                ticket.fault = ticket.fault or f"no report within {ticket.rule.timeout_s} s, {ticket.try_number} tries"
                continue
            ticket.try_number += 1
            ticket.deadline_s = now_s + ticket.rule.timeout_s
            sends.append(SendReward(ticket.rule.name, ticket.try_number))
        return sends

    def next_deadline_s(self) -> float | None:
        """When `due` has to be asked again; None when nothing waits."""
        waiting = [t.deadline_s for t in self._tickets.values() if t.state is RewardState.WAITING]
        return min(waiting, default=None)

    def report(self, name: str, score: float | None, fault: str = "", *, is_retryable: bool = False) -> bool:
        """Write down a report; True when it decided something, False for a second or an unknown one.

        A score of None without a fault is an abstention. NaN and infinities are faults. A retryable fault leaves the
        reward waiting for its next try, due at once.
        """
        ticket = self._tickets.get(name)
        if ticket is None or ticket.state is not RewardState.WAITING:
            return False
        if score is not None and not math.isfinite(score):
            score, fault = None, f"score is {score}; it must be finite"
        if fault:
            ticket.fault = fault
            if is_retryable and ticket.try_number < ticket.rule.tries:
                ticket.deadline_s = -math.inf
            else:
                ticket.state = RewardState.UNSCORABLE
            return True
        ticket.score = score
        ticket.state = RewardState.ABSTAINED if score is None else RewardState.SCORED
        return True

    def state(self, name: str) -> RewardState:
        """Raises KeyError for a name that has no rule."""
        return self._tickets[name].state

    @property
    def is_settled(self) -> bool:
        """Nothing waits."""
        return all(ticket.state is not RewardState.WAITING for ticket in self._tickets.values())

    @property
    def faults(self) -> dict[str, str]:
        """Why rewards could not be scored, by name."""
        return {name: t.fault for name, t in self._tickets.items() if t.state is RewardState.UNSCORABLE}

    def total(self) -> float | None:
        """The weighted sum once settled; None: the attempt is unscorable (a reward failed, or all abstained).

        Raises:
            RuntimeError: something still waits.
        """
        if not self.is_settled:
            waiting = [name for name, t in self._tickets.items() if t.state is RewardState.WAITING]
            raise RuntimeError(f"rewards still wait: {', '.join(waiting)}")
        if self.faults:
            return None
        return combine(
            {name: t.score for name, t in self._tickets.items()},
            {name: t.rule.weight for name, t in self._tickets.items()},
        )


def combine(scores: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Σ weight × score over the rewards that did not abstain (None); None when all did or the sum is not finite.

    Scores are joined to weights by name, never by position.

    Raises:
        KeyError: a score has no weight.
    """
    given = [(weights[name], score) for name, score in scores.items() if score is not None]
    if not given:
        return None
    total = math.fsum(weight * score for weight, score in given)
    return total if math.isfinite(total) else None
