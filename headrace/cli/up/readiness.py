"""Waiting until every service has registered, with a line for each that has."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from headrace.cli.up.errors import NotReady

POLL_S = 0.2


class Readiness:
    """Follows /readyz and the list of workers until all of `names` are there and the server says it is ready.

    `pid_of` gives the process that stands behind a name now: rows of an earlier one do not count.
    """

    def __init__(
        self, server_url: str, names: Sequence[str], pid_of: Callable[[str], int | None], say: Callable[[str], None]
    ) -> None:
        # A proxy meant for downloads has no business between processes of one machine.
        self._http = httpx.Client(base_url=server_url, timeout=2.0, trust_env=False)
        self._missing = list(names)
        self._pid_of = pid_of
        self._say = say
        self._started_at = time.monotonic()
        self._is_serving = False
        self._reason = "the control plane does not answer"

    def wait(self, deadline_s: float, tick: Callable[[], bool]) -> bool:
        """Poll until ready; `tick` runs between polls and ends the wait with False. Raises `NotReady`."""
        with self._http:
            while time.monotonic() - self._started_at < deadline_s:
                if self.poll():
                    return True
                if not tick():
                    return False
                time.sleep(POLL_S)
        waiting = ", ".join(self._missing) or "the server"
        # Nobody can register where the control plane is not: it is the one to look at.
        first = waiting if self._is_serving else f"control_plane, and so {waiting}"
        raise NotReady(f"not ready after {deadline_s:g} s: {first} ({self._reason})")

    def poll(self) -> bool:
        """One look. True when everything is ready."""
        try:
            ready = self._http.get("/readyz")
            if not self._is_serving:
                self._is_serving = True
                self._tell("control_plane")
            self._note_workers(self._http.get("/api/v1/workers", params={"limit": 500}).json())
            self._reason = "" if ready.is_success else ready.text[:300]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            self._reason = str(error) or type(error).__name__
            return False
        return ready.is_success and not self._missing

    def _note_workers(self, answer: dict[str, Any]) -> None:
        here = {worker["name"] for worker in answer["items"] if worker["pid"] == self._pid_of(worker["name"])}
        for name in [name for name in self._missing if name in here]:
            self._missing.remove(name)
            self._tell(name)

    def _tell(self, name: str) -> None:
        self._say(f"  {name:<14} ready after {time.monotonic() - self._started_at:4.1f} s")
