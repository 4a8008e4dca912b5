"""The receiving side of a transfer: which chunk to grant next, when to verify a bucket, when to give up.

The receiver posts a receive before it asks for the bytes, so what is in flight never exceeds `window` chunks, whatever
the sender does. A node receives from a publisher and a reader from a node by this same machine.

    waiting ──grant──► receiving ──last chunk──► arrived ──verified──► done
                           ▲                        │
                           └──────── corrupt ◄──────┘   (granted again, at most `max_tries` times)
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.core.weights.errors import BadTransfer


class BucketState(Enum):
    WAITING = "waiting"
    RECEIVING = "receiving"
    ARRIVED = "arrived"
    DONE = "done"
    CORRUPT = "corrupt"


@dataclass(frozen=True)
class ChunkArrived:
    """The receive of these bytes completed."""

    bucket: int
    offset: int


@dataclass(frozen=True)
class BucketVerified:
    bucket: int


@dataclass(frozen=True)
class BucketRejected:
    """The digest of the bytes that arrived is not the manifest's."""

    bucket: int


ReceiveEvent = ChunkArrived | BucketVerified | BucketRejected


@dataclass(frozen=True)
class GrantChunk:
    """Post a receive for bytes [offset, offset + nbytes) of the bucket, then ask for them."""

    bucket: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class VerifyBucket:
    bucket: int


@dataclass(frozen=True)
class ReportCorrupt:
    """Tell the sender, so that it looks at its own copy."""

    bucket: int


@dataclass(frozen=True)
class FinishReceive:
    """Every bucket is done."""


ReceiveAction = GrantChunk | VerifyBucket | ReportCorrupt | FinishReceive

TRANSITIONS: Mapping[BucketState, frozenset[BucketState]] = {
    BucketState.WAITING: frozenset({BucketState.RECEIVING}),
    BucketState.RECEIVING: frozenset({BucketState.ARRIVED}),
    BucketState.ARRIVED: frozenset({BucketState.DONE, BucketState.CORRUPT}),
    BucketState.CORRUPT: frozenset({BucketState.RECEIVING}),
    BucketState.DONE: frozenset(),
}


class _Bucket:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.state = BucketState.WAITING
        self.in_flight: set[int] = set()
        self.n_to_grant = 0
        self.tries = 0
        self.history: list[str] = []


class ReceivePlan:
    """`buckets`: index -> bytes of the buckets to fetch, granted in the order given."""

    def __init__(self, buckets: Mapping[int, int], *, chunk_bytes: int, window: int, max_tries: int = 3) -> None:
        if chunk_bytes <= 0 or window <= 0 or max_tries <= 0 or any(size <= 0 for size in buckets.values()):
            raise ValueError("chunk_bytes, window, max_tries and every bucket's size must be positive")
        self._chunk_bytes = chunk_bytes
        self._window = window
        self._max_tries = max_tries
        self._buckets = {index: _Bucket(nbytes) for index, nbytes in buckets.items()}
        self._queue: deque[GrantChunk] = deque()
        for index in buckets:
            self._enqueue(index)
        self._n_in_flight = 0
        self._n_done = 0

    @property
    def done(self) -> frozenset[int]:
        return frozenset(index for index, bucket in self._buckets.items() if bucket.state is BucketState.DONE)

    @property
    def n_in_flight(self) -> int:
        return self._n_in_flight

    def start(self) -> list[ReceiveAction]:
        return self._finish() if not self._buckets else self._grant()

    def handle(self, event: ReceiveEvent) -> list[ReceiveAction]:
        """Raises BadTransfer when a bucket was rejected `max_tries` times, ValueError for an impossible event."""
        if event.bucket not in self._buckets:
            raise ValueError(f"bucket {event.bucket} is not part of this transfer")
        bucket = self._buckets[event.bucket]
        match event:
            case ChunkArrived():
                return self._arrived(event, bucket)
            case BucketVerified():
                self._move(event.bucket, BucketState.DONE)
                self._n_done += 1
                return self._finish()
            case BucketRejected():
                self._move(event.bucket, BucketState.CORRUPT)
                bucket.tries += 1
                if bucket.tries >= self._max_tries:
                    raise BadTransfer(
                        f"bucket {event.bucket} came with other bytes {bucket.tries} times: {self._story(bucket)}"
                    )
                self._enqueue(event.bucket)
                return [ReportCorrupt(event.bucket), *self._grant()]

    def _arrived(self, event: ChunkArrived, bucket: _Bucket) -> list[ReceiveAction]:
        if event.offset not in bucket.in_flight:
            raise ValueError(f"bucket {event.bucket}: no receive is posted at {event.offset}; {self._story(bucket)}")
        bucket.in_flight.remove(event.offset)
        self._n_in_flight -= 1
        actions = self._grant()
        if not bucket.in_flight and not bucket.n_to_grant:
            self._move(event.bucket, BucketState.ARRIVED)
            actions.append(VerifyBucket(event.bucket))
        return actions

    def _enqueue(self, index: int) -> None:
        bucket = self._buckets[index]
        for offset in range(0, bucket.nbytes, self._chunk_bytes):
            self._queue.append(GrantChunk(index, offset, min(self._chunk_bytes, bucket.nbytes - offset)))
            bucket.n_to_grant += 1

    def _grant(self) -> list[ReceiveAction]:
        actions: list[ReceiveAction] = []
        while self._queue and self._n_in_flight < self._window:
            chunk = self._queue.popleft()
            bucket = self._buckets[chunk.bucket]
            if bucket.state is not BucketState.RECEIVING:
                self._move(chunk.bucket, BucketState.RECEIVING)
            bucket.n_to_grant -= 1
            bucket.in_flight.add(chunk.offset)
            self._n_in_flight += 1
            actions.append(chunk)
        return actions

    def _finish(self) -> list[ReceiveAction]:
        return [FinishReceive()] if self._n_done == len(self._buckets) else []

    def _move(self, index: int, state: BucketState) -> None:
        bucket = self._buckets[index]
        if state not in TRANSITIONS[bucket.state]:
            raise ValueError(f"bucket {index} cannot go {bucket.state.value} -> {state.value}; {self._story(bucket)}")
        bucket.history.append(f"{bucket.state.value} -> {state.value}")
        bucket.state = state

    @staticmethod
    def _story(bucket: _Bucket) -> str:
        return "; ".join(bucket.history) or "nothing happened to it yet"

    def check(self) -> None:
        """Raises AssertionError when credits and states contradict each other."""
        in_flight = sum(len(bucket.in_flight) for bucket in self._buckets.values())
        assert in_flight == self._n_in_flight <= self._window, (in_flight, self._n_in_flight, self._window)
        assert self._n_done == len(self.done)
        for index, bucket in self._buckets.items():
            quiet = bucket.state in {BucketState.DONE, BucketState.ARRIVED, BucketState.WAITING}
            assert not (quiet and bucket.in_flight), (index, bucket.state)
            assert bucket.state is BucketState.RECEIVING or not bucket.in_flight, (index, bucket.state)
        assert sum(bucket.n_to_grant for bucket in self._buckets.values()) == len(self._queue)
        idle = not self._queue or self._n_in_flight == self._window
        assert idle, "credits are left and chunks wait"
