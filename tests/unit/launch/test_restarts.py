"""When the launcher starts a process again, and when it gives up."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.up.restarts import MOST_DELAY_S, QUICK_CRASHES, STABLE_S, GiveUp, Restart, RestartPolicy


def test_a_killed_process_is_back_at_once() -> None:
    assert RestartPolicy().on_exit(-9, ran_s=60) == Restart(0.1)


def test_quick_crashes_are_spaced_out_and_then_given_up() -> None:
    policy = RestartPolicy()
    decisions = [policy.on_exit(1, ran_s=0.5) for _ in range(QUICK_CRASHES)]
    assert [d.delay_s for d in decisions[:-1] if isinstance(d, Restart)] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert isinstance(decisions[-1], GiveUp)


def test_a_refused_command_line_is_given_up_at_once() -> None:
    assert isinstance(RestartPolicy().on_exit(2, ran_s=0.3), GiveUp)


@given(st.lists(st.floats(STABLE_S, 1e6), min_size=1, max_size=50))
def test_a_process_that_runs_for_a_while_is_never_given_up(runs: list[float]) -> None:
    policy = RestartPolicy()
    assert all(policy.on_exit(-9, ran_s) == Restart(0.1) for ran_s in runs)


@given(st.lists(st.tuples(st.sampled_from([1, 3, -9, -11, 0]), st.floats(0, 1e4)), max_size=60))
def test_delays_are_bounded_and_giving_up_needs_a_row_of_quick_crashes(ends: list[tuple[int, float]]) -> None:
    policy = RestartPolicy()
    in_a_row = 0
    for exit_code, ran_s in ends:
        in_a_row = 1 if ran_s >= STABLE_S else in_a_row + 1
        match policy.on_exit(exit_code, ran_s):
            case Restart(delay_s):
                assert 0 < delay_s <= MOST_DELAY_S
            case GiveUp():
                assert in_a_row >= QUICK_CRASHES
                return
