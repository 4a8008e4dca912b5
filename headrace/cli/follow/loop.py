"""Look, show, wait, until the job is over. A server that restarts meanwhile is waited for."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.live import Live

from headrace.cli.follow.snapshot import Snapshot, read_snapshot
from headrace.cli.follow.view import BAR_WIDTH, live_view, plain_line
from headrace.client.rest import TERMINAL, ApiError, RestClient, Unreachable

LOOK_S = 1.0
UNREACHABLE_S = 60.0
QUIET_S = 15.0


def follow(api: RestClient, job_id: str, *, console: Console | None = None) -> dict[str, Any]:
    """Show the job on stderr until it is over, and return it. Raises `Unreachable` after a minute without answers."""
    console = console or Console(stderr=True)
    with ExitStack() as stack:
        show: Callable[[Snapshot], None]
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False))
            show = lambda snapshot: live.update(live_view(snapshot), refresh=True)  # noqa: E731
        else:
            show = LineShow(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201 -- stderr of this moment
        while True:
            job, steps = _look(api, job_id)
            show(read_snapshot(job, steps))
            if job["phase"] in TERMINAL:
                return job
            time.sleep(LOOK_S)


def _look(api: RestClient, job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    deadline = time.monotonic() + UNREACHABLE_S
    while True:
        try:
            return api.job(job_id), api.of_job(job_id, "steps", limit=BAR_WIDTH)["items"]
        except (Unreachable, ApiError) as error:
            is_final = isinstance(error, ApiError) and error.status < 500
            if is_final or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


class LineShow:
    """A line for each new step or phase, and one now and then so that a long wait is seen to be one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._shown: tuple[object, ...] = ()
        self._at = 0.0

    def __call__(self, snapshot: Snapshot) -> None:
        what = (snapshot.phase, snapshot.step, bool(snapshot.detail))
        now = time.monotonic()
        if what != self._shown or now - self._at > QUIET_S:
            self._shown, self._at = what, now
            self._write(plain_line(snapshot))
