"""Light packages are light, arrows point down, and generated code is what proto/ says."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "numpy", "ucxx")


def loaded_by(statement: str, repository: Path) -> set[str]:
    """Top-level modules that a fresh interpreter holds after `statement`."""
    program = f"{statement}\nimport sys\nprint(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, timeout=60, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement",
    [
        "import headrace.service.app, headrace.service.streams",
        "import headrace.cli.main; headrace.cli.main.LazyGroup('x').get_command(None, 'submit')",
        "import headrace.client.rest, headrace.client.jobspec",
        "import headrace.cli.up.launcher",
        "import control_plane.app",
        "import env_svc.service",
        "import reward_svc.tasks",
    ],
)
def test_light_packages_load_nothing_heavy(statement: str, repository: Path) -> None:
    heavy = set(HEAVY) - ({"numpy"} if "env_svc" in statement else set())
    assert not heavy & loaded_by(statement, repository)


def test_the_core_loads_neither_clock_nor_chance_nor_io(repository: Path) -> None:
    modules = sorted((repository / "headrace" / "core").rglob("*.py"))
    names = [".".join(path.relative_to(repository).with_suffix("").parts).removesuffix(".__init__") for path in modules]
    bare = loaded_by("import dataclasses, enum, typing, collections.abc, functools, hashlib, json", repository)
    found = loaded_by("\n".join(f"import {name}" for name in names), repository) - bare
    assert not found & {"asyncio", "random", "logging", "socket", "threading", "numpy", "torch", "grpc", "sqlalchemy"}


def test_help_needs_nothing_but_click(repository: Path) -> None:
    loaded = loaded_by("import headrace.cli.main", repository)
    assert not loaded & {"httpx", "rich", "pydantic", "grpc", "yaml", "psycopg", "redis"}


def test_arrows_between_packages(repository: Path) -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint_imports, "--no-logo"], cwd=repository, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_generated_code_is_current(repository: Path, tmp_path: Path) -> None:
    sources = [str(path.relative_to(repository / "proto")) for path in (repository / "proto").rglob("*.proto")]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, *sources],
        cwd=repository,
        check=True,
        timeout=60,
    )
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    assert fresh, "nothing was generated"
    stale = [str(path) for path, text in fresh.items() if (repository / path).read_text() != text]
    assert not stale, f"run make proto: {stale}"
    kept = {path.relative_to(repository) for path in (repository / "headrace" / "wire").rglob("*_pb2*.py*")}
    orphans = {path for path in kept if "__pycache__" not in path.parts} - set(fresh)
    assert not orphans, f"no proto/ source generates these: {orphans}"
