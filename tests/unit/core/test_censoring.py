"""Who finishes and who is killed, against a list of outcomes that is counted by hand."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.censoring import Censoring, stratum

OUTCOMES = st.lists(
    st.tuples(st.sampled_from(["lake", "tools"]), st.booleans(), st.integers(0, 40), st.none() | st.integers(-4, 4)),
    max_size=40,
)
"""(task, was kept, generated tokens, reward if known)."""
MEMBERS = st.lists(st.tuples(st.sampled_from(["lake", "tools", "unseen"]), st.integers(0, 80)), min_size=1, max_size=20)
CAPS = st.floats(1.0, 1e6)

Outcome = tuple[str, bool, int, int | None]


def counted(outcomes: Sequence[Outcome]) -> Censoring:
    censoring = Censoring()
    for task, is_kept, n_tokens, reward in outcomes:
        (censoring.keep if is_kept else censoring.kill)(task, n_tokens, reward)
    return censoring


def in_stratum(outcomes: Sequence[Outcome], task: str, n_tokens: int) -> tuple[int, int]:
    """(kept, killed) of the task among those as long."""
    alike = [kept for name, kept, n, _ in outcomes if name == task and stratum(n) == stratum(n_tokens)]
    return sum(alike), len(alike) - sum(alike)


@pytest.mark.parametrize(
    ("n_tokens", "edge"),
    [
        (-1, 0),
        (0, 0),
        (1, 1),
        (2, 2),
        (3, 4),
        (4, 4),
        (5, 8),
        (8, 8),
        (9, 16),
        (1 << 20, 1 << 20),
        ((1 << 20) + 1, 1 << 21),
    ],
)
def test_strata_are_powers_of_two(n_tokens: int, edge: int) -> None:
    assert stratum(n_tokens) == edge


@given(st.integers(1, 1 << 40))
def test_a_stratum_ends_at_its_edge_and_begins_past_half_of_it(n_tokens: int) -> None:
    edge = stratum(n_tokens)
    assert edge.bit_count() == 1
    assert edge / 2 < n_tokens <= edge


@given(OUTCOMES, MEMBERS)
def test_probability_is_the_kept_share_of_the_stratum(outcomes: list[Outcome], members: list[tuple[str, int]]) -> None:
    censoring = counted(outcomes)
    for task, n_tokens in members:
        kept, killed = in_stratum(outcomes, task, n_tokens)
        expected = kept / (kept + killed) if kept + killed else 1.0
        assert censoring.probability(task, n_tokens) == expected
    assert censoring == counted(outcomes), "asking leaves no trace"


@given(OUTCOMES, MEMBERS, CAPS)
def test_weights_have_mean_1_and_spread_at_most_by_the_cap(
    outcomes: list[Outcome], members: list[tuple[str, int]], cap: float
) -> None:
    weights = counted(outcomes).weights(members, cap)
    assert len(weights) == len(members)
    assert sum(weights) / len(weights) == pytest.approx(1.0)
    assert all(weight > 0 for weight in weights)
    assert max(weights) <= min(weights) * cap * (1 + 1e-9)
    assert max(weights) <= cap * (1 + 1e-9)


@given(OUTCOMES, MEMBERS, CAPS)
def test_who_is_likelier_to_finish_weighs_no_more(
    outcomes: list[Outcome], members: list[tuple[str, int]], cap: float
) -> None:
    censoring = counted(outcomes)
    by_probability: dict[float, float] = {}
    for (task, n_tokens), weight in zip(members, censoring.weights(members, cap), strict=True):
        likely = censoring.probability(task, n_tokens)
        assert by_probability.setdefault(likely, weight) == weight
    falling = [weight for _, weight in sorted(by_probability.items())]
    assert falling == sorted(falling, reverse=True)


@given(OUTCOMES, MEMBERS, CAPS, st.randoms(use_true_random=False))
def test_a_weight_belongs_to_its_member_in_any_order(
    outcomes: list[Outcome],
    members: list[tuple[str, int]],
    cap: float,
    rng,  # type: ignore[no-untyped-def]
) -> None:
    censoring, order = counted(outcomes), list(range(len(members)))
    rng.shuffle(order)
    weights = censoring.weights(members, cap)
    shuffled = censoring.weights([members[index] for index in order], cap)
    assert shuffled == pytest.approx([weights[index] for index in order])


@given(OUTCOMES)
def test_what_was_kept_stands_for_what_was_killed_of_its_stratum(outcomes: list[Outcome]) -> None:
    """Uncapped, the weights of the kept ones of a stratum sum to its share of all that was issued."""
    kept = [(task, n) for task, is_kept, n, _ in outcomes if is_kept]
    weights = counted(outcomes).weights(kept, 1e6)
    alive = {(task, stratum(n)) for task, n in kept}
    issued = [(task, stratum(n)) for task, _, n, _ in outcomes if (task, stratum(n)) in alive]
    for key in alive:
        held = sum(w for w, (task, n) in zip(weights, kept, strict=True) if (task, stratum(n)) == key)
        assert held / len(kept) == pytest.approx(issued.count(key) / len(issued))


@given(OUTCOMES, MEMBERS)
def test_a_cap_of_1_and_no_history_weigh_alike(outcomes: list[Outcome], members: list[tuple[str, int]]) -> None:
    assert counted(outcomes).weights(members, 1.0) == pytest.approx([1.0] * len(members))
    assert Censoring().weights(members, 4.0) == [1.0] * len(members)


def test_no_members_have_no_weights() -> None:
    assert Censoring().weights([], 4.0) == []


def test_a_stratum_in_which_nothing_was_kept_is_capped() -> None:
    censoring = counted([("lake", False, 9, None), ("lake", True, 2, 1)])
    assert censoring.probability("lake", 9) == 0.0
    assert censoring.weights([("lake", 9), ("lake", 2)], 4.0) == pytest.approx([1.6, 0.4])
    assert censoring.weights([("lake", 9), ("lake", 10)], 4.0) == [1.0, 1.0]


@given(OUTCOMES)
def test_the_report_counts_every_outcome_once(outcomes: list[Outcome]) -> None:
    report = counted(outcomes).report()
    assert set(report) == {task for task, *_ in outcomes}
    for task, told in report.items():
        for side, is_kept in (("kept", True), ("killed", False)):
            mine = [(n, reward) for name, kept, n, reward in outcomes if name == task and kept is is_kept]
            known = [reward for _, reward in mine if reward is not None]
            means = told[side]
            assert means["n"] == len(mine) == sum(row[side] for row in told["strata"])
            assert means["mean_tokens"] == (pytest.approx(sum(n for n, _ in mine) / len(mine)) if mine else None)
            assert means["mean_reward"] == (pytest.approx(sum(known) / len(known)) if known else None)
            assert means["reward_known_share"] == (pytest.approx(len(known) / len(mine)) if mine else None)
        edges = [row["up_to_tokens"] for row in told["strata"]]
        assert edges == sorted({stratum(n) for name, _, n, _ in outcomes if name == task})
        for row in told["strata"]:
            assert row["completion_probability"] == row["kept"] / (row["kept"] + row["killed"])


@given(OUTCOMES)
def test_the_distance_is_a_total_variation(outcomes: list[Outcome]) -> None:
    """The largest difference, over sets of strata, of the shares that kept and killed have there."""
    for task, told in counted(outcomes).report().items():
        kept = [stratum(n) for name, is_kept, n, _ in outcomes if name == task and is_kept]
        killed = [stratum(n) for name, is_kept, n, _ in outcomes if name == task and not is_kept]
        if not kept or not killed:
            assert told["length_distance"] is None
            continue
        shares = [(kept.count(edge) / len(kept), killed.count(edge) / len(killed)) for edge in {*kept, *killed}]
        largest = sum(a - b for a, b in shares if a > b)
        assert told["length_distance"] == pytest.approx(largest)
        assert 0.0 <= told["length_distance"] <= 1.0 + 1e-9
        assert not {*kept} & {*killed} or told["length_distance"] < 1.0
        swapped = counted([(name, not is_kept, n, reward) for name, is_kept, n, reward in outcomes])
        assert swapped.report()[task]["length_distance"] == pytest.approx(largest)


@given(OUTCOMES, OUTCOMES)
def test_a_new_owner_counts_on_from_what_was_stored(before: list[Outcome], after: list[Outcome]) -> None:
    first = counted(before)
    stored = json.dumps(first.to_json())
    again = Censoring.from_json(json.loads(stored))
    for task, is_kept, n_tokens, reward in after:
        (again.keep if is_kept else again.kill)(task, n_tokens, reward)
    assert again.report() == counted([*before, *after]).report()
    assert json.dumps(first.to_json()) == stored
