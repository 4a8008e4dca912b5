"""Every benchmark runs, small, and says what it measured in the one shape that machines read."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = ("r2_interaction", "presets", "redundancy", "rewards", "repack", "faults")


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
    if name == "r2_interaction":
        assert document["ratio"] > 1  # the draws alone give 1.3


@pytest.mark.timeout(300)
def test_alpha_on_a_model_that_learns(repository: Path, tmp_path: Path) -> None:
    from testkit.tiny_models import save_tiny_model

    document = run(repository, "r4_alpha", "--model", str(save_tiny_model(tmp_path / "model")))
    assert [row["alpha"] for row in document["rows"]] == [0, 1]
    assert document["rows"][0]["s_train"] == "0:100%"
