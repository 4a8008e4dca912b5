"""A migrated template database for the control plane's tests, and a served control plane over a copy of it."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from testkit.control import Served, served_control_plane
from testkit.databases import database_name, temporary_database

from control_plane.db.migrate import migrate


@pytest.fixture(scope="session")
def control_template(postgres_url: str) -> Iterator[str]:
    """Name of a migrated database that others are copied from."""
    with temporary_database(postgres_url) as url:
        migrate(url)
        yield database_name(url)


@pytest.fixture
def control_database_url(make_database: Callable[..., str], control_template: str) -> str:
    """A migrated database of one's own."""
    return make_database(control_template)


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
