"""Environments for whole jobs: quick to learn, or slow enough to be killed in the middle."""

import asyncio
import random
from typing import Any

MOVES = ("Left", "Down", "Right", "Up")


class SayMove:
    """One turn: reward 1 for any of four words, which an untrained model says one time in seven."""

    isolation = "inline"

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return MOVES[seed % 4], {}

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(text in MOVES), True, False, {}


class Stroll:
    """`n_turns` turns of about `turn_s` each; a random half of the episodes pays."""

    isolation = "inline"

    def __init__(self, *, n_turns: int = 3, turn_s: float = 0.05, reward: bool = True) -> None:
        self._n_turns, self._turn_s, self._has_reward = n_turns, turn_s, reward
        self._turn = 0
        self._dice = random.Random()

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self._dice.seed(seed)
        await asyncio.sleep(self._turn_s * self._dice.random())
        return str(seed % 10), {"answer": "1"}

    async def step(self, text: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]:
        self._turn += 1
        await asyncio.sleep(self._turn_s * (0.5 + self._dice.random()))
        is_over = self._turn >= self._n_turns
        reward = float(len(text) % 2) if is_over and self._has_reward else None
        return str(self._turn), reward, is_over, False, {}


class Broken(SayMove):
    """Answers a probe, whose seeds are small, and raises at every reset of a job."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        if seed > 1 << 20:
            raise RuntimeError(f"no image for seed {seed}")
        return super().reset(seed)


class Verbose(SayMove):
    """Observations that hold 5 MB, NUL, a lone surrogate and text from right to left."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return "9" * 5_000_000 if seed % 2 else "1\x002\ud800 \u202eabc \U0001f6d2", {}


def coin(completion: str) -> float:
    """A grader that half of all texts please."""
    return float(len(completion) % 2)


def raising(completion: str) -> float:
    raise ValueError(f"cannot grade {completion!r}")
