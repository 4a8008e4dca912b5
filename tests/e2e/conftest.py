"""One `headrace up` for the whole tier, as a person starts it, with an untrained tiny model."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.up import state
from headrace.cli.up.layout import DataDir
from headrace.client.rest import RestClient, Unreachable

READY_S = 180.0
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Stack:
    """The running services and where their files are."""

    data_dir: Path
    server: str
    model: Path
    user_code: Path  # on the path of the services

    def api(self) -> RestClient:
        return RestClient(self.server, timeout_s=20.0)

    def services(self) -> dict[str, Any]:
        found = state.read(DataDir(self.data_dir))
        assert found is not None
        return dict(found["services"])

    def kill(self, prefix: str) -> str:
        """SIGKILL to the first service whose name starts so; its name. Reward workers come and go: waits for one."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            for name, service in self.services().items():
                if name.startswith(prefix) and service["pid"]:
                    os.kill(service["pid"], signal.SIGKILL)
                    return name
            time.sleep(0.1)
        raise AssertionError(f"no service {prefix}* to kill among {list(self.services())}")

    def wait(self, job_id: str, *, timeout_s: float = 120.0) -> dict[str, Any]:
        """The job once it has ended; a control plane that is away for a moment is waited for."""
        return self.until(job_id, lambda job: job["phase"] in TERMINAL, timeout_s=timeout_s)

    def until(self, job_id: str, is_so: Any, *, timeout_s: float = 120.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        job: dict[str, Any] = {}
        while time.monotonic() < deadline:
            try:
                with self.api() as api:
                    job = api.job(job_id)
                if is_so(job):
                    return job
            except Unreachable:
                pass
            time.sleep(0.2)
        raise AssertionError(
            f"not so within {timeout_s} s: {job.get('phase')} {job.get('reason')} {job.get('progress')}"
        )

    def spec(self, **changes: Any) -> dict[str, Any]:
        """A small job on the tiny model; `changes` replace top-level blocks."""
        spec: dict[str, Any] = {
            "schema": "headrace/v1",
            "name": "e2e",
            "seed": 3,
            "max_steps": 4,
            "model": {"path": str(self.model), "max_len": 96},
            "batch": {"groups": 4, "group_size": 4},
            "async": {"preset": "bounded", "alpha": 1},
            "tasks": [
                {
                    "name": "stroll",
                    "env": {"entry_point": "testkit.job_environments:Stroll", "max_turns": 4},
                    "sampling": {"max_tokens": 4},
                }
            ],
            "optimizer": {"lr": 1e-3},
            "checkpoint": {"every": 2},
            "eval": {"at_start": False, "at_end": False},
            "limits": {"step_s": 90.0},
        }
        return {**spec, **changes}


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Stack]:
    from testkit.tiny_models import save_tiny_model

    root = tmp_path_factory.mktemp("e2e")
    model = save_tiny_model(root / "model")
    data_dir = root / "data"
    user_code = root / "user"
    user_code.mkdir()
    # User code is found as an author's would be: on the path that the services are started with.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), str(repository / "tests"), str(user_code)])}
    argv = [sys.executable, "-m", "headrace.cli", "up", "--data-dir", str(data_dir), "--http-port", "0"]
    log = (root / "up.log").open("wb")
    process = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
    try:
        yield Stack(data_dir, _server(process, data_dir, root / "up.log"), model, user_code)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


def _server(process: "subprocess.Popen[bytes]", data_dir: Path, log: Path) -> str:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        found = state.read(DataDir(data_dir)) or {}
        if found.get("is_ready"):
            return str(found["server"])
        assert process.poll() is None, log.read_text()
        time.sleep(0.2)
    raise AssertionError(f"not ready within {READY_S} s: {log.read_text()}")
