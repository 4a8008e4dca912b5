"""The conservation ledger: both sides are counted on their own, and a difference is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.ledger import EXITS, IN_FLIGHT, REFILLED, TRANSITIONS, USED, AttemptState, Ledger, LedgerError

CLOSED = sorted(EXITS | USED)
Moves = list[tuple[str, str, AttemptState | None, int]]


def ledger_of(moves: Moves) -> tuple[Ledger, list[tuple[str, str, str]]]:
    """Issues each; closes those with a state. The second value is what is still in flight, as `to_json` wants it."""
    ledger, live = Ledger(), []
    for purpose, task, state, tokens in moves:
        ledger.issue(purpose, task)
        if state is None:
            live.append((purpose, task, "running"))
        else:
            ledger.close(purpose, task, state, tokens)
    return ledger, live


moves = st.lists(
    st.tuples(
        st.sampled_from(["train", "eval"]),
        st.sampled_from(["lake", "tools", "a task/with: signs"]),
        st.one_of(st.none(), st.sampled_from(CLOSED)),
        st.integers(0, 10_000),
    ),
    max_size=60,
)


def test_states_are_in_flight_used_or_an_exit_and_nothing_twice() -> None:
    assert set(AttemptState) == IN_FLIGHT | USED | EXITS
    assert not IN_FLIGHT & USED
    assert not (IN_FLIGHT | USED) & EXITS
    assert REFILLED <= EXITS


def test_every_state_in_flight_leads_somewhere_and_every_exit_nowhere() -> None:
    for state in IN_FLIGHT:
        assert TRANSITIONS[state] & (USED | EXITS | IN_FLIGHT)
    for state in EXITS | {AttemptState.EVALUATED}:
        assert state not in TRANSITIONS


def test_each_exit_can_be_reached() -> None:
    reached = frozenset().union(*TRANSITIONS.values())
    assert reached == frozenset(AttemptState) - {AttemptState.QUEUED}


def test_a_sampled_attempt_is_trained_or_aborted_with_its_job() -> None:
    assert TRANSITIONS[AttemptState.SAMPLED] == {AttemptState.TRAINED, AttemptState.ABORTED}


def test_trained_is_left_only_by_a_roll_back() -> None:
    assert TRANSITIONS[AttemptState.TRAINED] == {AttemptState.ROLLED_BACK}


def test_only_what_was_scored_becomes_unscorable() -> None:
    assert {s for s, targets in TRANSITIONS.items() if AttemptState.UNSCORABLE in targets} == {AttemptState.SCORING}


def test_an_equation_that_holds() -> None:
    trained, evaluated = ("train", "lake", AttemptState.TRAINED, 8), ("eval", "lake", AttemptState.EVALUATED, 9)
    ledger, live = ledger_of([trained, ("train", "lake", None, 0), evaluated])
    ledger.check([("train", "lake")])
    stored = ledger.to_json(live)
    assert stored["issued"] == {"train": {"lake": 2}, "eval": {"lake": 1}}
    assert stored["closed"] == {"train": {"lake": {"trained": 1}}, "eval": {"lake": {"evaluated": 1}}}
    assert stored["in_flight"] == {"train": {"lake": {"running": 1}}}
    assert stored["tokens"] == {"train": {"lake": {"trained": 8}}, "eval": {"lake": {"evaluated": 9}}}
    assert stored["is_balanced"] is True


def test_an_attempt_that_vanished_is_told() -> None:
    ledger, _ = ledger_of([("train", "lake", None, 0)])
    with pytest.raises(LedgerError, match=r"\('train', 'lake'\): issued 1 != closed 0 \+ in flight 0"):
        ledger.check([])


def test_an_attempt_closed_twice_is_told() -> None:
    ledger, _ = ledger_of([("train", "lake", AttemptState.TRAINED, 8)])
    ledger.close("train", "lake", AttemptState.SURPLUS, 8)
    with pytest.raises(LedgerError, match="issued 1 != closed 2"):
        ledger.check([])
    assert ledger.to_json([])["is_balanced"] is False


def test_an_attempt_that_was_never_issued_is_told() -> None:
    with pytest.raises(LedgerError, match="issued 0"):
        Ledger().check([("eval", "lake")])


def test_one_task_does_not_make_up_for_another() -> None:
    ledger = Ledger()
    ledger.issue("train", "lake")
    ledger.close("train", "tools", AttemptState.TRAINED, 1)
    with pytest.raises(LedgerError):
        ledger.check([])
    assert ledger.to_json([])["is_balanced"] is False


@given(moves)
def test_it_balances_whatever_happens(given_moves: Moves) -> None:
    ledger, live = ledger_of(given_moves)
    ledger.check((purpose, task) for purpose, task, _ in live)
    assert ledger.to_json(live)["is_balanced"] is True


@given(moves, st.integers(0, 1000))
def test_json_round_trip(given_moves: Moves, discarded: int) -> None:
    ledger, live = ledger_of(given_moves)
    ledger.discarded_tokens = discarded
    stored = json.loads(json.dumps(ledger.to_json(live)))
    loaded = Ledger.from_json(stored)
    assert loaded.issued == ledger.issued
    assert loaded.closed == ledger.closed
    assert +loaded.tokens == +ledger.tokens
    assert loaded.discarded_tokens == discarded
    loaded.check((purpose, task) for purpose, task, _ in live)


@given(moves.filter(bool), st.data())
def test_any_single_loss_is_found(given_moves: Moves, data: st.DataObject) -> None:
    ledger, live = ledger_of(given_moves)
    purpose, task, _, _ = data.draw(st.sampled_from(given_moves))
    ledger.issue(purpose, task)
    with pytest.raises(LedgerError):
        ledger.check((p, t) for p, t, _ in live)


def test_an_empty_ledger_is_stored_and_loaded() -> None:
    loaded = Ledger.from_json(json.loads(json.dumps(Ledger().to_json([]))))
    assert loaded == Ledger()


@pytest.mark.parametrize("stored", [{}, {"issued": 3, "closed": None, "tokens": [], "discarded_tokens": "7"}])
def test_what_is_not_a_ledger_counts_nothing(stored: dict[str, object]) -> None:
    assert Ledger.from_json(stored) == Ledger()
