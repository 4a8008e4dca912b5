"""Lockstep: the members of a cohort wait for each other before every turn."""

import asyncio


class Cohort:
    """A barrier whose membership shrinks as episodes end. One process sees only the members it was assigned."""

    def __init__(self, size: int, grace_s: float) -> None:
        self._size, self._grace_s = size, grace_s
        self._n_seen = self._n_live = self._n_waiting = 0
        self._last_join_s = 0.0
        self._round: asyncio.Event = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return self._n_live == 0

    def join(self) -> None:
        """A member that has its environment slot takes part from now on."""
        self._n_seen += 1
        self._n_live += 1
        self._last_join_s = asyncio.get_running_loop().time()

    def leave(self) -> None:
        """A member ended; the others no longer wait for it."""
        self._n_live -= 1
        self._release_if_full()

    async def wait(self) -> None:
        """Return once every live member waits. Members on their way (up to ``size``) are given ``grace_s``."""
        turn = self._round
        self._n_waiting += 1
        try:
            self._release_if_full()
            while not turn.is_set():
                left_s = self._grace_left_s()
                try:
                    async with asyncio.timeout(left_s if left_s > 0 else None):
                        await turn.wait()
                except TimeoutError:
                    self._release_if_full()
        finally:
            if not turn.is_set():
                self._n_waiting -= 1

    def _grace_left_s(self) -> float:
        if self._n_seen >= self._size:
            return 0.0
        return self._last_join_s + self._grace_s - asyncio.get_running_loop().time()

    def _release_if_full(self) -> None:
        if 0 < self._n_live <= self._n_waiting and self._grace_left_s() <= 0:
            self._round.set()
            self._round, self._n_waiting = asyncio.Event(), 0


class Cohorts:
    """The cohorts of one job by name; empty ones are forgotten."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._cohorts: dict[str, Cohort] = {}

    def join(self, name: str, size: int) -> Cohort | None:
        """The cohort, joined; None for an attempt on its own (no name)."""
        if not name:
            return None
        cohort = self._cohorts.setdefault(name, Cohort(size, self._grace_s))
        cohort.join()
        return cohort

    def leave(self, name: str) -> None:
        """Take one member out."""
        if cohort := self._cohorts.get(name):
            cohort.leave()
            if cohort.is_empty:
                del self._cohorts[name]
