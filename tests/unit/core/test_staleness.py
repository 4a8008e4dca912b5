"""Bounded staleness, number by number."""

from collections.abc import Callable
from decimal import Decimal
from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.staleness import admission_bound, is_alive, issued_per_group, may_take
from headrace.core.versions import Lineage

ALPHAS = st.one_of(st.none(), st.integers(0, 8))


@pytest.mark.parametrize(("n", "keeps"), [(3, True), (4, True), (5, False), (10, False)])
def test_truth_table_at_alpha_1(n: int, keeps: bool) -> None:
    assert may_take(n - 3, 1) is keeps  # v0 = 3


@pytest.mark.parametrize(
    ("alpha", "kept"), [(1, [True, True, False]), (0, [True, False, False]), (2, [True, True, True])]
)
def test_one_update_counts_one(alpha: int, kept: list[bool]) -> None:
    assert [may_take(current - 4, alpha) for current in (4, 5, 6)] == kept


def test_off_the_lineage_is_never_taken_and_never_alive() -> None:
    assert not may_take(None, None)
    assert not may_take(None, 5)
    assert not is_alive(None, None, is_batch_out=False)


def test_without_a_bound_every_lag_may_be_taken() -> None:
    assert may_take(1000, None)
    assert is_alive(1000, None, is_batch_out=True)


@pytest.mark.parametrize(
    ("lag", "alpha", "is_out", "alive"),
    [
        (0, 0, False, True),
        (0, 0, True, False),  # the next take is at n + 1
        (1, 1, False, True),
        (1, 1, True, False),
        (0, 1, True, True),
        (2, 1, False, False),
    ],
)
def test_a_group_lives_while_the_next_take_may_have_it(lag: int, alpha: int, is_out: bool, alive: bool) -> None:
    assert is_alive(lag, alpha, is_batch_out=is_out) is alive


@given(st.integers(0, 20), ALPHAS)
def test_alive_with_no_batch_out_is_exactly_what_a_take_asks(lag: int, alpha: int | None) -> None:
    assert is_alive(lag, alpha, is_batch_out=False) == may_take(lag, alpha)


@given(st.integers(0, 20), ALPHAS)
def test_a_take_never_brings_a_group_back_to_life(lag: int, alpha: int | None) -> None:
    assert is_alive(lag, alpha, is_batch_out=False) >= is_alive(lag, alpha, is_batch_out=True)


@pytest.mark.parametrize(
    ("rollout_lag", "is_out", "bound"),
    [
        (0, False, 8),  # B = 4, eta = 1: this batch and the next
        (0, True, 4),  # the batch that is out was one of the two
        (1, False, 4),  # a worker one behind: what it starts is good for one take
        (1, True, 0),
        (2, False, 0),
    ],
)
def test_admission_vectors_for_b_4_and_eta_1(rollout_lag: int, is_out: bool, bound: int) -> None:
    found = admission_bound(rollout_lag=rollout_lag, alpha=1, is_batch_out=is_out, groups=4, overcommit=1.0)
    assert found == bound


@pytest.mark.parametrize(
    ("alpha", "overcommit", "bound"), [(0, 1.0, 4), (0, 1.5, 6), (4, 1.0, 20), (0, 1.3, 5), (None, 1.0, 8)]
)
def test_admission_by_alpha_and_overcommit(alpha: int | None, overcommit: float, bound: int) -> None:
    found = admission_bound(rollout_lag=0, alpha=alpha, is_batch_out=False, groups=4, overcommit=overcommit)
    assert found == bound


@pytest.mark.parametrize(
    ("overcommit", "groups", "bound"),
    [(1.15, 100, 115), (1.13, 100, 113), (1.1, 10, 11), (2.3, 10, 23), (1e6, 3, 3_000_000)],
)
def test_overcommit_is_counted_in_decimals(overcommit: float, groups: int, bound: int) -> None:
    found = admission_bound(rollout_lag=0, alpha=0, is_batch_out=False, groups=groups, overcommit=overcommit)
    assert found == bound


@given(st.integers(0, 4), ALPHAS, st.booleans(), st.integers(1, 200), st.decimals("1", "9", places=2))
def test_the_bound_is_the_formula(lag: int, alpha: int | None, is_out: bool, groups: int, factor: Decimal) -> None:
    found = admission_bound(rollout_lag=lag, alpha=alpha, is_batch_out=is_out, groups=groups, overcommit=float(factor))
    n, m = 10, 10 + is_out
    batches = 2 if alpha is None else (n - lag) + alpha - m + 1
    assert found == max(0, floor(factor * batches * groups))


@given(st.integers(0, 6), st.integers(0, 6), st.booleans(), st.integers(1, 40))
def test_all_that_is_admitted_can_still_be_taken(lag: int, alpha: int, is_out: bool, groups: int) -> None:
    """With overcommit 1: the batches before a group of the bound are few enough that its lag stays within alpha."""
    bound = admission_bound(rollout_lag=lag, alpha=alpha, is_batch_out=is_out, groups=groups, overcommit=1.0)
    assert bound % groups == 0
    if bound:
        takes_before_the_last = bound // groups - 1
        assert may_take(lag + is_out + takes_before_the_last, alpha)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 40))
def test_admission_falls_by_one_batch_for_each_version_behind(lag: int, alpha: int, groups: int) -> None:
    here, behind = (
        admission_bound(rollout_lag=lag + more, alpha=alpha, is_batch_out=False, groups=groups, overcommit=1.0)
        for more in (0, 1)
    )
    assert here - behind in (0, groups)


@pytest.mark.parametrize(
    ("size", "redundancy", "issued"),
    [(8, "1.1", 9), (10, "1.1", 11), (10, "1.11", 12), (4, "1.25", 5), (8, "1", 8), (8, 1.0, 8), (3, 1.5, 5)],
)
def test_redundancy_is_counted_in_decimals(size: int, redundancy: str | float, issued: int) -> None:
    assert issued_per_group(size, redundancy) == issued


def test_less_than_one_still_issues_the_group() -> None:
    assert issued_per_group(4, "0.5") == 4


@given(st.integers(1, 64), st.decimals("1", "4", places=3))
def test_redundancy_is_the_decimal_ceiling(size: int, redundancy: Decimal) -> None:
    assert issued_per_group(size, str(redundancy)) == ceil(size * redundancy)


class Rollout:
    """One task, two workers and a trainer that may come back at an older version; every group is ready at once."""

    def __init__(self, alpha: int, groups: int) -> None:
        self.alpha, self.groups = alpha, groups
        self.lineage = Lineage()
        self.lineage.commit(0, parent=None, step=0, digest="d0")
        self.serving = [0, 0]
        self.waiting: list[int] = []  # v0 of each group, by arrival
        self.is_out = False

    def lag(self, version: int) -> int | None:
        """Commits from the version to the current one, by the parents."""
        line = self.lineage.ancestors(self.lineage.current)
        return line.index(version) if version in line else None

    def admit(self, worker: int) -> None:
        """As many as the oldest worker in use allows, all of them on `worker`."""
        lags = [self.lag(version) for version in self.serving]
        known = [lag for lag in lags if lag is not None]
        if lags[worker] is None:
            return
        bound = admission_bound(
            rollout_lag=max(known), alpha=self.alpha, is_batch_out=self.is_out, groups=self.groups, overcommit=1.0
        )
        self.waiting += [self.serving[worker]] * max(0, bound - len(self.waiting))

    def take(self, _: int) -> None:
        if self.is_out or len(self.waiting) < self.groups:
            return
        self.waiting.sort(key=lambda version: -(self.lag(version) or 0))
        batch, self.waiting = self.waiting[: self.groups], self.waiting[self.groups :]
        assert all(may_take(self.lag(version), self.alpha) for version in batch)
        self.is_out = True

    def commit(self, _: int) -> None:
        current = self.lineage.current
        if self.is_out and current is not None:
            self.publish(current)
            self.is_out = False

    def restore(self, back: int) -> None:
        """To an ancestor, whose state is published again: a version like it, one deeper. What is too old leaves."""
        line = self.lineage.ancestors(self.lineage.current)
        if len(line) > 1:
            self.publish(line[min(back + 1, len(line) - 1)])
            self.evict()

    def evict(self) -> None:
        is_out = self.is_out
        self.waiting = [v for v in self.waiting if is_alive(self.lag(v), self.alpha, is_batch_out=is_out)]

    def publish(self, parent: int) -> None:
        number = max(self.lineage.versions) + 1
        self.lineage.commit(number, parent=parent, step=number, digest=f"d{number}")

    def load(self, worker: int) -> None:
        assert self.lineage.current is not None
        self.serving[worker] = self.lineage.current

    def check(self) -> None:
        """What is alive by definition: the take that could come next would have it."""
        for version in {*self.waiting, *self.lineage.versions}:
            lag = self.lag(version)
            assert lag == self.lineage.lag(version)
            next_take = None if lag is None else lag + self.is_out
            assert is_alive(lag, self.alpha, is_batch_out=self.is_out) == may_take(next_take, self.alpha)


MOVES = [Rollout.admit, Rollout.take, Rollout.commit, Rollout.load]


Moves = list[tuple[Callable[[Rollout, int], None], int]]


@given(
    st.integers(0, 4), st.integers(1, 3), st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 1)), max_size=60)
)
def test_with_overcommit_1_nothing_that_is_admitted_ever_becomes_stale(alpha: int, groups: int, moves: Moves) -> None:
    """Whichever worker starts it and however far that lags: the takes before its own are few enough."""
    rollout = Rollout(alpha, groups)
    for move, argument in moves:
        move(rollout, argument)
        rollout.check()
        n_admitted = len(rollout.waiting)
        rollout.evict()
        assert len(rollout.waiting) == n_admitted


@given(
    st.integers(0, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from([*MOVES, *MOVES, Rollout.restore]), st.integers(0, 1)), max_size=60),
)
def test_no_take_holds_what_is_too_old_when_trainers_come_back(alpha: int, groups: int, moves: Moves) -> None:
    rollout = Rollout(alpha, groups)
    for move, argument in moves:
        move(rollout, argument)
        rollout.check()
        rollout.evict()
