"""An environment that only takes time: latencies, lengths and failures are draws, and the draws are known beforehand.

It stands in for real environments wherever their timing matters and their content does not. An episode's script is a
pure function of its configuration, its seed and its place among the episodes of that seed (`script_of`), so what a run
should have taken at best can be computed without running it.

    observation   cccc#017        filler, then how many tokens the answer should have (the scripted engine obeys)
    answer        abcab…          any text; the reward is a function of it and the seed
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from env_svc.contract import make
from env_svc.faults import InfraFault
from env_svc.spec import PluginSpec
from headrace.core.seeds import derive, uniform

MARK = "#"
FILLER = "c"
MOST_TOKENS = 999
_MAX_REDRAWS = 1000

Draw = Mapping[str, Any]
"""``{kind: constant, value}``, ``{kind: gaussian, mean, sigma}`` or ``{kind: lognormal, median, sigma, most?}``."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer and what it takes: seconds of the environment's step, tokens of the answer before it."""

    step_s: float
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Script:
    """A whole episode. ``fails_at``: None, 0 for the reset, or the turn whose step fails (from 1)."""

    reset_s: float
    turns: tuple[Turn, ...]
    fails_at: int | None

    @property
    def environment_s(self) -> float:
        """Seconds of reset and steps when nothing fails."""
        return self.reset_s + sum(turn.step_s for turn in self.turns)


def draw(spec: Draw, seed: int) -> float:
    """A number that is never negative; a gaussian below 0 is drawn again.

    Raises:
        ValueError: the kind is unknown, or nothing but negative values come.
    """
    match spec.get("kind"):
        case "constant":
            return float(spec["value"])
        case "lognormal":
            value = float(spec["median"]) * math.exp(float(spec["sigma"]) * gauss(seed, 0))
            return min(value, float(spec.get("most", math.inf)))
        case "gaussian":
            for attempt in range(_MAX_REDRAWS):
                value = float(spec["mean"]) + float(spec["sigma"]) * gauss(seed, attempt)
                if value >= 0:
                    return value
            raise ValueError(f"{_MAX_REDRAWS} draws of {dict(spec)} were all negative; raise mean")
    raise ValueError(f"kind is {spec.get('kind')!r}; choose one of constant, gaussian, lognormal")


def gauss(seed: int, position: int) -> float:
    """The standard normal number of ``position`` under ``seed`` (Box and Muller)."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(seed, 2 * position)))
    return radius * math.cos(2.0 * math.pi * uniform(seed, 2 * position + 1))


@dataclass(frozen=True, slots=True)
class Timing:
    """Everything that decides an episode's script; times are in units of ``unit_s`` seconds."""

    unit_s: float
    latency: Draw
    reset: Draw
    turns: Draw
    tokens: Draw
    fail_reset: float = 0.0
    fail_step: float = 0.0


def script_of(timing: Timing, seed: int, place: int) -> Script:
    """The episode of ``seed`` that is the ``place``-th to start: siblings share the seed and differ by place."""
    n_turns = max(1, round(draw(timing.turns, derive("turns", seed, place))))
    turns = tuple(
        Turn(
            draw(timing.latency, derive("latency", seed, place, turn)) * timing.unit_s,
            min(MOST_TOKENS, max(1, round(draw(timing.tokens, derive("tokens", seed, place, turn))))),
        )
        for turn in range(n_turns)
    )
    reset_s = draw(timing.reset, derive("reset", seed, place)) * timing.unit_s
    return Script(reset_s, turns, _fails_at(timing, seed, place, n_turns))


def _fails_at(timing: Timing, seed: int, place: int, n_turns: int) -> int | None:
    fate = derive("fate", seed, place)
    if uniform(fate, 0) < timing.fail_reset:
        return 0
    return next((turn for turn in range(1, n_turns + 1) if uniform(fate, turn) < timing.fail_step), None)


def reward_of(seed: int, text: str, noise: float) -> float:
    """The share of ``a`` in the text, plus gaussian noise that belongs to (seed, text)."""
    share = text.count("a") / len(text) if text else 0.0
    return share + noise * gauss(derive("noise", seed, text), 0) if noise else share


_NOTHING: Draw = {"kind": "constant", "value": 0}
_ONE: Draw = {"kind": "constant", "value": 1}
_started: Counter[tuple[str, int]] = Counter()


class Synthetic:
    """Text environment with gymnasium's five-tuple contract that sleeps through its steps.

    Args:
        run: episodes of one seed are counted within a run; give each job its own, and its draws begin anew.
        unit_s: seconds of one unit of time.
        latency: units of one step.
        reset: units of a reset.
        turns: turns of an episode.
        tokens: tokens of each answer, written into the observation before it.
        observation_tokens: length of an observation.
        fail_reset: probability that a reset fails.
        fail_step: probability that a step fails.
        blame: ``env``: a failure is the environment's; ``infra``: it is that of the machinery under it.
        noise: standard deviation of the reward's noise.
        has_reward: False leaves the scoring to graders.
        grader_s: seconds of grading inside the last step, for a reward that is not scored elsewhere.
    """

    isolation = "inline"

    def __init__(
        self,
        *,
        run: str = "",
        unit_s: float = 0.05,
        latency: Draw = _ONE,
        reset: Draw = _NOTHING,
        turns: Draw = _ONE,
        tokens: Draw = _ONE,
        observation_tokens: int = 8,
        fail_reset: float = 0.0,
        fail_step: float = 0.0,
        blame: str = "env",
        noise: float = 0.0,
        has_reward: bool = True,
        grader_s: float = 0.0,
    ) -> None:
        if blame not in ("env", "infra"):
            raise ValueError(f"blame is {blame!r}; choose one of env, infra")
        self._timing = Timing(unit_s, latency, reset, turns, tokens, fail_reset, fail_step)
        self._run, self._blame = run, blame
        self._filler = FILLER * max(0, observation_tokens - 4)
        self._noise, self._has_reward, self._grader_s = noise, has_reward, grader_s
        self._seed = self._turn = 0
        self._texts: list[str] = []
        self._script = Script(0.0, (), None)

    async def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Begin the next episode of ``seed``.

        Raises:
            RuntimeError or InfraFault: this episode's reset is one that fails, after the time that it takes.
        """
        place = _started[self._run, seed]
        _started[self._run, seed] += 1
        self._seed, self._turn, self._texts = seed, 0, []
        self._script = script_of(self._timing, seed, place)
        await asyncio.sleep(self._script.reset_s)
        if self._script.fails_at == 0:
            raise self._failure("reset")
        return self._observation(), {"seed": seed, "place": place, "answer": str(seed)}

    async def step(self, text: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]:
        """Sleep through this turn; returns (observation, reward, terminated, False, info).

        Raises:
            RuntimeError or InfraFault: this turn is one that fails.
        """
        turn = self._script.turns[self._turn]
        self._turn += 1
        self._texts.append(text)
        is_over = self._turn == len(self._script.turns)
        await asyncio.sleep(turn.step_s + (self._grader_s if is_over else 0.0))
        if self._script.fails_at == self._turn:
            raise self._failure(f"step {self._turn}")
        reward = reward_of(self._seed, "".join(self._texts), self._noise) if is_over and self._has_reward else None
        return "" if is_over else self._observation(), reward, is_over, False, {"answer": str(self._seed)}

    def _observation(self) -> str:
        return f"{self._filler}{MARK}{self._script.turns[self._turn].n_tokens:03d}"

    def _failure(self, what: str) -> Exception:
        detail = f"{what} of seed {self._seed} fails in this script"
        if self._blame == "infra":
            return InfraFault("synthetic_failure", detail)
        return RuntimeError(detail)


class Delayed:
    """Another environment, made slow: every reset and step waits for a draw first.

    Args:
        inner: the environment, ``pkg.module:Class``; its methods have to be quick, for they run on the event loop.
        config: its keyword arguments.
        run, unit_s, latency, reset: as in `Synthetic`.
        split: passed on where the inner environment takes it.
    """

    isolation = "inline"

    def __init__(
        self,
        *,
        inner: str,
        config: Mapping[str, Any] | None = None,
        run: str = "",
        unit_s: float = 0.05,
        latency: Draw = _ONE,
        reset: Draw = _NOTHING,
        split: str = "train",
    ) -> None:
        self._inner = make(PluginSpec(inner, config or {}, split))
        self._run, self._unit_s, self._latency, self._reset = run, unit_s, latency, reset
        self._seed = self._place = self._turn = 0

    async def reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode of ``seed``."""
        self._seed, self._turn, self._place = seed, 0, _started[self._run, seed]
        _started[self._run, seed] += 1
        await asyncio.sleep(self._unit_s * draw(self._reset, derive("reset", seed, self._place)))
        observation, info = self._inner.reset(seed=seed)
        return observation, info

    async def step(self, text: str) -> Any:
        """Wait, then step the inner environment."""
        self._turn += 1
        await asyncio.sleep(self._unit_s * draw(self._latency, derive("latency", self._seed, self._place, self._turn)))
        return self._inner.step(text)

    def close(self) -> None:
        """Close the inner environment."""
        if hasattr(self._inner, "close"):
            self._inner.close()
