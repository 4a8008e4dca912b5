"""The processes of one machine and the command of each."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.cli.up.layout import DataDir
from headrace.cli.up.ports import LOOPBACK
from headrace.cli.up.process import Command

LAUNCH_ID = "HEADRACE_LAUNCH_ID"

# They share the machine's cores; a library that starts a thread for each core would slow the others down.
SHARED_ENV = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What `headrace up` was asked for. A URL of None means the embedded server."""

    data_dir: DataDir
    database_url: str | None = None
    broker_url: str | None = None
    http_port: int = 8470
    inference_workers: int = 2
    reward_workers: int = 2
    engine: str = "hf"
    trainers: int = 1
    trainer_backend: str = "torch"
    proxies: int = 1
    ready_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the processes have to know of each other. Ports stay the same when a process restarts."""

    launch_id: str
    http_port: int
    grpc_port: int
    database_url: str
    broker_url: str

    @property
    def control_address(self) -> str:
        return f"{LOOPBACK}:{self.grpc_port}"

    @property
    def server_url(self) -> str:
        return f"http://{LOOPBACK}:{self.http_port}"


def services(options: LaunchOptions, wiring: Wiring) -> list[Command]:
    """Everything but the embedded servers and the reward workers, in the order of their start."""
    control = Command(
        "control_plane",
        _python("control_plane", "--http-port", str(wiring.http_port), "--grpc-port", str(wiring.grpc_port)),
        # Only the control plane has a database URL, and by a variable, because command lines can be read by all.
        _env(options, wiring, HEADRACE_DATABASE_URL=wiring.database_url, HEADRACE_BROKER_URL=wiring.broker_url),
    )
    others = [
        _service("weightstore-0", ["weightstore"], options, wiring),
        *(
            _service(f"trainer-{i}", ["trainer_svc", "--backend", options.trainer_backend], options, wiring)
            for i in range(options.trainers)
        ),
        *(
            _service(f"inference-{i}", ["inference_svc", "worker", "--engine", options.engine], options, wiring)
            for i in range(options.inference_workers)
        ),
        *(_service(f"proxy-{i}", ["inference_svc", "proxy"], options, wiring) for i in range(options.proxies)),
        _service("env-0", ["env_svc"], options, wiring),
    ]
    return [control, *others]


def reward_worker(index: int, options: LaunchOptions, wiring: Wiring) -> Command:
    """One worker of the pool that is scaled by the queue's depth."""
    name = f"reward-{index}"
    env = _env(options, wiring, HEADRACE_BROKER_URL=wiring.broker_url)
    return Command(
        name, _python("reward_svc", "worker", "--name", name, "--control-address", wiring.control_address), env
    )


def _service(name: str, module: list[str], options: LaunchOptions, wiring: Wiring) -> Command:
    argv = _python(*module, "--name", name, "--control-address", wiring.control_address)
    return Command(name, argv, _env(options, wiring))


def _python(*arguments: str) -> list[str]:
    return [sys.executable, "-m", *arguments]


def _env(options: LaunchOptions, wiring: Wiring, **more: str) -> Mapping[str, str]:
    return {
        **SHARED_ENV,
        LAUNCH_ID: wiring.launch_id,
        "HEADRACE_DATA_DIR": str(options.data_dir.root.absolute()),
        **more,
    }
