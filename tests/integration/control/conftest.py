"""A migrated template database for the control plane's tests, and a served control plane over a copy of it."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from testkit.control_plane import Served, served_control_plane
from testkit.databases import temporary_database
from testkit.rows import empty_all

from control_plane.db.migrate import migrate


@pytest.fixture(scope="session")
def migrated_url(postgres_url: str) -> Iterator[str]:
    """A migrated database for the tests of this folder, one after another."""
    with temporary_database(postgres_url) as url:
        migrate(url)
        yield url


@pytest.fixture
def control_database_url(migrated_url: str) -> Iterator[str]:
    """The migrated database; emptied after the test."""
    yield migrated_url
    empty_all(migrated_url)


@pytest.fixture(scope="session", autouse=True)
def plain_logs() -> None:
    """Tracebacks as text: structlog's own default draws every local variable, which takes seconds."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )


@pytest.fixture
async def served(control_database_url: str) -> AsyncIterator[Served]:
    """A control plane without job runners."""
    async with served_control_plane(control_database_url) as control_plane:
        yield control_plane


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    """A directory that looks like a model as far as submission can see."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return str(folder)


@pytest.fixture
def job_document(model_path: str) -> Callable[..., dict[str, Any]]:
    """A factory of job specs as plain data; keyword arguments replace whole blocks."""

    def make(**blocks: Any) -> dict[str, Any]:
        return {
            "schema": "headrace/v1",
            "name": "two tasks",
            "max_steps": 3,
            "model": {"path": model_path},
            "tasks": [
                {
                    "name": "calculator",
                    "env": {"entry_point": "env_svc.environments.calculator:Calculator"},
                    "rewards": [{"fn": "reward_svc.graders.calculator:grade", "name": "exact"}],
                }
            ],
            **blocks,
        }

    return make
