"""The calculator's grader."""

import pytest

from reward_svc.graders.calculator import grade


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("answer+046", "+046", 1.0),
        ("answer +046", "+046", 1.0),
        ("answer 46", "+046", 1.0),
        ("calc 12+34\nanswer -010", "-010", 1.0),
        ("answer +047", "+046", 0.0),
        ("answer +046 or so", "+046", 0.0),
        ("+046", "+046", 0.0),
        ("calc 12+34", "+046", 0.0),
        ("", "+046", 0.0),
    ],
)
def test_only_a_right_final_answer_counts(completion: str, answer: str, reward: float) -> None:
    assert grade(completion=completion, answer=answer) == reward


def test_a_right_answer_that_is_not_a_number_is_an_error_of_the_task() -> None:
    with pytest.raises(ValueError, match="forty"):
        grade(completion="answer 46", answer="forty-six")
