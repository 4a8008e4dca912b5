"""The order of effects of `headrace up`: take the folder, start, wait until ready, supervise, stop."""

import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import IO, Any

import headrace
from headrace.cli.up import state
from headrace.cli.up.errors import LaunchError
from headrace.cli.up.fleet import LaunchOptions, Wiring, reward_worker, services
from headrace.cli.up.layout import DataDir
from headrace.cli.up.ports import choose_port, free_port
from headrace.cli.up.postgres import EmbeddedPostgres
from headrace.cli.up.process import start_time
from headrace.cli.up.readiness import Readiness
from headrace.cli.up.redis import EmbeddedRedis
from headrace.cli.up.reward_pool import RewardScaler, depth_reader
from headrace.cli.up.supervisor import Supervisor

TICK_S = 0.1
QUEUE_LOOK_S = 0.5

# The order of the end, last first: servers outlive the control plane, which outlives the services.
WAVE_SERVERS, WAVE_CONTROL, WAVE_SERVICES = 0, 1, 2


class Launcher:
    """One run of `headrace up`. `say` gets lines for the operator."""

    def __init__(self, options: LaunchOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._dir: DataDir = options.data_dir
        self._say = say
        self._signals = 0
        self._started_at = time.time()
        self._is_ready = False
        self._launch_id = uuid.uuid4().hex
        self._wiring: Wiring | None = None
        self._supervisor = Supervisor(self._dir, on_change=self._write_state, say=say)
        self._scaler = RewardScaler(most=options.reward_workers)

    def run(self, on_ready: Callable[[str], bool] = lambda _url: True) -> None:
        """Start everything, call `on_ready` with the server's URL, and supervise until a signal.

        `on_ready` returns False to stop at once. Everything is stopped when this returns or raises.
        """
        lock = state.acquire(self._dir)
        try:
            handlers = self._catch_signals()
            try:
                self._run(on_ready)
            finally:
                self._stop()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        finally:
            self._release(lock)

    def _run(self, on_ready: Callable[[str], bool]) -> None:
        for ended in state.clean_stale(self._dir):
            self._say(f"a launcher that died left {ended}; ended it")
        self._set_logs_aside()
        wiring = self._start_servers()
        names = self._add_services(wiring)
        self._say(f"starting {len(names) + 1} services; logs are in {self._dir.logs}/")
        readiness = Readiness(wiring.server_url, names, self._supervisor.pid_of, self._say)
        if not readiness.wait(self._options.ready_timeout_s, self._tick):
            return
        self._is_ready = True
        self._write_state()
        if on_ready(wiring.server_url):
            self._supervise(wiring)

    def _start_servers(self) -> Wiring:
        options = self._options
        http_port = choose_port(options.http_port)
        if http_port != options.http_port and options.http_port:
            self._say(f"port {options.http_port} is in use; taking {http_port}")
        self._write_state()
        database_url = options.database_url or self._start_postgres()
        broker_url = options.broker_url or self._start_redis()
        self._wiring = Wiring(self._launch_id, http_port, free_port(), database_url, broker_url)
        state.write_private(self._dir.secrets, {"database_url": database_url, "broker_url": broker_url})
        self._write_state()
        return self._wiring

    def _start_postgres(self) -> str:
        server = EmbeddedPostgres(self._dir.postgres, self._dir.log("postgres"))
        process = server.start()
        self._supervisor.add(server.command(), wave=WAVE_SERVERS, process=process)
        return server.url

    def _start_redis(self) -> str:
        server = EmbeddedRedis(self._dir.redis, self._dir.log("redis"))
        process = server.start()
        self._supervisor.add(server.command(), wave=WAVE_SERVERS, process=process)
        return server.url

    def _add_services(self, wiring: Wiring) -> list[str]:
        """Names of the processes that register with the control plane."""
        control, *others = services(self._options, wiring)
        self._supervisor.add(control, wave=WAVE_CONTROL)
        for command in others:
            self._supervisor.add(command, wave=WAVE_SERVICES)
        for index in range(self._options.reward_workers):
            command = reward_worker(index, self._options, wiring)
            self._supervisor.add(command, wave=WAVE_SERVICES, is_wanted=False)
        return [command.name for command in others]

    def _supervise(self, wiring: Wiring) -> None:
        read_depth = depth_reader(wiring.broker_url)
        look_at = 0.0
        while self._tick():
            now = time.monotonic()
            if now >= look_at:
                look_at = now + QUEUE_LOOK_S
                self._scale_rewards(read_depth(), now)
            time.sleep(TICK_S)

    def _scale_rewards(self, depth: int | None, now: float) -> None:
        if depth is None:
            return
        wanted = self._scaler.on_depth(depth, now)
        for index in range(self._options.reward_workers):
            self._supervisor.members[f"reward-{index}"].is_wanted = index < wanted

    def _tick(self) -> bool:
        """False once a signal asked for the end."""
        if self._signals:
            return False
        self._supervisor.tick()
        return True

    def _stop(self) -> None:
        running = [member for member in self._supervisor.members.values() if member.process is not None]
        if running:
            self._say(f"stopping {len(running)} processes")
        self._supervisor.stop_all(is_impatient=lambda: self._signals > 1)

    def _release(self, lock: IO[str]) -> None:
        for path in (self._dir.state, self._dir.secrets, self._dir.lock):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        lock.close()

    def _catch_signals(self) -> dict[signal.Signals, Any]:
        def count(_number: int, _frame: FrameType | None) -> None:
            self._signals += 1

        return {number: signal.signal(number, count) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def _set_logs_aside(self) -> None:
        if self._dir.logs.exists():
            shutil.rmtree(self._dir.previous_logs, ignore_errors=True)
            self._dir.logs.rename(self._dir.previous_logs)
        self._dir.logs.mkdir(parents=True)

    def _write_state(self) -> None:
        wiring = self._wiring
        members = self._supervisor.members.values()
        state.write_private(
            self._dir.state,
            {
                "launch_id": self._launch_id,
                "launcher_pid": os.getpid(),
                "launcher_start_time": start_time(os.getpid()),
                "version": headrace.__version__,
                "started_at": self._started_at,
                "is_ready": self._is_ready,
                "server": wiring.server_url if wiring else None,
                "control_address": wiring.control_address if wiring else None,
                "services": {
                    member.command.name: {
                        "pid": member.process.pid if member.process else None,
                        "restarts": member.restarts,
                        "log": str(self._dir.log(member.command.name)),
                    }
                    for member in members
                    if member.is_wanted or member.process is not None
                },
            },
        )


def stop_running(data_dir: DataDir, deadline_s: float) -> str:
    """What `headrace down` does; returns what happened, in words. Raises `LaunchError` when it does not end."""
    found = state.read(data_dir)
    if found is None:
        return f"nothing is up in {data_dir.root}"
    if not state.is_launcher_alive(found):
        with state.acquire(data_dir):
            ended = state.clean_stale(data_dir)
            data_dir.lock.unlink(missing_ok=True)
        return "the launcher had died; " + (f"ended {len(ended)} leftovers" if ended else "removed its state")
    pid = int(found["launcher_pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline:
        if not state.is_launcher_alive(found):
            return "stopped"
        time.sleep(0.05)
    raise LaunchError(f"the launcher (pid {pid}) did not end within {deadline_s:g} s; its logs are in {data_dir.logs}")
