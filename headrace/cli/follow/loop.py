"""Look, show, wait, until the job is over. A server that restarts meanwhile is waited for."""

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.live import Live

from headrace.cli.follow.snapshot import Snapshot, read_snapshot
from headrace.cli.follow.view import live_view, plain_line
from headrace.client.rest import ApiError, RestClient, Unreachable

LOOK_S = 1.0
UNREACHABLE_S = 60.0
QUIET_S = 15.0


def follow(api: RestClient, job_id: str, *, console: Console | None = None) -> dict[str, Any]:
    """Show the job on stderr until it is over, and return it. Raises `Unreachable` after a minute without answers."""
    console = console or Console(stderr=True)
    with ExitStack() as stack:
        show: Callable[[Snapshot], None] = (
            LiveShow(stack.enter_context(Live(console=console, auto_refresh=False, transient=False)))
            if console.is_terminal
            else LineShow(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201 -- follows stderr as it is
        )
        while True:
            job = _look(api, job_id)
            snapshot = read_snapshot(job)
            show(snapshot)
            if snapshot.is_over:
                return job
            time.sleep(LOOK_S)


def _look(api: RestClient, job_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + UNREACHABLE_S
    while True:
        try:
            job = api.job(job_id)
            return {**job, "progress": {**_extras(api, job_id), **(job.get("progress") or {})}}
        except (Unreachable, ApiError) as error:
            is_final = isinstance(error, ApiError) and error.status < 500
            if is_final or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def _extras(api: RestClient, job_id: str) -> dict[str, Any]:
    """The buffer's counts, where the job's own progress does not carry them."""
    try:
        counts = api.of_job(job_id, "buffer").get("counts")
    except (Unreachable, ApiError):
        return {}
    return {"buffer": counts} if isinstance(counts, Mapping) else {}


class LiveShow:
    """The panels, redrawn in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._curves: dict[str, list[float]] = {}
        self._step = -1

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.step != self._step:
            self._step = snapshot.step
            for task in snapshot.tasks:
                if task.recent is not None:
                    self._curves.setdefault(task.name, []).append(task.recent)
        self._live.update(live_view(snapshot, self._curves), refresh=True)


class LineShow:
    """A line for each new step or phase, and one now and then so that a long wait is seen to be one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._shown: tuple[object, ...] = ()
        self._at = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        what = (snapshot.phase, snapshot.step, snapshot.detail)
        now = time.monotonic()
        if what != self._shown or now - self._at > QUIET_S:
            self._shown, self._at = what, now
            self._write(plain_line(snapshot))
