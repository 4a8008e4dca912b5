"""Real processes under the supervisor: back after a kill, ended in order, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.up.errors import LaunchError
from headrace.cli.up.layout import DataDir
from headrace.cli.up.process import ChildProcess, Command, is_alive
from headrace.cli.up.supervisor import Supervisor

SLEEP = "import time; print('started', flush=True); time.sleep(120)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('started', flush=True); time.sleep(120)"
)
WITH_CHILD = (
    "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(120)']);"
    "print(p.pid, flush=True); time.sleep(120)"
)


def python(name: str, program: str) -> Command:
    return Command(name, [sys.executable, "-c", program])


class Watch:
    """A supervisor with a record of what it said."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.changes = 0
        self.supervisor = Supervisor(DataDir(folder), on_change=self._changed, say=self.said.append)

    def _changed(self) -> None:
        self.changes += 1

    def pid(self, name: str) -> int | None:
        process = self.supervisor.members[name].process
        return process.pid if process else None

    def tick_until(self, condition: Callable[[], object], deadline_s: float = 10.0) -> float:
        """Seconds until the condition held."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < deadline_s, f"never: {self.said}"
            self.supervisor.tick()
            time.sleep(0.02)
        return time.monotonic() - started


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    watched = Watch(tmp_path)
    yield watched
    watched.supervisor.stop_all(is_impatient=lambda: True)


def test_a_killed_process_is_back_within_a_second(watch: Watch) -> None:
    watch.supervisor.add(python("sleeper", SLEEP), wave=0)
    watch.tick_until(lambda: watch.pid("sleeper"))
    first = watch.pid("sleeper")
    assert first is not None
    os.kill(first, signal.SIGKILL)
    took_s = watch.tick_until(lambda: watch.pid("sleeper") not in (None, first))
    assert took_s < 1.0
    assert watch.supervisor.members["sleeper"].restarts == 1
    assert watch.said == ["sleeper ended (signal 9); starting it again"]


def test_a_process_that_always_crashes_is_given_up_with_its_last_words(watch: Watch) -> None:
    watch.supervisor.add(python("broken", "raise SystemExit('no such model')"), wave=0)
    with pytest.raises(LaunchError, match=r"(?s)broken crashed 6 times.*exit code 1.*no such model"):
        watch.tick_until(lambda: False, deadline_s=30)


def test_a_member_that_is_not_wanted_is_stopped_and_not_restarted(watch: Watch) -> None:
    watch.supervisor.add(python("worker", SLEEP), wave=0, is_wanted=False)
    watch.supervisor.tick()
    assert watch.pid("worker") is None
    watch.supervisor.members["worker"].is_wanted = True
    watch.tick_until(lambda: watch.pid("worker"))
    watch.supervisor.members["worker"].is_wanted = False
    watch.tick_until(lambda: watch.pid("worker") is None)
    watch.supervisor.tick()
    assert watch.pid("worker") is None
    assert watch.supervisor.members["worker"].restarts == 0
    assert watch.said == []


def test_waves_end_from_the_last_to_the_first(watch: Watch, tmp_path: Path) -> None:
    log = tmp_path / "order"
    program = (
        "import signal, sys, time\n"
        f"def stop(*_): open({str(log)!r}, 'a').write(sys.argv[1] + '\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop); print('started', flush=True); time.sleep(120)"
    )
    for name, wave in (("server", 0), ("control", 1), ("service", 2)):
        watch.supervisor.add(Command(name, [sys.executable, "-c", program, name]), wave=wave)
    logs = [tmp_path / "logs" / f"{name}.log" for name in ("server", "control", "service")]
    watch.tick_until(lambda: all(path.exists() and "started" in path.read_text() for path in logs))
    watch.supervisor.stop_all()
    assert log.read_text().split() == ["service", "control", "server"]


def test_impatience_kills_at_once(watch: Watch, tmp_path: Path) -> None:
    watch.supervisor.add(python("stubborn", STUBBORN), wave=0)
    log = tmp_path / "logs" / "stubborn.log"
    watch.tick_until(lambda: log.exists() and "started" in log.read_text())
    pid = watch.pid("stubborn")
    assert pid is not None
    started = time.monotonic()
    watch.supervisor.stop_all(is_impatient=lambda: True)
    assert time.monotonic() - started < 2
    assert not is_alive(pid)


def test_what_a_crashed_process_leaves_in_its_session_is_ended(watch: Watch, tmp_path: Path) -> None:
    watch.supervisor.add(python("parent", WITH_CHILD), wave=0)
    log = tmp_path / "logs" / "parent.log"
    watch.tick_until(lambda: log.exists() and log.read_text().strip())
    grandchild = int(log.read_text().split()[0])
    pid = watch.pid("parent")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    watch.tick_until(lambda: not is_alive(grandchild))


def test_children_end_with_a_launcher_that_is_killed(tmp_path: Path, repository: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path\n"
        "from headrace.cli.up.process import ChildProcess, Command\n"
        "argv = [sys.executable, '-c', 'import time; time.sleep(120)']\n"
        f"child = ChildProcess(Command('sleeper', argv), Path({str(tmp_path)!r}) / 'x.log')\n"
        "print(child.pid, flush=True); time.sleep(120)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=repository)
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    assert is_alive(child)
    launcher.kill()
    launcher.wait(10)
    launcher.stdout.close()
    deadline = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_alive(child)


def test_a_stop_past_its_deadline_kills(tmp_path: Path) -> None:
    process = ChildProcess(python("stubborn", STUBBORN), tmp_path / "x.log")
    deadline = time.monotonic() + 10
    while "started" not in process.log_tail() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not process.stop(deadline_s=0.2)
    assert process.exit_code == -signal.SIGKILL
