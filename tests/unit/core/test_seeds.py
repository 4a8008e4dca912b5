"""Derived seeds: stable for ever, different for different parts, uniform enough to draw from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.seeds import derive, sampling_seed, uniform

PART = st.one_of(st.integers(-(2**80), 2**80), st.text(max_size=8), st.binary(max_size=8))


def test_values_are_pinned() -> None:
    assert derive(7) == 3590225053604197518
    assert derive("sampling", 7, "g", 0, 1, 2) == sampling_seed(7, "g", 0, 1, 2)


@given(st.lists(PART, max_size=5))
def test_seeds_fit_every_consumer_and_repeat(parts: list[int | str | bytes]) -> None:
    assert 0 <= derive(*parts) < 2**63
    assert derive(*parts) == derive(*parts)


@given(st.lists(PART, max_size=4), st.lists(PART, max_size=4))
def test_other_parts_give_another_seed(one: list[int | str | bytes], two: list[int | str | bytes]) -> None:
    assert (derive(*one) == derive(*two)) == (one == two)


def test_parts_have_borders_and_types() -> None:
    seeds = [derive("ab", "c"), derive("a", "bc"), derive("abc"), derive(1), derive("1"), derive(b"1"), derive(0, 1)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("part", [1.5, None, True, ("a",)])
def test_ambiguous_parts_are_refused(part: object) -> None:
    with pytest.raises(TypeError, match="seed part"):
        derive("a", part)  # type: ignore[arg-type]


def test_siblings_attempts_and_turns_draw_differently_and_a_second_run_the_same() -> None:
    def run() -> list[int]:
        return [
            sampling_seed(7, "g", sibling, attempt, turn)
            for sibling in range(4)
            for attempt in range(2)
            for turn in range(3)
        ]

    assert len(set(run())) == 24
    assert run() == run()


def test_draws_depend_on_position_alone() -> None:
    forward = [uniform(11, position) for position in range(2000)]
    backward = [uniform(11, position) for position in reversed(range(2000))]
    assert forward == backward[::-1]
    assert all(0 <= draw < 1 for draw in forward)
    assert abs(sum(forward) / len(forward) - 0.5) < 0.02
    assert len(set(forward)) == len(forward)
