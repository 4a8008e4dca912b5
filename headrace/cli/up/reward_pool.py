"""How many reward workers there should be: none without work, more as the queue grows, none again after a rest."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

QUEUE = "headrace.reward"
TASKS_PER_WORKER = 32
PATIENCE_S = 3.0
IDLE_S = 30.0


@dataclass(slots=True)
class RewardScaler:
    """Decides the size of the pool from the queue's depth.

    It grows at once with the depth, by one whenever work has waited for `PATIENCE_S` (slow graders make short queues
    that stay), and shrinks only after `idle_s` without work, because a start costs half a second and steps
    come every few seconds.
    """

    most: int
    idle_s: float = IDLE_S
    wanted: int = 0
    _busy_at: float = float("-inf")
    _waiting_since: float | None = None

    def on_depth(self, depth: int, now_s: float) -> int:
        """The wanted number of workers, given `depth` tasks that wait."""
        if depth > 0:
            self._busy_at = now_s
            self.wanted = max(self.wanted, min(self.most, math.ceil(depth / TASKS_PER_WORKER)))
            self._grow_for_patience(now_s)
            return self.wanted
        self._waiting_since = None
        if now_s - self._busy_at >= self.idle_s:
            self.wanted = 0
        return self.wanted

    def _grow_for_patience(self, now_s: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = now_s
        elif now_s - self._waiting_since >= PATIENCE_S:
            self.wanted = min(self.most, self.wanted + 1)
            self._waiting_since = now_s


def depth_reader(broker_url: str) -> Callable[[], int | None]:
    """A function that gives the number of waiting reward tasks, or None while the broker does not answer."""
    import redis

    client = redis.Redis.from_url(broker_url, socket_timeout=0.5, socket_connect_timeout=0.5)

    def read() -> int | None:
        with suppress(redis.RedisError):
            return int(client.llen(QUEUE))
        return None

    return read
