"""Keeps a set of processes running, and ends them in order."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from headrace.cli.up.errors import LaunchError
from headrace.cli.up.layout import DataDir
from headrace.cli.up.process import ChildProcess, Command
from headrace.cli.up.restarts import GiveUp, RestartPolicy

STOP_DEADLINE_S = 12.0


@dataclass(slots=True)
class Member:
    """One supervised process: what it is, and how it is doing."""

    command: Command
    wave: int
    is_wanted: bool = True
    process: ChildProcess | None = None
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    start_at: float = 0.0
    restarts: int = 0
    is_stopping: bool = False


class Supervisor:
    """Call `tick` a few times a second.

    `wave` orders the end: the highest is stopped first. `on_change` is told after processes started or ended, and
    `say` gets a line for the operator.
    """

    def __init__(self, data_dir: DataDir, *, on_change: Callable[[], None], say: Callable[[str], None]) -> None:
        self._data_dir = data_dir
        self._on_change = on_change
        self._say = say
        self.members: dict[str, Member] = {}

    def add(self, command: Command, *, wave: int, process: ChildProcess | None = None, is_wanted: bool = True) -> None:
        """Supervise a command; `process` if it runs already."""
        self.members[command.name] = Member(command, wave, is_wanted, process)

    def pid_of(self, name: str) -> int | None:
        """The process that runs under this name now."""
        member = self.members.get(name)
        return member.process.pid if member and member.process else None

    def tick(self) -> None:
        """Start what should run, stop what should not, and note what ended. Raises `LaunchError` to give up."""
        now = time.monotonic()
        changed = [self._settle(member, now) for member in self.members.values()]
        if any(changed):
            self._on_change()

    def _settle(self, member: Member, now: float) -> bool:
        process = member.process
        if process is None:
            if not member.is_wanted or now < member.start_at:
                return False
            member.process = ChildProcess(member.command, self._data_dir.log(member.command.name))
            return True
        exit_code = process.exit_code
        if exit_code is not None:
            self._bury(member, process, exit_code, now)
            return True
        if not member.is_wanted and not member.is_stopping:
            member.is_stopping = True
            process.ask_to_stop()
        return False

    def _bury(self, member: Member, process: ChildProcess, exit_code: int, now: float) -> None:
        process.finish(0)
        member.process = None
        was_asked, member.is_stopping = member.is_stopping, False
        if was_asked or not member.is_wanted:
            return
        decision = member.policy.on_exit(exit_code, now - process.started_at)
        if isinstance(decision, GiveUp):
            raise LaunchError(
                f"{member.command.name} {decision.reason} (last {describe_exit(exit_code)}); "
                f"its log {process.log_path} ends with:\n{process.log_tail()}"
            )
        member.restarts += 1
        member.start_at = now + decision.delay_s
        self._say(f"{member.command.name} ended ({describe_exit(exit_code)}); starting it again")

    def stop_all(self, is_impatient: Callable[[], bool] = lambda: False) -> None:
        """End every process, wave by wave, none later than its deadline; at once when `is_impatient` says so."""
        for wave in sorted({member.wave for member in self.members.values()}, reverse=True):
            self._stop_wave([m for m in self.members.values() if m.wave == wave], is_impatient)
        self._on_change()

    def _stop_wave(self, members: Iterable[Member], is_impatient: Callable[[], bool]) -> None:
        running = [(member, member.process) for member in members if member.process is not None]
        for _, process in running:
            process.ask_to_stop()
        end = time.monotonic() + STOP_DEADLINE_S
        while any(process.is_running for _, process in running) and time.monotonic() < end and not is_impatient():
            time.sleep(0.05)
        for member, process in running:
            if not process.finish(0) and not is_impatient():
                self._say(f"{member.command.name} did not end within {STOP_DEADLINE_S:g} s and was killed")
            member.process = None


def describe_exit(exit_code: int) -> str:
    """`exit code 1`, or `signal 9`."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
