"""A stock's accounts against an integration of its whole history."""

import json
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.flow import Flow

EIGHTHS = st.integers(0, 200).map(lambda n: n / 8)
"""Sums of these are exact."""
STAYS = st.lists(st.tuples(EIGHTHS, EIGHTHS | st.just(1e6)), max_size=12)
"""(arrival, how long it stays); 1e6: to the end."""


def play(stays: list[tuple[float, float]], until: float, began_at: float = 0.0, looks: Iterable[float] = ()) -> Flow:
    """Observes from `began_at`, and everything that happens up to `until`, with a look now and then."""
    flow = Flow()
    flow.summary(began_at, [])
    happens = [(began_at + at, 0, 0.0) for at, _ in stays]
    happens += [(began_at + at + stay, 1, began_at + at) for at, stay in stays]
    happens += [(began_at + at, 2, 0.0) for at in looks]
    for now, what, entered_at in sorted(happens):
        if now > until:
            break
        match what:
            case 0:
                flow.arrive(now)
            case 1:
                flow.leave(now, entered_at)
            case _:
                flow.summary(now, [])
    return flow


def inside(stays: list[tuple[float, float]], now: float) -> list[float]:
    return [at for at, stay in stays if at <= now < at + stay]


def integrated_depth(stays: list[tuple[float, float]], until: float) -> float:
    """Depth at the middle of each piece between two changes, times the piece."""
    edges = sorted({0.0, until, *(t for at, stay in stays for t in (at, at + stay) if t < until)})
    pieces = pairwise(edges)
    return sum((end - begin) * len(inside(stays, (begin + end) / 2)) for begin, end in pieces)


@given(STAYS, EIGHTHS)
def test_every_figure_is_that_of_the_history(stays: list[tuple[float, float]], until: float) -> None:
    told = play(stays, until).summary(until, inside(stays, until))
    n_in = bisect_right(sorted(at for at, _ in stays), until)
    gone = [stay for at, stay in stays if at + stay <= until]
    ages = [until - at for at in inside(stays, until)]
    span = until or 1e-9
    assert told["depth"] == len(ages)
    assert told["depth_mean"] == pytest.approx(integrated_depth(stays, until) / span)
    assert told["arrivals_per_s"] == pytest.approx(n_in / span)
    assert told["departures_per_s"] == pytest.approx(len(gone) / span)
    assert told["residence_mean_s"] == pytest.approx(sum(gone) / max(len(gone), 1))
    assert told["age_mean_s"] == pytest.approx(sum(ages) / max(len(ages), 1))


@given(STAYS, EIGHTHS, st.sampled_from([0.0, 3.5, 1.75e9]))
def test_littles_law_holds_at_any_time_when_everything_is_counted(
    stays: list[tuple[float, float]], until: float, began_at: float
) -> None:
    flow = play(stays, began_at + until, began_at)
    entered_at = [began_at + at for at in inside(stays, until)]
    assert flow.summary(began_at + until, entered_at)["littles_law_ratio"] == pytest.approx(1.0, abs=1e-6)


def test_what_vanished_uncounted_is_seen() -> None:
    flow = play([(0.0, 2.0), (1.0, 1e6)], until=4.0)
    assert flow.summary(4.0, [])["littles_law_ratio"] == pytest.approx(5.0 / 2.0)


def test_what_came_in_uncounted_is_seen() -> None:
    flow = play([(0.0, 2.0)], until=4.0)
    assert flow.summary(4.0, [2.0])["littles_law_ratio"] == pytest.approx(2.0 / 4.0)


def test_a_stay_that_began_at_another_time_than_was_counted_is_seen() -> None:
    flow = Flow()
    flow.arrive(1.0)
    flow.leave(3.0, entered_at=2.0)
    assert flow.summary(3.0, [])["littles_law_ratio"] == pytest.approx(2.0)


def test_a_clock_may_begin_at_zero() -> None:
    flow = Flow()
    flow.arrive(0.0)
    flow.leave(2.0, 0.0)
    told = flow.summary(4.0, [])
    assert (told["depth_mean"], told["arrivals_per_s"], told["departures_per_s"]) == (0.5, 0.25, 0.25)


@given(STAYS, EIGHTHS, st.lists(EIGHTHS, max_size=4))
def test_neither_a_look_nor_a_new_owner_of_the_books_changes_them(
    stays: list[tuple[float, float]], until: float, looks: list[float]
) -> None:
    unseen, seen = play(stays, until), play(stays, until, looks=looks)
    taken_over = Flow.from_json({**json.loads(json.dumps(seen.to_json())), "no longer known": 1})
    assert taken_over == seen
    expected = unseen.summary(until + 1.0, inside(stays, until + 1.0))
    assert taken_over.summary(until + 1.0, inside(stays, until + 1.0)) == pytest.approx(expected)


def test_nothing_at_all_is_in_balance() -> None:
    assert Flow().summary(5.0, [])["littles_law_ratio"] == 1.0
