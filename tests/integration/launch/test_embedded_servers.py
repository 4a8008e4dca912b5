"""The servers that `headrace up` brings along: real ones, and gone without a trace afterwards."""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
import redis
from testkit.databases import database_name

from headrace.cli.up import postgres
from headrace.cli.up.postgres import EmbeddedPostgres
from headrace.cli.up.process import is_alive

OWNER = """
import sys, time
from pathlib import Path
from headrace.cli.up import postgres
from headrace.cli.up.postgres import EmbeddedPostgres
from headrace.cli.up.redis import EmbeddedRedis
folder = Path(sys.argv[1])
postgres = EmbeddedPostgres(folder / "pg", folder / "pg.log")
redis = EmbeddedRedis(folder / "redis", folder / "redis.log")
print(postgres.start().pid, redis.start().pid, flush=True)
time.sleep(60)
"""


def test_the_test_server_is_the_pinned_postgres(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        version = connection.execute("SHOW server_version").fetchone()
    assert version is not None
    assert version[0].startswith("18.")


def test_a_wrong_password_is_refused(postgres_url: str) -> None:
    user, _, rest = postgres_url.partition("@")
    wrong = user.rsplit(":", 1)[0] + ":wrong@" + rest
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong, connect_timeout=5)


def test_a_template_is_copied_and_databases_are_apart(make_database: Callable[..., str]) -> None:
    template = make_database()
    with psycopg.connect(template, autocommit=True) as connection:
        connection.execute("CREATE TABLE answers (value int)")
        connection.execute("INSERT INTO answers VALUES (42)")
    copy = make_database(template=database_name(template))
    with psycopg.connect(copy) as connection:
        assert connection.execute("SELECT value FROM answers").fetchone() == (42,)
    with psycopg.connect(make_database()) as connection:
        assert connection.execute("SELECT to_regclass('answers')").fetchone() == (None,)


def test_data_and_password_survive_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "postgres.log"
    first = EmbeddedPostgres(tmp_path / "data", log)
    first.start()
    with psycopg.connect(first.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept ()")
    password = first.url.split("@")[0]
    first.stop()
    second = EmbeddedPostgres(tmp_path / "data", log)
    second.start()
    try:
        assert second.url.split("@")[0] == password
        with psycopg.connect(second.url) as connection:
            assert connection.execute("SELECT to_regclass('kept')").fetchone() == ("kept",)
    finally:
        second.stop()


def test_redis_asks_for_its_password(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()
    with (
        redis.Redis.from_url(redis_url.replace(redis_url.split(":")[2].split("@", maxsplit=1)[0], "wrong")) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_servers_end_with_an_owner_that_is_killed(tmp_path: Path, repository: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=repository
    )
    assert owner.stdout is not None
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    try:
        assert len(pids) == 2
        assert all(is_alive(pid) for pid in pids)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
        owner.stdout.close()
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_alive(pid)]


def test_the_data_folder_is_closed_to_others(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data", tmp_path / "postgres.log")
    mode_before = tmp_path.stat().st_mode
    server.start()
    server.stop()
    assert tmp_path.stat().st_mode == mode_before, "modes of folders that are not ours stay"
    if os.path.exists(tmp_path / "data"):
        assert (tmp_path / "data").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_root_without_namespaces_runs_it_as_nobody_and_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_namespace", lambda: ("false",))
    server = EmbeddedPostgres(tmp_path / "data", tmp_path / "postgres.log")
    process = server.start()
    try:
        assert Path(f"/proc/{process.pid}").stat().st_uid == postgres.NOBODY
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()
        postgres.remove_cluster(tmp_path / "data")
    assert not list(postgres.NOBODY_ROOT.glob(f"headrace-{postgres.hash_path(tmp_path / 'data'):x}"))


def test_any_user_that_postgres_accepts_is_not_root() -> None:
    mapped = dict(word.removeprefix("--").split("=") for word in postgres._namespace() if "=" in word)
    assert int(mapped["map-user"]) != 0
    assert pwd.getpwuid(int(mapped["map-user"]))
