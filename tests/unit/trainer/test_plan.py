"""What a job's algorithm block becomes in the trainer."""

from pathlib import Path

import pytest
from testkit.specs import make_spec

from trainer_svc.plan import TrainingPlan, read_plan


def plan(**algorithm: object) -> TrainingPlan:
    return read_plan(make_spec(algorithm=algorithm).canonical_json(), "job_1", Path("/data"))


@pytest.mark.parametrize(
    ("normalize", "expected"), [("std", (1.5, -0.5, -0.5, -0.5)), ("none", (0.75, -0.25, -0.25, -0.25))]
)
def test_advantages_are_by_the_sample_deviation_or_by_none(normalize: str, expected: tuple[float, ...]) -> None:
    """1.7320508 would be the population's; the page of the job spec says n - 1."""
    assert plan(advantage={"normalize": normalize}).estimate([1, 0, 0, 0]).values == pytest.approx(expected, abs=1e-5)


def test_the_default_divides_by_the_sample_deviation() -> None:
    assert plan().estimate([1, 0, 0, 0]).values[0] == pytest.approx(1.5, abs=1e-5)


def test_a_penalty_has_an_estimator_and_without_a_coefficient_there_is_none() -> None:
    step = plan(kl={"coef": 0.1}).step
    assert (step.kl_coefficient, step.kl_estimator) == (0.1, "k3")
    assert plan(kl={"coef": 0.1, "estimator": "k2"}).step.kl_estimator == "k2"
    assert plan().step.kl_coefficient == 0


def test_the_divisor_of_dr_grpo_is_the_longest_that_a_trajectory_may_be() -> None:
    step = plan(loss_reduction="seq-mean-token-sum-norm").step
    assert (step.loss_reduction, step.max_tokens) == ("seq-mean-token-sum-norm", 256)
