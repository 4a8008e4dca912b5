"""The calculator task: questions per seed and split, tool calls, answers, and no reward of its own."""

import re

import pytest

from env_svc.environments.calculator import Calculator, fixed_width, question_split


def right_answers(question: str) -> tuple[str, str, str]:
    first, one, second, two, third = re.fullmatch(r"(\d\d)([+-])(\d\d)([+-])(\d\d)", question).groups()  # type: ignore[union-attr]
    middle = int(first) + int(one + second)
    return (
        f"calc {first}{one}{second}",
        f"calc {fixed_width(middle)}{two}{third}",
        fixed_width(middle + int(two + third)),
    )


@pytest.mark.parametrize("seed", range(50))
def test_two_calls_and_the_answer(seed: int) -> None:
    calculator = Calculator()
    question, info = calculator.reset(seed=seed)
    call, second, answer = right_answers(question)
    assert info["answer"] == answer
    observation, reward, *ends, _ = calculator.step(call)
    assert re.fullmatch(r"[+-]\d{3}", observation)
    assert (reward, ends) == (None, [False, False])
    assert calculator.step(second)[0] == answer
    _, reward, is_terminated, is_truncated, info = calculator.step(f"answer {answer}")
    assert (reward, is_terminated, is_truncated) == (None, True, False)
    assert (info["response"], info["answer"], info["n_calls"]) == (answer, answer, 2)


def test_words_and_numbers_may_stand_together() -> None:
    calculator = Calculator()
    calculator.reset(seed=1)
    assert calculator.step("calc12+34")[0] == "+046"
    assert calculator.step("calc-010-99")[0] == "-109"


@pytest.mark.parametrize(
    "text", ["", "calc", "calc 1+", "1+2", "calc 1*2", "answer", "calc __import__('os')", "calc ١+٢"]
)
def test_what_is_neither_call_nor_answer_is_invalid(text: str) -> None:
    calculator = Calculator(on_invalid="continue")
    calculator.reset(seed=1)
    observation, reward, is_terminated, _, info = calculator.step(text)
    assert (observation, reward, is_terminated, info["is_valid"]) == ("error", None, False, False)
    strict = Calculator()
    strict.reset(seed=1)
    assert strict.step(text)[2] is True


def test_an_episode_without_an_answer_is_truncated_and_has_no_response() -> None:
    calculator = Calculator(max_turns=2)
    calculator.reset(seed=1)
    calculator.step("calc 1+1")
    _, reward, is_terminated, is_truncated, info = calculator.step("calc 1+1")
    assert (reward, is_terminated, is_truncated) == (None, False, True)
    assert "response" not in info


def test_splits_share_no_question_and_seeds_repeat() -> None:
    drawn = {
        split: [Calculator(split=split).reset(seed=seed)[0] for seed in range(300)] for split in ("train", "heldout")
    }
    assert not set(drawn["train"]) & set(drawn["heldout"])
    assert all(question_split(question) == split for split, questions in drawn.items() for question in questions)
    assert drawn["train"] == [Calculator().reset(seed=seed)[0] for seed in range(300)]


@pytest.mark.parametrize(("value", "text"), [(46, "+046"), (-10, "-010"), (297, "+297"), (0, "+000")])
def test_results_have_a_fixed_width(value: int, text: str) -> None:
    assert fixed_width(value) == text
