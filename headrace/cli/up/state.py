"""up.json and the lock beside it: who runs in a data folder, and the tidying up after a launcher that died."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from headrace.cli.up.errors import AlreadyRunning
from headrace.cli.up.fleet import LAUNCH_ID
from headrace.cli.up.layout import DataDir
from headrace.cli.up.process import is_alive, start_time


def write_private(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file whole, readable by its owner alone: nobody ever sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(content, indent=2) + "\n")
    draft.replace(path)


def read(data_dir: DataDir) -> dict[str, Any] | None:
    """up.json, or None if there is none or it is not ours to understand."""
    try:
        found = json.loads(data_dir.state.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def is_launcher_alive(state: Mapping[str, Any]) -> bool:
    """Whether the launcher of `state` runs; a pid that another process got since does not count."""
    pid = int(state.get("launcher_pid", 0))
    return pid > 0 and is_alive(pid) and start_time(pid) == state.get("launcher_start_time")


def acquire(data_dir: DataDir) -> IO[str]:
    """Take the data folder. The lock goes when this process ends, however it ends. Raises `AlreadyRunning`."""
    data_dir.root.mkdir(parents=True, exist_ok=True)
    while True:
        lock = data_dir.lock.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise AlreadyRunning(_already_running(data_dir)) from None
        if _is_current(lock, data_dir.lock):
            return lock
        # The former owner removed the file between our opening and our locking it.
        lock.close()


def _is_current(lock: IO[str], path: Path) -> bool:
    try:
        return os.fstat(lock.fileno()).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _already_running(data_dir: DataDir) -> str:
    state = read(data_dir) or {}
    return (
        f"Headrace is already up in {data_dir.root} (launcher pid {state.get('launcher_pid', 'unknown')}, "
        f"console {state.get('server') or 'not ready yet'}); use it, or stop it with: "
        f"headrace down --data-dir {data_dir.root}"
    )


def clean_stale(data_dir: DataDir) -> list[str]:
    """End what a dead launcher left and remove its state. Returns what was ended, in words."""
    state = read(data_dir)
    if state is None:
        return []
    ended = _end_survivors(str(state.get("launch_id", "")))
    for path in (data_dir.state, data_dir.secrets):
        path.unlink(missing_ok=True)
    return ended


def _end_survivors(launch_id: str) -> list[str]:
    """Kill processes that carry the launch id in their environment, and only those."""
    survivors = survivors_of(launch_id)
    for pid in survivors:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(is_alive(pid) for pid in survivors) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"process {pid} ({what})" for pid, what in survivors.items()]


def survivors_of(launch_id: str) -> dict[int, str]:
    """Processes of this machine that were started under `launch_id`, with their command lines."""
    if not launch_id:
        return {}
    mark = f"{LAUNCH_ID}={launch_id}".encode()
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(folder.name)] = words.strip()[:120]
    return {pid: words for pid, words in found.items() if pid != os.getpid() and is_alive(pid)}
