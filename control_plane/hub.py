"""In-process wake-ups: who waits for a topic is woken by whoever changed it.

A hint, never the truth: several control planes share one database, so every waiter also polls. Topics are `workers`,
`jobs`, `rewards:<job_id>` and `events:<job_id>`.
"""

import asyncio
from contextlib import suppress


class Hub:
    """Topic -> change counter and sleepers. For one event loop."""

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}
        self._sleepers: dict[str, set[asyncio.Event]] = {}

    def notify(self, topic: str) -> None:
        """Wake everybody who waits for `topic`."""
        self._changes[topic] = self._changes.get(topic, 0) + 1
        for sleeper in self._sleepers.get(topic, ()):
            sleeper.set()

    def changes(self, topic: str) -> int:
        """How often `topic` changed so far. Take it before reading the database and hand it to `wait`."""
        return self._changes.get(topic, 0)

    async def wait(self, topic: str, timeout_s: float, *, since: int | None = None) -> bool:
        """Sleep until `topic` changes, at most `timeout_s`. True if it did.

        `since`: a count from `changes`; if the topic has moved on, the answer comes at once, so that nothing that
        happened between a read and this call is slept over.
        """
        if since is not None and self.changes(topic) > since:
            return True
        sleeper = asyncio.Event()
        self._sleepers.setdefault(topic, set()).add(sleeper)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await sleeper.wait()
            return sleeper.is_set()
        finally:
            sleepers = self._sleepers[topic]
            sleepers.discard(sleeper)
            if not sleepers:
                del self._sleepers[topic]
