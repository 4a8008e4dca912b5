"""The folder's lock and up.json: one launcher at a time, and tidying up after one that died."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.cli.up import state
from headrace.cli.up.errors import AlreadyRunning
from headrace.cli.up.fleet import LAUNCH_ID
from headrace.cli.up.launcher import stop_running
from headrace.cli.up.layout import DataDir
from headrace.cli.up.process import is_alive, start_time


def test_a_second_launcher_is_told_of_the_first(tmp_path: Path) -> None:
    folder = DataDir(tmp_path)
    lock = state.acquire(folder)
    state.write_private(folder.state, {"launcher_pid": 4711, "server": "http://127.0.0.1:8470"})
    with pytest.raises(AlreadyRunning, match=r"4711.*http://127.0.0.1:8470.*headrace down --data-dir") as refused:
        state.acquire(folder)
    assert refused.value.exit_code == 2
    lock.close()
    state.acquire(folder).close()


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path: Path, repository: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from headrace.cli.up import state\n"
        "from headrace.cli.up.layout import DataDir\n"
        "lock = state.acquire(DataDir(Path(sys.argv[1]))); print('locked', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=repository
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "locked\n"
    with pytest.raises(AlreadyRunning):
        state.acquire(DataDir(tmp_path))
    owner.kill()
    owner.wait(10)
    owner.stdout.close()
    state.acquire(DataDir(tmp_path)).close()


def test_state_is_replaced_whole_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "up.json"
    state.write_private(path, {"a": 1})
    state.write_private(path, {"b": 2})
    assert json.loads(path.read_text()) == {"b": 2}
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in tmp_path.iterdir()] == ["up.json"]


def test_survivors_of_a_dead_launcher_are_ended_and_nobody_else(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    survivor = subprocess.Popen(argv, env={**os.environ, LAUNCH_ID: "dead-launch"})
    bystander = subprocess.Popen(argv, env={**os.environ, LAUNCH_ID: "other-launch"})
    try:
        folder = DataDir(tmp_path)
        dead = {"launcher_pid": 1, "launcher_start_time": "not the time of pid 1", "launch_id": "dead-launch"}
        state.write_private(folder.state, dead)
        deadline = time.monotonic() + 5
        while not state.survivors_of("dead-launch") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert stop_running(folder, 5) == "the launcher had died; ended 1 leftovers"
        survivor.wait(5)
        assert is_alive(bystander.pid)
        assert not folder.state.exists()
        assert stop_running(folder, 5) == f"nothing is up in {tmp_path}"
    finally:
        for process in (survivor, bystander):
            process.kill()
            process.wait(5)


def test_a_pid_that_another_process_got_since_is_not_the_launcher() -> None:
    mine = {"launcher_pid": os.getpid(), "launcher_start_time": start_time(os.getpid())}
    assert state.is_launcher_alive(mine)
    assert not state.is_launcher_alive({**mine, "launcher_start_time": "1"})
    assert not state.is_launcher_alive({"launcher_pid": 0})
    assert not state.is_launcher_alive({})


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"'])
def test_a_state_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "up.json").write_text(text)
    assert state.read(DataDir(tmp_path)) is None
