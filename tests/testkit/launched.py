"""`headrace up` from the outside: its commands, its state file, its processes."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.cli.up import state
from headrace.cli.up.layout import DataDir

HEADRACE = Path(sys.executable).with_name("headrace")
READY = ["--ready-timeout-s", "150"]


def run(*arguments: str, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HEADRACE, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)


def until(condition: Callable[[], object], what: str, deadline_s: float = 60.0) -> float:
    """Seconds until it held."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < deadline_s, f"not within {deadline_s} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


class Running:
    """What runs in one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def state(self) -> dict[str, Any]:
        found = state.read(DataDir(self.folder))
        assert found is not None, "up.json is there while it runs"
        return found

    def pid(self, name: str) -> int | None:
        pid: int | None = self.state["services"][name]["pid"]
        return pid

    def pids(self) -> list[int]:
        return [service["pid"] for service in self.state["services"].values() if service["pid"]]

    def live(self) -> dict[str, int]:
        done = run("workers", "--data-dir", str(self.folder), "--json")
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        return {row["name"]: row["pid"] for row in rows if row["state"] == "live"}
