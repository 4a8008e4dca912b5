"""The documents that must be true: every package is on the map, every example and decision is in order."""

import re
from pathlib import Path

import pytest

from headrace.client.jobspec import load


def test_architecture_names_every_top_level_package(repository: Path) -> None:
    text = (repository / "ARCHITECTURE.md").read_text()
    packages = sorted(path.parent.name for path in repository.glob("*/__init__.py"))
    folders = [name for name in ("proto", "tests", "benchmarks", "examples", "deploy", "docs") if name not in packages]
    assert [name for name in (*packages, *folders) if f"`{name}`" not in text] == []
    assert len(text.splitlines()) <= 200


def test_every_file_that_a_document_names_is_there(repository: Path) -> None:
    for page in (repository / "ARCHITECTURE.md", repository / "README.md"):
        named = re.findall(
            r"`((?:headrace|docs|tests|trainer_svc|inference_svc|examples|control_plane)/[\w./-]+)`", page.read_text()
        )
        assert [name for name in named if not (repository / name).exists()] == [], page.name


def test_every_example_is_a_valid_job(repository: Path) -> None:
    examples = sorted((repository / "examples").glob("*.yaml"))
    assert examples
    for path in examples:
        assert load(path).resolve().tasks, path.name


@pytest.mark.parametrize("heading", ["## Context", "## Decision", "## Consequences"])
def test_every_decision_has_its_parts(repository: Path, heading: str) -> None:
    decisions = sorted((repository / "docs" / "adr").glob("*.md"))
    assert [path.name for path in decisions if heading not in path.read_text()] == []
