"""Environments for tests, named by import path: well-behaved ones and ones that break in one way each."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any


class Echo:
    """Says back what it hears; after ``n_turns`` the episode ends with a reward of 1."""

    isolation = "inline"

    def __init__(self, *, n_turns: int = 3, first: str = "hello", reward: float | None = 1.0, log: str = "") -> None:
        self.n_turns, self.first, self.reward, self.log = n_turns, first, reward, log
        self.turn = 0
        self._note("made")

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return self.first, {"answer": "42", "seed": seed}

    def step(self, text: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]:
        self.turn += 1
        is_done = self.turn >= self.n_turns
        return f"heard {text}", self.reward if is_done else None, is_done, False, {"turn": self.turn}

    def close(self) -> None:
        self._note("closed")

    def _note(self, word: str) -> None:
        if self.log:
            with Path(self.log).open("a") as stream:
                stream.write(f"{word} {os.getpid()}\n")


class InProcess(Echo):
    """Echo in a process of its own."""

    isolation = "process"


class AsyncEcho:
    """Coroutine methods; declares nothing."""

    async def reset(self, seed: int) -> tuple[list[dict[str, str]], dict[str, Any]]:
        await asyncio.sleep(0)
        return [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], {}

    async def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        await asyncio.sleep(0)
        return "bye", 0.5, True, False, {}


class Hanging(Echo):
    """Never comes back from step ``at``: sleeping, spinning in Python, or awaiting."""

    def __init__(self, *, at: int = 1, how: str = "sleep", **more: Any) -> None:
        super().__init__(**more)
        self.at, self.how = at, how

    def step(self, text: str) -> Any:
        if self.turn + 1 < self.at:
            return super().step(text)
        if self.how == "await":
            return asyncio.sleep(3600)
        if self.how == "spin":
            while True:
                pass
        return time.sleep(3600)


class Failing(Echo):
    """Raises in ``where`` (init, reset, step, close); with ``flag``, only until that file exists."""

    def __init__(self, *, where: str, flag: str = "", **more: Any) -> None:
        self.where, self.flag = where, flag
        self._maybe("init")
        super().__init__(**more)

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self._maybe("reset")
        return super().reset(seed)

    def step(self, text: str) -> Any:
        self._maybe("step")
        return super().step(text)

    def close(self) -> None:
        super().close()
        self._maybe("close")

    def _maybe(self, where: str) -> None:
        if where != self.where or (self.flag and Path(self.flag).exists()):
            return
        if self.flag:
            Path(self.flag).touch()
        raise RuntimeError(f"broken {where}")


class Returning(Echo):
    """Step returns whatever ``kind`` names."""

    def __init__(self, *, kind: str, **more: Any) -> None:
        super().__init__(**more)
        self.kind = kind

    def step(self, text: str) -> Any:
        good = super().step(text)
        return {
            "three": good[:3],
            "number": (5, *good[1:]),
            "nan": (good[0], float("nan"), *good[2:]),
            "text_reward": (good[0], "much", *good[2:]),
            "info": (*good[:4], None),
        }[self.kind]


class Dying(Echo):
    """Its process ends in the step."""

    isolation = "process"

    def step(self, text: str) -> Any:
        os._exit(7)


class Secretive(Echo):
    """Tells which variables it can see."""

    isolation = "process"

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return ",".join(sorted(os.environ)), {}


class JsonTools:
    """Tool calls as JSON, ``{"name": "add", "arguments": {"a": 3, "b": 4}}``; what does not parse is told, not run."""

    isolation = "inline"
    version = "2024.1"

    def __init__(self) -> None:
        self.calls: list[dict[str, int]] = []

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        return "3+4?", {}

    def step(self, text: str) -> tuple[list[dict[str, str]], float, bool, bool, dict[str, Any]]:
        try:
            arguments = json.loads(text)["arguments"]
            total = arguments["a"] + arguments["b"]
        except (ValueError, TypeError, KeyError) as error:
            return self._answer(f"the tool call is not valid JSON: {error}"), 0.0, False, False, {"is_valid": False}
        self.calls.append(arguments)
        return self._answer(str(total)), 1.0, True, False, {"is_valid": True, "calls": self.calls}

    def _answer(self, text: str) -> list[dict[str, str]]:
        return [{"role": "tool", "content": text}]


class Tools:
    """Two tool results at once after the first answer."""

    isolation = "inline"

    def reset(self, seed: int) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [{"role": "user", "content": "go"}], {}

    def step(self, text: str) -> tuple[list[dict[str, str]], None, bool, bool, dict[str, Any]]:
        results = [{"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}]
        return results, None, False, False, {}
