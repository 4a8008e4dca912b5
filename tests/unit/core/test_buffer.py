"""What is taken first and what has room, against the sentences that say so."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.buffer import SAMPLERS, Fifo, Freshest, Priority, ReadyGroup, Room, check_order


def group(
    name: str, lag: int = 0, ready_order: int = 0, rewards: tuple[float, ...] = (0.0, 1.0), n_tokens: int = 8
) -> ReadyGroup:
    return ReadyGroup(name, "lake", lag, ready_order, rewards, n_tokens)


@st.composite
def ready_groups(draw: st.DrawFn) -> list[ReadyGroup]:
    """Groups in any order; arrivals are never shared. Rewards are eighths, so that variances compare exactly."""
    arrivals = draw(st.lists(st.integers(0, 40), unique=True, max_size=8))
    rewards = st.lists(st.integers(-8, 8).map(lambda n: n / 8), min_size=1, max_size=4).map(tuple)
    return [
        group(f"g{arrival}", draw(st.integers(0, 3)), arrival, draw(rewards), draw(st.integers(1, 100)))
        for arrival in arrivals
    ]


def variance(group: ReadyGroup) -> Fraction:
    values = [Fraction(value) for value in group.rewards]
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)


def is_before_by_fifo(one: ReadyGroup, other: ReadyGroup) -> bool:
    return one.lag > other.lag or (one.lag == other.lag and one.ready_order < other.ready_order)


def is_before_by_freshness(one: ReadyGroup, other: ReadyGroup) -> bool:
    return one.lag < other.lag or (one.lag == other.lag and one.ready_order > other.ready_order)


def is_before_by_priority(one: ReadyGroup, other: ReadyGroup) -> bool:
    if variance(one) != variance(other) and abs(variance(one) - variance(other)) > 1e-12:
        return variance(one) > variance(other)
    return is_before_by_fifo(one, other)


BEFORE = {"fifo": is_before_by_fifo, "freshest": is_before_by_freshness, "priority": is_before_by_priority}


@pytest.mark.parametrize("name", SAMPLERS)
@given(ready_groups(), st.randoms(use_true_random=False))
def test_every_pair_stands_as_the_sampler_says(name: str, groups: list[ReadyGroup], rng) -> None:  # type: ignore[no-untyped-def]
    """Whatever the order in which they are shown."""
    rng.shuffle(groups)
    order = SAMPLERS[name].order(groups)
    check_order(groups, order)
    at = {group_id: index for index, group_id in enumerate(order)}
    for one in groups:
        for other in groups:
            if BEFORE[name](one, other):
                assert at[one.id] < at[other.id], (one, other)


def test_each_sampler_has_a_rule_here() -> None:
    assert SAMPLERS.keys() == BEFORE.keys()


def test_the_three_differ() -> None:
    groups = [
        group("old", lag=1, ready_order=5),
        group("first", ready_order=1),
        group("last", ready_order=9),
        group("flat", lag=1, ready_order=0, rewards=(1.0, 1.0)),
        group("wide", ready_order=2, rewards=(0.0, 4.0)),
    ]
    assert Fifo().order(groups) == ["flat", "old", "first", "wide", "last"]
    assert Freshest().order(groups) == ["last", "wide", "first", "old", "flat"]
    assert Priority().order(groups) == ["wide", "old", "first", "last", "flat"]


@pytest.mark.parametrize("reward", [0.1, 0.7, 1 / 3, 1e9 + 0.1])
@pytest.mark.parametrize("size", [2, 3, 5, 7, 8])
def test_equal_rewards_have_no_spread_whatever_they_are(reward: float, size: int) -> None:
    older = group("older", lag=1, ready_order=0, rewards=(0.0,) * size)
    newer = group("newer", lag=0, ready_order=1, rewards=(reward,) * size)
    assert Priority().order([newer, older]) == ["older", "newer"]


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_which_sibling_got_what_does_not_matter(rewards: list[float], rng) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(rewards)
    rng.shuffle(shuffled)
    older = group("older", lag=1, ready_order=0, rewards=tuple(rewards))
    newer = group("newer", lag=0, ready_order=1, rewards=tuple(shuffled))
    assert Priority().order([newer, older]) == ["older", "newer"]


@given(ready_groups())
def test_nothing_to_choose_from_is_nothing_chosen(groups: list[ReadyGroup]) -> None:
    for sampler in SAMPLERS.values():
        assert sampler.order([]) == []
        assert sampler.order(groups[:1]) == [one.id for one in groups[:1]]


@pytest.mark.parametrize("order", [["a"], ["a", "b", "c"], ["a", "a"], ["a", "c"], []])
def test_a_sampler_that_loses_invents_or_repeats_is_refused(order: list[str]) -> None:
    with pytest.raises(ValueError, match="for 2 groups"):
        check_order([group("a"), group("b")], order)


LIMITS = st.none() | st.integers(0, 30)
SMALL = st.integers(0, 12)


class Shelf:
    """Holds single trajectories, each with its bytes; full when it says so."""

    def __init__(self, trajectories: int | None, n_bytes: int | None) -> None:
        self.held: list[int] = []
        self.trajectories, self.n_bytes = trajectories, n_bytes

    def put(self, sizes: list[int]) -> bool:
        after = self.held + sizes
        too_many = self.trajectories is not None and len(after) > self.trajectories
        too_big = self.n_bytes is not None and sum(after) > self.n_bytes
        if too_many or too_big:
            return False
        self.held = after
        return True


@given(LIMITS, LIMITS, st.lists(st.tuples(st.booleans(), st.lists(SMALL, max_size=4)), max_size=20))
def test_room_is_what_a_shelf_would_say(
    trajectories: int | None, n_bytes: int | None, moves: list[tuple[bool, list[int]]]
) -> None:
    shelf, room = Shelf(trajectories, n_bytes), Room(trajectories, n_bytes)
    for is_taking, sizes in moves:
        if is_taking:
            shelf.held = shelf.held[len(sizes) :]
            continue
        fits = room.has_room(
            held=len(shelf.held), held_bytes=sum(shelf.held), wanted=len(sizes), wanted_bytes=sum(sizes)
        )
        assert fits == shelf.put(sizes)
