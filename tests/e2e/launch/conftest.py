"""One set of services for the tests of this folder, started and stopped as a user does."""

from collections.abc import Iterator

import pytest
from testkit.launched import READY, Running, run

from headrace.cli.up import state
from headrace.cli.up.process import is_alive


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Every service, with the scripted engine; stopped by `headrace down`, after which nothing may be left."""
    folder = tmp_path_factory.mktemp("up") / ".headrace"
    options = ["--data-dir", str(folder), "--http-port", "0", "--engine", "scripted", "--inference-workers", "1"]
    done = run("up", "--detach", *options, *READY)
    assert done.returncode == 0, done.stderr
    assert "Headrace is up: http://127.0.0.1:" in done.stdout
    running = Running(folder)
    pids, launcher, launch_id = running.pids(), running.state["launcher_pid"], running.state["launch_id"]
    try:
        yield running
        pids += running.pids()
        launcher = running.state["launcher_pid"]
    finally:
        done = run("down", "--data-dir", str(folder))
    assert done.returncode == 0, done.stderr
    assert not [pid for pid in [*pids, launcher] if is_alive(pid)]
    assert not state.survivors_of(launch_id)
    assert not {"up.json", "up.lock", "secrets.json"} & {path.name for path in folder.iterdir()}
