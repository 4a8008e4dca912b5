"""Tiers by folder, the real servers that tests share, and a check that a run leaves no process behind."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parent
TIERS = ("unit", "contract", "sim", "integration", "e2e", "cluster", "gpu")

# One thread for every library that would take all cores: several services share a machine in these tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Machines are shared: how long one example takes says nothing about the code.
hypothesis.settings.register_profile("shared-machine", deadline=None)
hypothesis.settings.load_profile("shared-machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test with its folder's tier, and skip the tiers that this machine cannot run, with the reason."""
    reasons = {"gpu": _no_gpu(), "cluster": _no_namespaces()}
    for item in items:
        tier = item.path.relative_to(TESTS).parts[0]
        if tier not in TIERS:
            raise pytest.UsageError(f"{item.path} is in no tier: put it under one of tests/{{{','.join(TIERS)}}}")
        item.add_marker(getattr(pytest.mark, tier))
        if reason := reasons.get(tier):
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str:
    if shutil.which("nvidia-smi") is None:
        return "no GPU: nvidia-smi is not here"
    return ""


def _no_namespaces() -> str:
    if shutil.which("ip") is None:
        return "no network namespaces: the ip command is not here"
    probe = subprocess.run(["unshare", "-n", "true"], capture_output=True, timeout=10, check=False)
    return "" if probe.returncode == 0 else f"no network namespaces: {probe.stderr.decode().strip()}"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real PostgreSQL server, as the URL of its default database. Use `database_url` for one of your own."""
    from headrace.cli.up.postgres import EmbeddedPostgres, remove_cluster

    folder = tmp_path_factory.mktemp("postgres")
    server = EmbeddedPostgres(folder / "data", folder / "postgres.log")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
        remove_cluster(folder / "data")


@pytest.fixture
def database_url(postgres_url: str) -> Iterator[str]:
    """An empty database for one test."""
    from testkit.databases import temporary_database

    with temporary_database(postgres_url) as url:
        yield url


@pytest.fixture
def make_database(postgres_url: str) -> Iterator[Callable[..., str]]:
    """A factory of databases for one test: `make_database(template=name)`."""
    from testkit.databases import temporary_database

    with ExitStack() as stack:
        yield lambda template=None: stack.enter_context(temporary_database(postgres_url, template))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis server. Tests that count what it holds use `clean_redis_url`."""
    from headrace.cli.up.redis import EmbeddedRedis

    folder = tmp_path_factory.mktemp("redis")
    server = EmbeddedRedis(folder, folder / "redis.log")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture
def clean_redis_url(redis_url: str) -> Iterator[str]:
    """The Redis server, emptied before and after."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
        yield redis_url
        client.flushall()


@pytest.fixture(scope="session", autouse=True)
def no_leftovers() -> Iterator[None]:
    """Fail the run if a test leaves a child process behind."""
    before = _children()
    yield
    deadline = time.monotonic() + 3
    while (left := _children() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left, "left running: " + "; ".join(f"{pid} {_command_line(pid)}" for pid in sorted(left))


def _children() -> set[int]:
    found: set[int] = set()
    for listing in Path("/proc/self/task").glob("*/children"):
        pids = (int(pid) for pid in listing.read_text().split())
        found |= {pid for pid in pids if not _is_helper(pid)}
    return found


def _is_helper(pid: int) -> bool:
    """Python's own resource tracker and fork server live as long as the interpreter."""
    command = _command_line(pid)
    return "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command or not command


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
