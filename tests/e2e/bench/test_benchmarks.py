"""Benchmarks run, small, and say what they measured in the one shape that machines read; no time is judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = ("r2_interaction", "rewards", "repack", "faults")


def run(repository: Path, name: str, *words: str, timeout_s: float = 240) -> dict[str, Any]:
    """The document of a quick run."""
    # The repository the tests run in is the one that is measured.
    env = {**os.environ, "PYTHONPATH": str(repository)}
    argv = [sys.executable, str(repository / "benchmarks" / f"{name}.py"), "--quick", "--json", *words]
    done = subprocess.run(argv, cwd=repository, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    assert {"name", "claim", "ratio", "against", "rows", "command", "hardware"} <= set(document)
    assert document["name"] == name
    assert document["rows"]
    return document  # type: ignore[no-any-return]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_measures_something(name: str, repository: Path) -> None:
    document = run(repository, name)
    assert document["ratio"] > 0
    if name == "faults":
        assert document["ratio"] == 1
