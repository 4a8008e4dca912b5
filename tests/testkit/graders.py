"""Graders for tests, named by import path."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any


def right(completion: str, answer: str) -> float:
    return float(completion == answer)


async def late(completion: str, *, seconds: float = 0.05) -> float:
    await asyncio.sleep(seconds)
    return 0.5


def slow(info: dict[str, Any]) -> float:
    """Sleeps as long as the document says."""
    time.sleep(info["sleep_s"])
    return info["score"]


def waits(info: dict[str, Any]) -> float:
    """Notes that it has begun, and ends when the file ``release`` is there."""
    with Path(info["begun"]).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    while not Path(info["release"]).exists():
        time.sleep(0.05)
    return 0.5


def tower() -> int:
    """A tower of powers: one instruction of the interpreter that never ends."""
    return 7 ** (7 ** (7 ** (7**7)))


def alarmed(completion: str) -> float:
    """Keeps a limit of its own by an alarm, which only a main thread may do."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(30)
    signal.alarm(0)
    return 1.0


def raises() -> float:
    raise ValueError("no number in \x00 it")


def abstains() -> None:
    return None


def parts() -> dict[str, Any]:
    return {"score": 0.75, "components": {"form": 1.0, "fact": 0.5, "note": "text", "bad": float("nan")}}


def returns(info: dict[str, Any]) -> Any:
    return {"nan": float("nan"), "inf": float("inf"), "text": "0.5", "list": [1], "huge": 10**400, "none": {}}[
        info["kind"]
    ]


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> float:
    """As verl calls it."""
    return float(solution_str == ground_truth and data_source == "echo" and extra_info is not None)


def needs(completion: str, colour: str) -> float:
    return 0.0


def everything(**given: Any) -> float:
    return float(len(given))


def positional(answer: str, completion: str, /, unknown: int = 3) -> float:
    return float(answer == "6" and completion == "6" and unknown == 3)


def secrets() -> dict[str, float]:
    """How many variables of this process look like ours."""
    return {"score": float(sum(name.startswith(("HEADRACE", "SECRET")) for name in os.environ))}


def prints() -> float:
    print("a grader that talks", flush=True)
    return 1.0


def dies() -> float:
    os._exit(3)


def greedy() -> float:
    """Wants more memory than it may have."""
    return float(len(bytearray(900 << 20)))


def process() -> float:
    return float(os.getpid())
