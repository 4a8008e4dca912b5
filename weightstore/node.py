"""One node: versions in host memory. What is allowed and what is freed is decided by the core's StoreState."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from headrace.core.weights.errors import BadTransfer, StoreFull
from headrace.core.weights.manifest import Manifest
from headrace.core.weights.receive import ReceivePlan
from headrace.core.weights.store import StoreState, VersionRecord
from headrace.core.weights.store_events import (
    BucketArrived,
    BucketDamaged,
    FreeBucket,
    PublishBegan,
    PublishBroke,
    PublishFinished,
    ReaderClosed,
    ReaderOpened,
    ReceiveBucket,
    StoreAction,
    StoreEvent,
    TimePassed,
    VersionKey,
    version_key,
)
from weightstore.digest import digest_of_async
from weightstore.memory import BufferPool, Bytes
from weightstore.session import Session, Sessions
from weightstore.transfer import Receiver, Request

SWEEP_S = 1.0


@dataclass(frozen=True)
class Limits:
    """`chunk_bytes` is one UCX message, `window` how many of them are in flight in one transfer."""

    memory_cap_bytes: int
    chunk_bytes: int = 8 * 1024 * 1024
    window: int = 4
    txn_ttl_s: float = 600.0
    session_idle_s: float = 600.0


@dataclass(frozen=True)
class PushOutcome:
    bytes_moved: int
    bytes_saved: int


class Node:
    """Use within one event loop; `sweep_forever` beside it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.store = StoreState(cap_bytes=limits.memory_cap_bytes, ttl_s=limits.txn_ttl_s)
        self.sessions = Sessions(idle_s=limits.session_idle_s)
        self.bytes_in = 0
        self.bytes_out = 0
        self._pool = BufferPool(limits.memory_cap_bytes)
        self._buckets: dict[str, Bytes] = {}
        self._freed = asyncio.Event()
        self._push_ids = itertools.count(1)

    def apply(self, event: StoreEvent) -> list[StoreAction]:
        """Tells the store what happened and frees what it gives up. Raises WeightsError."""
        actions = self.store.handle(event, time.monotonic())
        is_freed = False
        for action in actions:
            if isinstance(action, FreeBucket):
                self._pool.give(self._buckets.pop(action.digest))
                is_freed = True
        if is_freed:
            self._freed.set()
        return actions

    async def publish(
        self,
        session: Session,
        manifest: Manifest,
        *,
        epoch: int,
        space_wait_s: float,
        ask: Callable[[Request], Awaitable[None]],
    ) -> PushOutcome:
        """Receives what is missing of the version and seals it. The session ends if this does not succeed midway."""
        push_id = next(self._push_ids)
        wanted = await self._begin(PublishBegan(manifest, epoch, push_id), space_wait_s)
        key = version_key(manifest)

        def keep(digest: str, memory: Bytes) -> bool:
            self.apply(BucketArrived(key, push_id, digest))
            return self._keep(digest, memory)

        landing = _Landing(manifest, {action.digest for action in wanted}, self._pool, keep)
        receiver = Receiver(session.link, landing.plan(self.limits), landing, ask)
        is_sealed = False
        session.n_transfers += 1
        try:
            await receiver.run()
            self.apply(PublishFinished(key, push_id))
            is_sealed = True
        finally:
            session.n_transfers -= 1
            is_destroyed = is_sealed or self.sessions.close(session.session_id)
            landing.clear(is_reusable=is_destroyed)
            if not is_sealed:
                self.apply(PublishBroke(key, push_id))
        self.bytes_in += landing.bytes_moved
        return PushOutcome(landing.bytes_moved, manifest.total_bytes - landing.bytes_moved)

    async def _begin(self, event: PublishBegan, space_wait_s: float) -> list[ReceiveBucket]:
        """Waits for room as long as it is allowed to; nothing is evicted for it."""
        give_up_s = time.monotonic() + space_wait_s
        while True:
            try:
                return [action for action in self.apply(event) if isinstance(action, ReceiveBucket)]
            except StoreFull as full:
                left_s = give_up_s - time.monotonic()
                if not full.retryable or left_s <= 0:
                    raise
                await self._wait_for_room(left_s)

    async def _wait_for_room(self, timeout_s: float) -> None:
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._freed.wait()

    def _keep(self, digest: str, memory: Bytes) -> bool:
        """Puts a verified bucket in its place; False when the node has it already."""
        if digest in self._buckets:
            return False
        self._buckets[digest] = memory
        return True

    @contextmanager
    def reading(self, key: VersionKey) -> Iterator[VersionRecord]:
        """While inside, the version's bytes stay. Raises NotResident."""
        self.apply(ReaderOpened(key))
        try:
            yield self.store.record(key)
        finally:
            self.apply(ReaderClosed(key))

    def bucket(self, digest: str) -> Bytes:
        """Raises BadTransfer when it was found damaged meanwhile."""
        if digest not in self._buckets:
            raise BadTransfer(f"bucket {digest} was damaged on the node; the version has to be pushed again")
        return self._buckets[digest]

    async def check_bucket(self, digest: str) -> None:
        """Looks at the node's own copy. Raises BadTransfer, and gives the copy up, when it is the bad one."""
        memory = self.bucket(digest)
        if await digest_of_async(memory) != digest and self._buckets.get(digest) is memory:
            # Not back to the pool: other readers may be sending from it.
            del self._buckets[digest]
            self._pool.forget(memory)
            self.store.handle(BucketDamaged(digest), time.monotonic())
            raise BadTransfer(f"bucket {digest} is damaged on the node; the version has to be pushed again")

    async def sweep_forever(self) -> None:
        """Ends what expired and sessions of the dead."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sessions.sweep()
            self.apply(TimePassed())

    def close(self) -> None:
        self.sessions.close_all()


class _Landing:
    """Where one push lands: a fresh buffer per missing bucket, handed to the node when its digest is right."""

    def __init__(
        self, manifest: Manifest, missing: set[str], pool: BufferPool, keep: Callable[[str, Bytes], bool]
    ) -> None:
        self._keep = keep
        self._pool = pool
        # Two equal buckets of one version are sent once.
        self._index = {bucket.digest: index for index, bucket in reversed([*enumerate(manifest.buckets)])}
        self._index = {digest: index for digest, index in self._index.items() if digest in missing}
        self._digests = {index: digest for digest, index in self._index.items()}
        self._sizes = {index: manifest.buckets[index].nbytes for index in sorted(self._digests)}
        self._memory: dict[int, Bytes] = {}
        self.bytes_moved = 0

    def plan(self, limits: Limits) -> ReceivePlan:
        # One try: a publisher that sends other bytes than it announced has no better ones.
        return ReceivePlan(self._sizes, chunk_bytes=limits.chunk_bytes, window=limits.window, max_tries=1)

    def memory(self, bucket: int) -> Bytes:
        if bucket not in self._memory:
            self._memory[bucket] = self._pool.take(self._sizes[bucket])
        return self._memory[bucket]

    async def verify(self, bucket: int) -> bool:
        memory = self._memory[bucket]
        self.bytes_moved += memory.nbytes
        digest = self._digests[bucket]
        if await digest_of_async(memory) != digest:
            return False
        if self._keep(digest, memory):
            del self._memory[bucket]
        return True

    def clear(self, *, is_reusable: bool) -> None:
        """Buffers that did not make it into the node."""
        for memory in self._memory.values():
            if is_reusable:
                self._pool.give(memory)
            else:
                self._pool.forget(memory)
        self._memory.clear()
