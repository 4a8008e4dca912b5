"""A sum of three numbers, too hard to do in one go, and a tool that does two at a time.

    observation   12+34-56
    answer        calc 12+34
    observation   +046
    answer        calc +046-56
    observation   -010
    answer        answer -010

Numbers that the tool returns have a fixed width of four characters (sign and three digits), which is what makes them
copyable for a very small model. The environment scores nothing: its ``info`` carries what a grader needs.
"""

import re
from hashlib import blake2b
from random import Random
from typing import Any, Literal

_CALL = re.compile(r"\s*calc\s*([+-]?\d{1,6})\s*([+-])\s*(\d{1,6})\s*", re.ASCII)
_ANSWER = re.compile(r"\s*answer\s*([+-]?\d{1,9})\s*", re.ASCII)
_HELD_OUT_ONE_IN = 5


def question_split(question: str) -> Literal["train", "heldout"]:
    """The split that a question belongs to: one in five is held out, by a hash of its text."""
    digest = blake2b(question.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0 else "train"


def fixed_width(value: int) -> str:
    """``value`` as the tool writes it: a sign and at least three digits, ``+046``."""
    return f"{value:+04d}"


class Calculator:
    """Text environment with gymnasium's five-tuple contract; its reward is always None.

    Args:
        split: which questions ``reset`` draws, ``train`` or ``heldout``.
        max_turns: turns until the episode is truncated; an answer that parses as neither form counts.
        on_invalid: ``continue`` answers ``error`` and goes on; ``end`` terminates the episode.
        instructions: text put before the question (a general language model needs the rules).
    """

    isolation = "inline"
    """Steps take microseconds and cannot hang, so they run on the event loop."""

    version = "1"

    def __init__(
        self,
        *,
        split: Literal["train", "heldout"] = "train",
        max_turns: int = 4,
        on_invalid: Literal["continue", "end"] = "end",
        instructions: str = "",
    ) -> None:
        if split not in ("train", "heldout"):
            raise ValueError(f"split is {split!r}; choose one of train, heldout")
        if on_invalid not in ("continue", "end"):
            raise ValueError(f"on_invalid is {on_invalid!r}; choose one of continue, end")
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; it must be at least 1")
        self._split, self._max_turns = split, max_turns
        self._on_invalid, self._instructions = on_invalid, instructions
        self._question, self._answer = "", ""
        self._n_turns = self._n_calls = 0
        self._is_over = True

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start the episode that belongs to ``seed``: the same seed gives the same question."""
        random = Random(seed)
        self._question, result = _draw_question(random)
        while question_split(self._question) != self._split:
            self._question, result = _draw_question(random)
        self._answer = fixed_width(result)
        self._n_turns = self._n_calls = 0
        self._is_over = False
        text = f"{self._instructions}\n{self._question}" if self._instructions else self._question
        return text, {"question": self._question, "answer": self._answer, "split": self._split}

    def step(self, text: str) -> tuple[str, None, bool, bool, dict[str, Any]]:
        """Run one tool call or take the final answer; returns (observation, None, terminated, truncated, info).

        ``info`` has ``question``, ``answer`` (the right one) and, once given, ``response`` (the model's number).

        Raises:
            RuntimeError: the episode has not begun or is over.
        """
        if self._is_over:
            raise RuntimeError("step on an episode that is over or has not begun; call reset first")
        self._n_turns += 1
        info: dict[str, Any] = {"question": self._question, "answer": self._answer, "is_valid": True}
        observation, is_terminated = "", False
        if call := _CALL.fullmatch(text):
            self._n_calls += 1
            observation = fixed_width(_apply(int(call[1]), call[2], int(call[3])))
        elif final := _ANSWER.fullmatch(text):
            info["response"], is_terminated = final[1], True
        else:
            info["is_valid"], observation = False, "error"
            is_terminated = self._on_invalid == "end"
        is_truncated = not is_terminated and self._n_turns >= self._max_turns
        self._is_over = is_terminated or is_truncated
        info |= {"n_turns": self._n_turns, "n_calls": self._n_calls}
        return observation, None, is_terminated, is_truncated, info

    def close(self) -> None:
        """Nothing is held; the episode ends."""
        self._is_over = True


def _draw_question(random: Random) -> tuple[str, int]:
    first, second, third = (random.randint(10, 99) for _ in range(3))
    one, two = random.choice("+-"), random.choice("+-")
    return f"{first}{one}{second}{two}{third}", _apply(_apply(first, one, second), two, third)


def _apply(left: int, operator: str, right: int) -> int:
    return left + right if operator == "+" else left - right
