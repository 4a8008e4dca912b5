"""One child process: started with a log file, tied to the life of this process, and ended within a deadline."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.cli.loglines import shorten
from headrace.service.child import die_with_parent

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. `env` is added to this process' environment and is where secrets go.

    `stop_signal` asks for an orderly end, and `orphan_signal` is what the kernel sends if the launcher dies.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL
    cwd: Path | None = None


class ChildProcess:
    """A running command in its own session, so that a Ctrl-C in the terminal reaches the launcher alone."""

    def __init__(self, command: Command, log_path: Path) -> None:
        self.command = command
        self.log_path = log_path
        self.started_at = time.monotonic()
        log_path.parent.mkdir(parents=True, exist_ok=True)
        parent = os.getpid()
        with log_path.open("ab") as log_file:
            self._popen = subprocess.Popen(
                list(command.argv),
                env={**os.environ, **command.env},
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                start_new_session=True,
                # The launcher has one thread, so code between fork and exec is safe.
                preexec_fn=lambda: die_with_parent(parent, command.orphan_signal),  # noqa: PLW1509
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal number if a signal ended it."""
        return self._popen.poll()

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def send(self, signal_number: int) -> None:
        """Send a signal, if it still runs."""
        if self.is_running:
            self._popen.send_signal(signal_number)

    def ask_to_stop(self) -> None:
        self.send(self.command.stop_signal)

    def stop(self, deadline_s: float) -> bool:
        """Ask, wait, then kill its whole session. True if it ended by itself in time."""
        self.ask_to_stop()
        return self.finish(deadline_s)

    def finish(self, deadline_s: float) -> bool:
        """Wait for the end that was asked for, then kill what is left of its session."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(deadline_s)
        is_orderly = not self.is_running
        # Its children are in the same session; an orderly end leaves none, a crash may.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(5)
        return is_orderly

    def log_tail(self, lines: int = 12) -> str:
        """The last lines of its log, for messages about a crash."""
        try:
            with self.log_path.open("rb") as log_file:
                log_file.seek(max(0, self.log_path.stat().st_size - 16384))
                text = log_file.read().decode("utf8", errors="replace")
        except OSError:
            return ""
        return "\n".join(shorten(line) for line in text.splitlines()[-lines:])


def is_alive(pid: int) -> bool:
    """Whether a process of this id exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return _answers(pid)
    return state not in ("Z", "X")


def _answers(pid: int) -> bool:
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def start_time(pid: int) -> str:
    """When the process began, as the kernel counts it: with the pid, an identity that is not reused."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
