"""Micro-batches and mini-batches: nothing lost, nothing cut, budgets kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.packing import pack_by_tokens, split_evenly

LENGTHS = st.lists(st.integers(1, 300), max_size=60)


@given(LENGTHS, st.integers(1, 1000))
def test_every_row_is_packed_once_within_the_budget(lengths: list[int], budget: int) -> None:
    packs = pack_by_tokens(lengths, budget)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    for pack in packs:
        assert len(pack) == 1 or len(pack) * max(lengths[row] for row in pack) <= budget


@given(st.lists(st.integers(1, 50), max_size=30), st.randoms())
def test_arrival_order_does_not_matter(lengths: list[int], random: object) -> None:
    shuffled = list(lengths)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    shapes = [[[rows[row] for row in pack] for pack in pack_by_tokens(rows, 100)] for rows in (lengths, shuffled)]
    assert shapes[0] == shapes[1]


def test_a_row_above_the_budget_stands_alone() -> None:
    assert pack_by_tokens([5, 500, 5], 10) == ((1,), (0, 2))


def test_what_cannot_be_packed_is_named() -> None:
    with pytest.raises(ValueError, match="budget_tokens"):
        pack_by_tokens([1], 0)
    with pytest.raises(ValueError, match="row 1"):
        pack_by_tokens([1, 0], 10)


@given(st.lists(st.integers(1, 16), max_size=40), st.integers(1, 6))
def test_groups_are_dealt_whole_and_evenly(sizes: list[int], n_parts: int) -> None:
    parts = split_evenly(sizes, n_parts)
    assert sorted(group for part in parts for group in part) == list(range(len(sizes)))
    rows = [sum(sizes[group] for group in part) for part in parts]
    if len(parts) == n_parts:
        assert max(rows) - min(rows) <= max(sizes)


def test_equal_groups_are_dealt_in_turn() -> None:
    assert split_evenly([8, 8, 8, 8], 2) == ((0, 2), (1, 3))


def test_no_part_is_empty() -> None:
    assert split_evenly([8], 4) == ((0,),)
    with pytest.raises(ValueError, match="n_parts"):
        split_evenly([8], 0)
