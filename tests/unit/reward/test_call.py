"""Graders: arguments by name, answers checked, failures named."""

import pytest
from testkit import graders

from reward_svc.call import GraderFault, Score, grade, load

DOCUMENT = {
    "completion": "6",
    "completions": ["5?", "6"],
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "is it 5?"},
        {"role": "assistant", "content": "6"},
    ],
    "answer": "6",
    "info": {"k": 1},
    "task": "echo",
    "env_reward": None,
    "finish_reason": "completed",
    "is_truncated": False,
}


@pytest.mark.parametrize(
    ("grader", "score"),
    [
        (graders.right, Score(1.0)),
        (graders.late, Score(0.5)),
        (graders.abstains, Score(None)),
        (graders.parts, Score(0.75, {"form": 1.0, "fact": 0.5})),
        (graders.compute_score, Score(1.0)),
        (graders.positional, Score(1.0)),
        (lambda prompt: prompt == "s\nis it 5?", Score(1.0)),
        (lambda trajectory: len(trajectory["messages"]), Score(3.0)),
        (lambda env_reward, is_truncated: None if env_reward is None else 1, Score(None)),
        (lambda: True, Score(1.0)),
        (lambda: {"score": 1, "bonus": 0.5}, Score(1.0, {"bonus": 0.5})),
    ],
)
def test_scores(grader, score):
    assert grade(grader, DOCUMENT) == score


def test_keyword_catch_all_gets_every_name():
    assert grade(graders.everything, DOCUMENT).value == 15.0


def test_only_the_models_own_text_is_graded():  # GR-12
    document = DOCUMENT | {"answer": "5"}
    assert grade(graders.right, document) == Score(0.0)


@pytest.mark.parametrize(
    ("grader", "code", "words", "is_retryable"),
    [
        (graders.raises, "grader_error", "ValueError: no number", True),
        (graders.needs, "grader_signature", "'colour'", False),
        (lambda: float("nan"), "not_finite", "nan", False),
        (lambda: float("-inf"), "not_finite", "-inf", False),
        (lambda: {"score": float("inf")}, "not_finite", "inf", False),
        (lambda: "0.5", "bad_return", "text '0.5'", False),
        (lambda: [0.5], "bad_return", "list", False),
        (lambda: 10**400, "bad_return", "int", False),
        (lambda: {"reward": 1}, "bad_return", "'score'", False),
        (lambda: {"score": 1, "components": [1]}, "bad_return", "components", False),
    ],
)
def test_failures_are_named_and_never_a_score(grader, code, words, is_retryable):
    with pytest.raises(GraderFault, match=words) as caught:
        grade(grader, DOCUMENT)
    assert (caught.value.code, caught.value.retryable) == (code, is_retryable)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        ("no.such:f", "No module named"),
        ("json:nothing", "nothing"),
        ("json", "pkg.module"),
        ("json:__name__", "callable"),
    ],
)
def test_graders_that_cannot_be_loaded(fn, words):
    with pytest.raises(GraderFault, match=words):
        load(fn)


def test_load_finds_nested_names():
    assert load("testkit.graders:right") is graders.right
    assert load("json:JSONEncoder.encode")


def test_shipped_calculator_grader_runs_by_name():
    grader = load("reward_svc.graders.calculator:grade")
    assert grade(grader, DOCUMENT | {"completion": "answer +006", "answer": "6"}).value == 1.0
