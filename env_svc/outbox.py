"""What a job's runner has to hear. Finished attempts are kept until acknowledged, whatever stream carried them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2

MAX_ITEMS = 64
MAX_DELAY_S = 0.005
REMEMBERED_KEYS = 65_536


class Key(NamedTuple):
    """The ledger's unit."""

    trajectory_id: str
    attempt: int

    @classmethod
    def of(cls, message: common_pb2.AttemptKey) -> "Key":
        return cls(message.trajectory_id, message.attempt)

    def message(self) -> common_pb2.AttemptKey:
        return common_pb2.AttemptKey(trajectory_id=self.trajectory_id, attempt=self.attempt)


class Outbox:
    """At most one `started` and one final outcome wait per attempt, so what waits is bounded by what was assigned."""

    def __init__(self) -> None:
        self._final: dict[Key, environments_pb2.Outcome] = {}
        self._started: dict[Key, environments_pb2.Outcome] = {}
        self._waiting: dict[tuple[Key, str], environments_pb2.Outcome] = {}
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._acknowledged: set[Key] = set()
        self._acknowledged_order: deque[Key] = deque()

    def __len__(self) -> int:
        """Attempts that are finished and not acknowledged."""
        return len(self._final)

    def is_known(self, key: Key) -> bool:
        """The attempt has finished, acknowledged or not."""
        return key in self._final or key in self._acknowledged

    def started(self, key: Key, start_version: int) -> None:
        """The first kept token came, or came anew after a discard."""
        started = environments_pb2.AttemptStarted(key=key.message(), start_version=start_version)
        self._started[key] = environments_pb2.Outcome(started=started)
        self._queue(key, "started", self._started[key])

    def finished(self, key: Key, outcome: environments_pb2.Outcome) -> None:
        """Keep a final outcome, and send it."""
        self._started.pop(key, None)
        self._waiting.pop((key, "started"), None)
        self._final[key] = outcome
        self._empty.clear()
        self._queue(key, "final", outcome)

    def resend(self, key: Key) -> None:
        """Send again what there is of one attempt."""
        if key in self._final:
            self._queue(key, "final", self._final[key])
        elif key in self._started:
            self._queue(key, "started", self._started[key])

    def acknowledge(self, keys: Iterable[Key]) -> None:
        """Forget outcomes that the runner has committed; repeats and unknown keys are harmless."""
        for key in keys:
            if self._final.pop(key, None) is None:
                continue
            self._waiting.pop((key, "final"), None)
            self._acknowledged.add(key)
            self._acknowledged_order.append(key)
        if not self._final:
            self._empty.set()
        while len(self._acknowledged_order) > REMEMBERED_KEYS:
            self._acknowledged.discard(self._acknowledged_order.popleft())

    async def emptied(self) -> None:
        """Return once nothing is unacknowledged."""
        await self._empty.wait()

    def restart(self) -> None:
        """A new stream: everything of running and unacknowledged attempts is sent again."""
        self._waiting.clear()
        for key in [*self._started, *self._final]:
            self.resend(key)

    async def write(self, write: Callable[[environments_pb2.OutcomeFrame], Awaitable[None]]) -> None:
        """The writer task of one stream: frames of all that waits, up to 64 items, 5 ms apart. Endless."""
        while True:
            await self._wake.wait()
            frame = [self._waiting.pop(name) for name in list(self._waiting)[:MAX_ITEMS]]
            if not self._waiting:
                self._wake.clear()
            if frame:
                await write(environments_pb2.OutcomeFrame(outcomes=frame))
                await asyncio.sleep(MAX_DELAY_S if len(frame) < MAX_ITEMS else 0)

    def _queue(self, key: Key, kind: str, outcome: environments_pb2.Outcome) -> None:
        self._waiting[key, kind] = outcome
        self._wake.set()
