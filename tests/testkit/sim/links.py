"""Virtual time, and streams between a runner and the other processes: in order, with latency, cut at any moment."""

import heapq
import random
from collections.abc import Callable
from typing import Any


class Clock:
    """A heap of calls. What is called may return a coroutine; `World.run` awaits it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._sequence = 0

    def at(self, time: float, call: Callable[..., Any], *args: Any) -> None:
        self._sequence += 1
        heapq.heappush(self.calls, (time, self._sequence, call, args))

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def pop(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        self.now, _, call, args = heapq.heappop(self.calls)
        return call, args


class Link:
    """One stream, both ways. Once cut, what is on its way in either direction is gone.

    `epoch` is that of the runner at its end: a peer listens only to the newest one that it has heard of.
    """

    LATENCY_S = 0.02

    def __init__(self, clock: Clock, rng: random.Random, runner: Any, peer: Any) -> None:
        self.runner, self.peer = runner, peer
        self.epoch: int = runner.epoch
        self.is_cut = False
        self._clock = clock
        self._random = rng.random
        self._down = self._up = 0.0

    def send(self, call: Callable[..., Any], *args: Any) -> None:
        """To the peer."""
        self._down = max(self._down, self._clock.now + self._random() * self.LATENCY_S)
        self._clock.at(self._down, self._deliver, call, args)

    def answer(self, call: Callable[..., Any], *args: Any) -> None:
        """To the runner."""
        self._up = max(self._up, self._clock.now + self._random() * self.LATENCY_S)
        self._clock.at(self._up, self._deliver, call, args)

    def _deliver(self, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        return None if self.is_cut else call(*args)
