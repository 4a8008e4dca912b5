"""No workers without work, some with work, none again after a rest."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.up.reward_pool import IDLE_S, PATIENCE_S, TASKS_PER_WORKER, RewardScaler


def test_the_pool_starts_from_zero() -> None:
    assert RewardScaler(most=2).on_depth(0, now_s=0) == 0


def test_it_grows_with_the_queue_up_to_its_limit() -> None:
    scaler = RewardScaler(most=3)
    assert scaler.on_depth(1, 0) == 1
    assert scaler.on_depth(TASKS_PER_WORKER + 1, 1) == 2
    assert scaler.on_depth(100 * TASKS_PER_WORKER, 2) == 3


def test_it_grows_when_a_short_queue_stays() -> None:
    """Slow graders: a worker that starts late counts, so one more at a time."""
    scaler = RewardScaler(most=3)
    looks = [scaler.on_depth(4, now_s) for now_s in (0, 0.5, PATIENCE_S, PATIENCE_S + 0.5, 2 * PATIENCE_S, 9, 12)]
    assert looks == [1, 1, 2, 2, 3, 3, 3]


def test_a_queue_that_empties_now_and_then_keeps_its_workers() -> None:
    scaler = RewardScaler(most=3)
    assert [scaler.on_depth(depth, now_s) for now_s, depth in enumerate((3, 0, 3, 0, 3, 0))] == [1] * 6


def test_it_does_not_flap_between_steps() -> None:
    scaler = RewardScaler(most=2)
    scaler.on_depth(5, 0)
    assert [scaler.on_depth(0, now_s) for now_s in (1, 10, IDLE_S - 0.1)] == [1, 1, 1]
    scaler.on_depth(3, IDLE_S - 0.05)
    assert scaler.on_depth(0, IDLE_S + 1) == 1, "the rest starts anew with each piece of work"


def test_it_goes_back_to_zero_after_the_rest() -> None:
    scaler = RewardScaler(most=2)
    scaler.on_depth(5, 0)
    assert scaler.on_depth(0, IDLE_S) == 0


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 500), st.floats(0, 100)), max_size=50))
def test_it_stays_within_bounds_and_serves_whenever_there_is_work(most: int, looks: list[tuple[int, float]]) -> None:
    scaler = RewardScaler(most)
    now_s = 0.0
    for depth, pause_s in looks:
        now_s += pause_s
        wanted = scaler.on_depth(depth, now_s)
        assert 0 <= wanted <= most
        assert wanted >= 1 or depth == 0
