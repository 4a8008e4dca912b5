"""The experience buffer's policies: in which order ready groups are sampled, and what has room.

A sampler is an object with one method; it sees small values and returns ids. Whatever it prefers, the job machine takes
only groups that the staleness bound allows, and a task's share of a batch is not the sampler's to change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A group that may be taken. `lag` in updates, `ready_order` counts arrivals, rewards are of its members."""

    id: str
    task: str
    lag: int
    ready_order: int
    rewards: tuple[float, ...]
    n_tokens: int


class Sampler(Protocol):
    """Orders groups, the first ones to be taken first; every group appears once."""

    def order(self, groups: Sequence[ReadyGroup]) -> list[str]: ...


class Fifo:
    """Earliest v0 first, then arrival: what would become stale first is used first."""

    def order(self, groups: Sequence[ReadyGroup]) -> list[str]:
        return [group.id for group in sorted(groups, key=lambda g: (-g.lag, g.ready_order))]


class Freshest:
    """Smallest lag first, then the latest arrival: least off-policy, at the price of what waits."""

    def order(self, groups: Sequence[ReadyGroup]) -> list[str]:
        return [group.id for group in sorted(groups, key=lambda g: (g.lag, -g.ready_order))]


class Priority:
    """Largest spread of rewards first, since a group without any teaches nothing; then as `Fifo`."""

    def order(self, groups: Sequence[ReadyGroup]) -> list[str]:
        return [group.id for group in sorted(groups, key=lambda g: (-_variance(g.rewards), -g.lag, g.ready_order))]


SAMPLERS: Mapping[str, Sampler] = MappingProxyType({"fifo": Fifo(), "freshest": Freshest(), "priority": Priority()})


def check_order(groups: Sequence[ReadyGroup], order: Sequence[str]) -> None:
    """Raises ValueError when a sampler lost, invented or repeated a group."""
    if sorted(order) != sorted(group.id for group in groups):
        raise ValueError(
            f"the sampler returned {len(order)} ids for {len(groups)} groups, or other ids than it was given"
        )


def _variance(values: Sequence[float]) -> float:
    """Of equal values exactly 0, and the same in any order: rounding must not decide between groups that tie."""
    if not values or min(values) == max(values):
        return 0.0
    mean = fsum(values) / len(values)
    return fsum((value - mean) ** 2 for value in values) / len(values)


@dataclass(frozen=True, slots=True)
class Room:
    """Bounds of what a job holds, in trajectories and in bytes of tokens; None: no bound of its own.

    Every attempt of an open group counts from admission, so a group that was let in can always finish.
    """

    trajectories: int | None = None
    n_bytes: int | None = None

    def has_room(self, *, held: int, held_bytes: int, wanted: int, wanted_bytes: int) -> bool:
        """Whether `wanted` more trajectories of about `wanted_bytes` fit beside what is held."""
        fits = self.trajectories is None or held + wanted <= self.trajectories
        return fits and (self.n_bytes is None or held_bytes + wanted_bytes <= self.n_bytes)


BYTES_PER_TOKEN = 12
"""An id and a logprob as stored, and the mask: what a token of a waiting trajectory costs."""
