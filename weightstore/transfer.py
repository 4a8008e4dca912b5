"""Moves buckets over a link, as the core's ReceivePlan says: post the receive, ask, wait, verify."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.core.weights.errors import BadTransfer, PeerLost
from headrace.core.weights.receive import (
    BucketRejected,
    BucketVerified,
    ChunkArrived,
    FinishReceive,
    GrantChunk,
    ReceiveAction,
    ReceiveEvent,
    ReceivePlan,
    ReportCorrupt,
    VerifyBucket,
)
from weightstore.link import Link
from weightstore.memory import Bytes

EXPLAIN_S = 0.5


@dataclass(frozen=True)
class Credit:
    """A posted receive for bytes [offset, offset + nbytes) of a bucket."""

    bucket: int
    offset: int
    nbytes: int
    tag: int


@dataclass(frozen=True)
class Request:
    """What the receiver tells the sender in one go; buckets in `corrupt` come before their new credits."""

    credits: tuple[Credit, ...]
    corrupt: tuple[int, ...]


class Target(Protocol):
    """Where the bytes go."""

    def memory(self, bucket: int) -> Bytes: ...

    async def verify(self, bucket: int) -> bool:
        """Whether the bucket's bytes are the right ones; if so it counts from now on."""


class Receiver:
    """Runs one plan. `ask` carries a request to the sender."""

    def __init__(
        self, link: Link, plan: ReceivePlan, target: Target, ask: Callable[[Request], Awaitable[None]]
    ) -> None:
        self._link = link
        self._plan = plan
        self._target = target
        self._ask = ask
        self._events: asyncio.Queue[ReceiveEvent | BaseException] = asyncio.Queue()

    def interrupt(self, error: BaseException) -> None:
        """Ends `run` with this error, whatever it waits for."""
        self._events.put_nowait(error)

    async def run(self) -> None:
        """Returns when every bucket is verified. On an error the link has receives posted and must be closed."""
        actions = self._plan.start()
        while not await self._perform(actions):
            event = await self._events.get()
            if isinstance(event, BaseException):
                raise event
            actions = self._plan.handle(event)

    async def _perform(self, actions: list[ReceiveAction]) -> bool:
        """True when the plan is finished."""
        granted: list[Credit] = []
        corrupt: list[int] = []
        arrived: list[int] = []
        is_finished = False
        for action in actions:
            match action:
                case GrantChunk():
                    granted.append(self._post(action))
                case ReportCorrupt(bucket):
                    corrupt.append(bucket)
                case VerifyBucket(bucket):
                    arrived.append(bucket)
                case FinishReceive():
                    is_finished = True
        if granted or corrupt:
            await self._ask(Request(tuple(granted), tuple(corrupt)))
        for bucket in arrived:  # after asking, so that the next chunks travel meanwhile
            is_right = await self._target.verify(bucket)
            self._events.put_nowait(BucketVerified(bucket) if is_right else BucketRejected(bucket))
        return is_finished

    def _post(self, chunk: GrantChunk) -> Credit:
        tag = self._link.new_tag()
        memory = self._target.memory(chunk.bucket)[chunk.offset : chunk.offset + chunk.nbytes]
        future = self._link.receive(memory, tag)

        def settle(done: asyncio.Future[None]) -> None:
            error = PeerLost("the receive was cancelled") if done.cancelled() else done.exception()
            self._events.put_nowait(error or ChunkArrived(chunk.bucket, chunk.offset))

        future.add_done_callback(settle)
        return Credit(chunk.bucket, chunk.offset, chunk.nbytes, tag)


class Sender:
    """Answers credits. `source` gives a bucket's bytes; they are kept alive until the last send of them completed."""

    def __init__(self, link: Link, source: Callable[[int], Bytes]) -> None:
        self._link = link
        self._source = source
        self._sends: set[asyncio.Future[None]] = set()
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.bytes_sent = 0

    def send(self, credit: Credit) -> None:
        """Raises BadTransfer for a credit that lies outside its bucket."""
        bucket = self._source(credit.bucket)
        end = credit.offset + credit.nbytes
        if not 0 <= credit.offset < end <= bucket.nbytes:
            raise BadTransfer(
                f"bucket {credit.bucket} has {bucket.nbytes} bytes, the other side asks for [{credit.offset}, {end})"
            )
        future = self._link.send(bucket[credit.offset : end], credit.tag)
        self.bytes_sent += credit.nbytes
        self._sends.add(future)
        future.add_done_callback(self._settle)

    async def drain(self) -> None:
        """Returns when everything asked for so far has left; raises PeerLost."""
        await asyncio.gather(*self._sends)

    @property
    def is_idle(self) -> bool:
        return not self._sends

    def _settle(self, done: asyncio.Future[None]) -> None:
        self._sends.discard(done)
        error = PeerLost("the send was cancelled") if done.cancelled() else done.exception()
        if error is not None and not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # `beside` may never look


async def beside(work: Awaitable[Any], failure: asyncio.Future[None]) -> Any:
    """The result of `work`, unless `failure` comes and `work` does not end soon after; then the failure is raised."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task, failure], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            # The other side may have closed its link because of an error that it is about to explain.
            await asyncio.wait([task], timeout=EXPLAIN_S)
        if not task.done():
            failure.result()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
