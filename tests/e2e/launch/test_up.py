"""`headrace up` as a user meets it: ready, a second one, kills, a busy port, an end that leaves nothing."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from testkit.launched import HEADRACE, READY, Running, run, until

from headrace.cli.up import state
from headrace.cli.up.process import is_alive

pytestmark = pytest.mark.timeout(300)


def test_every_service_has_registered_and_has_a_log(up: Running) -> None:
    expected = {"env-0", "inference-0", "proxy-0", "trainer-0", "weightstore-0"}
    assert expected <= up.live().keys()
    for name, service in up.state["services"].items():
        assert Path(service["log"]).exists(), name
    assert not [name for name in up.state["services"] if name.startswith("reward")], "no work, no reward worker"


def test_the_console_and_the_api_answer(up: Running) -> None:
    assert isinstance(json.loads(run("list", "--data-dir", str(up.folder), "--json").stdout), list)
    doctor = json.loads(run("doctor", "--data-dir", str(up.folder), "--json").stdout)
    assert {"name": "server", "is_ok": True, "detail": f"{up.state['server']} is ready"} in doctor


def test_secrets_are_not_on_command_lines_nor_readable_by_others(up: Running) -> None:
    secrets = json.loads((up.folder / "secrets.json").read_text())
    password = secrets["database_url"].split(":")[2].split("@")[0]
    for pid in up.pids():
        assert password.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    assert (up.folder / "secrets.json").stat().st_mode & 0o077 == 0
    for name in ("env-0", "proxy-0", "inference-0", "trainer-0", "weightstore-0"):
        environment = Path(f"/proc/{up.pid(name)}/environ").read_bytes()
        assert password.encode() not in environment, f"{name} has no business with the database"


def test_a_second_up_is_told_of_the_first(up: Running) -> None:
    done = run("up", "--data-dir", str(up.folder))
    assert done.returncode == 2
    assert f"launcher pid {up.state['launcher_pid']}" in done.stderr
    assert "headrace down" in done.stderr


@pytest.mark.parametrize(
    "name", ["proxy-0", "env-0", "weightstore-0", "control_plane", "redis", "postgres", "trainer-0"]
)
def test_a_killed_service_is_started_again_at_once_and_registers(up: Running, name: str) -> None:
    first = up.pid(name)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    took_s = until(lambda: up.pid(name) not in (None, first), f"{name} started again", 20)
    # The launcher looks every 0.1 s and waits 0.1 s; the rest is room for a busy machine.
    assert took_s < 3
    if name.endswith("-0"):
        until(lambda: up.live().get(name) == up.pid(name), f"{name} registered", 90)
    else:
        until(lambda: run("list", "--data-dir", str(up.folder)).returncode == 0, "the API answers again", 60)
        until(lambda: "env-0" in up.live(), "the others are still known", 30)


def test_a_busy_port_gets_another_and_says_so_and_ctrl_c_ends_all(up: Running, tmp_path: Path) -> None:
    busy = up.state["server"].rsplit(":", 1)[1]
    folder = tmp_path / ".headrace"
    options = ["--data-dir", str(folder), "--http-port", busy, "--engine", "scripted", "--inference-workers", "1"]
    log = tmp_path / "out"
    with log.open("w") as out:
        launcher = subprocess.Popen([HEADRACE, "up", *options, *READY], stdout=out, stderr=subprocess.STDOUT)
    other = Running(folder)
    try:
        until(lambda: "Headrace is up" in log.read_text() or launcher.poll() is not None, "ready", 160)
        assert f"port {busy} is in use; taking " in log.read_text()
        pids = other.pids()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(60) == 0
        assert not [pid for pid in pids if is_alive(pid)]
        assert up.live(), "the first one is untouched"
    finally:
        launcher.kill()
        launcher.wait(10)


def test_a_killed_launcher_takes_everything_with_it_and_the_next_up_starts(tmp_path: Path) -> None:
    folder = tmp_path / ".headrace"
    options = ["--data-dir", str(folder), "--http-port", "0", "--engine", "scripted", "--inference-workers", "1"]
    assert run("up", "--detach", *options, *READY).returncode == 0
    running = Running(folder)
    pids, launch_id = running.pids(), running.state["launch_id"]
    os.kill(running.state["launcher_pid"], signal.SIGKILL)
    until(lambda: not [pid for pid in pids if is_alive(pid)], "the kernel ended the children", 20)
    assert not state.survivors_of(launch_id)
    try:
        done = run("up", "--detach", *options, *READY)
        assert done.returncode == 0, done.stderr
    finally:
        run("down", "--data-dir", str(folder))
    assert not folder.joinpath("up.json").exists()


def test_a_service_that_cannot_start_ends_the_launch_with_its_reason(tmp_path: Path) -> None:
    folder = tmp_path / ".headrace"
    unusable = "postgresql://nobody:wrong@127.0.0.1:9/none"
    done = run(
        "up", "--data-dir", str(folder), "--http-port", "0", "--database-url", unusable, "--ready-timeout-s", "12"
    )
    assert done.returncode in (1, 6), done.stderr
    assert "control_plane" in done.stderr
    assert not folder.joinpath("up.json").exists()
