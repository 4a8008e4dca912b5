"""A set of Headrace's services of its own for a benchmark: started as a user starts them, and gone afterwards."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.cli.up import state
from headrace.cli.up.layout import DataDir
from headrace.client.rest import TERMINAL, ApiError, RestClient, Unreachable

REPOSITORY = Path(__file__).resolve().parent.parent
READY_S = 180.0
STOP_S = 60.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What `headrace up` is asked for. ``env`` is added to the environment of all services."""

    workers: int = 2
    trainers: int = 1
    proxies: int = 1
    reward_workers: int = 2
    engine: str = "scripted"
    trainer_backend: str = "scripted"
    env: Mapping[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """Command-line options."""
        counts = {
            "--inference-workers": self.workers,
            "--trainers": self.trainers,
            "--proxies": self.proxies,
            "--reward-workers": self.reward_workers,
        }
        named = [word for name, count in counts.items() for word in (name, str(count))]
        return [*named, "--engine", self.engine, "--trainer-backend", self.trainer_backend]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that has ended, and what is left of it."""

    job: dict[str, Any]
    steps: list[dict[str, Any]]
    ledger: dict[str, Any]

    @property
    def is_good(self) -> bool:
        """It succeeded, and every attempt is accounted for."""
        return self.job["phase"] == "succeeded" and bool(self.ledger["balanced"])

    def step_s(self, *, skip: int = 1) -> list[float]:
        """Wall seconds of each step from commit to commit, without the first ones, which fill the pipeline."""
        return [float(step["seconds"]["step"]) for step in self.steps[skip:]]

    def seconds(self, name: str, *, skip: int = 1) -> list[float]:
        """One part of each step's seconds."""
        return [float(step["seconds"].get(name, 0.0)) for step in self.steps[skip:]]


class Stack:
    """A context manager around `headrace up` in a data folder of its own."""

    def __init__(self, options: StackOptions | None = None) -> None:
        self.options = options or StackOptions()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
        self.server = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        env = {**os.environ, "PYTHONPATH": path, **self.options.env}
        argv = [sys.executable, "-m", "headrace.cli", "up", "--data-dir", str(self._data_dir.root), "--http-port", "0"]
        # The default action would end this process without the end of the block, and leave the services behind.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        try:
            with (self.root / "up.log").open("wb") as log:
                self._process = subprocess.Popen([*argv, *self.options.words()], env=env, stdout=log, stderr=log)
            self.server = self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything and remove the folder; ``HEADRACE_KEEP_BENCH`` keeps it."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)
        if not os.environ.get("HEADRACE_KEEP_BENCH"):
            shutil.rmtree(self.root, ignore_errors=True)

    @property
    def _data_dir(self) -> DataDir:
        return DataDir(self.root / "data")

    def _wait_until_ready(self) -> str:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            found = state.read(self._data_dir) or {}
            if found.get("is_ready"):
                return str(found["server"])
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"headrace up ended: {(self.root / 'up.log').read_text()[-2000:]}")
            time.sleep(POLL_S)
        raise TimeoutError(f"not ready within {READY_S:g} s: {(self.root / 'up.log').read_text()[-2000:]}")

    def api(self) -> RestClient:
        """A client of the control plane; close it."""
        return RestClient(self.server, timeout_s=20.0)

    def pids(self) -> dict[str, int]:
        """Process ids of the services that run now, by name."""
        found = state.read(self._data_dir) or {}
        services = found.get("services", {})
        return {name: int(service["pid"]) for name, service in services.items() if service["pid"]}

    def submit(self, spec: Mapping[str, Any]) -> str:
        """The new job's id. Raises ApiError with the causes in its message."""
        with self.api() as api:
            try:
                return str(api.submit(spec)["id"])
            except ApiError as error:
                raise RuntimeError(f"{error}: {error.errors}") from error

    def wait(self, job_id: str, *, deadline_s: float = 240.0) -> Outcome:
        """The ended job; a control plane that is away for a moment is waited for. Raises TimeoutError."""
        deadline = time.monotonic() + deadline_s
        job: dict[str, Any] = {}
        while time.monotonic() < deadline:
            with suppress(Unreachable), self.api() as api:
                job = api.job(job_id)
                if job["phase"] in TERMINAL:
                    return Outcome(job, self._steps(api, job_id), api.of_job(job_id, "ledger"))
            time.sleep(POLL_S)
        raise TimeoutError(
            f"job {job_id} did not end within {deadline_s:g} s: {job.get('phase')} {job.get('progress')}"
        )

    def run(self, spec: Mapping[str, Any], *, deadline_s: float = 240.0) -> Outcome:
        """Submit and wait. Raises RuntimeError when the job did not succeed or its ledger does not balance."""
        outcome = self.wait(self.submit(spec), deadline_s=deadline_s)
        if not outcome.is_good:
            raise RuntimeError(f"{spec.get('name')}: {outcome.job['phase']} {outcome.job['reason']} {outcome.ledger}")
        return outcome

    def attempts(self, job_id: str, limit: int = 20_000) -> list[dict[str, Any]]:
        """Attempts of a job, newest first."""
        with self.api() as api:
            return list(api.pages(f"/jobs/{job_id}/trajectories", limit=limit))

    @staticmethod
    def _steps(api: RestClient, job_id: str) -> list[dict[str, Any]]:
        return sorted(api.pages(f"/jobs/{job_id}/steps", limit=1000), key=lambda step: step["step"])


def spec(name: str, model: Path, tasks: Sequence[Mapping[str, Any]], **blocks: Any) -> dict[str, Any]:
    """A job spec for scripted services without evaluation; ``blocks`` replace whole blocks."""
    document: dict[str, Any] = {
        "schema": "headrace/v1",
        "name": name,
        "seed": 1,
        "max_steps": 4,
        "model": {"path": str(model), "max_len": 1024},
        "batch": {"groups": 8, "group_size": 4},
        "async": {"preset": "bounded"},
        "tasks": list(tasks),
        "resources": {"inference": {"min": 2, "max": 2, "engine": "scripted", "max_running": 64}, "env_slots": 1024},
        "checkpoint": {"every": 0},
        "eval": {"at_start": False, "at_end": False},
        "limits": {"step_s": 120.0},
    }
    return {**document, **blocks}


def synthetic(name: str = "synthetic", *, max_tokens: int = 999, max_turns: int = 64, **config: Any) -> dict[str, Any]:
    """A task in the synthetic environment; ``config`` are its constructor's arguments."""
    return {
        "name": name,
        "env": {
            "entry_point": "env_svc.environments.synthetic:Synthetic",
            "config": config,
            "max_turns": max_turns,
            "timeouts": {"reset_s": 60, "step_s": 60, "episode_s": 240},
        },
        "sampling": {"max_tokens": max_tokens},
    }
