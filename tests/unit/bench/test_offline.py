"""What a batch should take at best, from the draws alone."""

import pytest

from benchmarks import offline
from env_svc.environments.synthetic import Script, Timing, Turn

CONSTANT = {"kind": "constant", "value": 1}


def script(reset_s: float, *steps: float) -> Script:
    return Script(reset_s, tuple(Turn(step_s, 1) for step_s in steps), None)


def test_lockstep_pays_the_slowest_of_every_turn_and_trajectories_the_slowest_episode() -> None:
    batch = [script(0.5, 1.0, 4.0), script(1.0, 3.0, 1.0)]
    assert offline.lockstep_s(batch) == pytest.approx(1.0 + 3.0 + 4.0)
    assert offline.trajectory_s(batch) == pytest.approx(5.5)
    assert offline.mean_step_s(batch) == pytest.approx(9.0 / 4)


def test_an_episode_that_is_over_holds_nobody_up() -> None:
    assert offline.lockstep_s([script(0.0, 2.0), script(0.0, 1.0, 5.0)]) == pytest.approx(7.0)


def test_lockstep_is_never_faster() -> None:
    timing = Timing(
        1.0, {"kind": "gaussian", "mean": 10, "sigma": 10}, CONSTANT, {"kind": "constant", "value": 6}, CONSTANT
    )
    for first in range(0, 40, 4):
        batch = offline.scripts(timing, job_seed=1, task="t", groups=range(first, first + 4), group_size=4)
        assert len(batch) == 16
        assert offline.lockstep_s(batch) >= offline.trajectory_s(batch)


def test_siblings_share_a_seed_and_differ() -> None:
    timing = Timing(1.0, {"kind": "gaussian", "mean": 10, "sigma": 1}, CONSTANT, CONSTANT, CONSTANT)
    batch = offline.scripts(timing, job_seed=1, task="t", groups=range(1), group_size=8)
    assert len({one.turns[0].step_s for one in batch}) == 8
    assert batch == offline.scripts(timing, job_seed=1, task="t", groups=range(1), group_size=8)
    assert batch != offline.scripts(timing, job_seed=2, task="t", groups=range(1), group_size=8)
