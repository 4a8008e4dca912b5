"""Long-lived streams: one reader task and one writer task each, many items a frame, reopened when they break.

    put ─► queue ─► FrameWriter ─► frame of ≤ 64 items ─► stream ─► pump ─► queue or callback

A read is never cancelled to keep a deadline, because in grpc.aio that cancels the whole call: deadlines are kept on
queues. Nothing that matters lives in a stream: when one breaks, its unsent items are dropped, and `on_open` of the
next one sends again what the owner still needs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from headrace.service.backoff import delays_s
from headrace.service.logging import get_logger

MAX_ITEMS = 64
MAX_DELAY_S = 0.005
MAX_FRAME_BYTES = 8 * 1024 * 1024
CAPACITY = 4096
GOODBYE_S = 1.0

Item = TypeVar("Item")
Sent = TypeVar("Sent")
Received = TypeVar("Received")

log = get_logger(__name__)


class FrameWriter(Generic[Item]):
    """Gathers items into frames for one stream.

    The first item after a quiet time leaves at once; under load a frame leaves every `max_delay_s` or `max_items`
    items. `write` makes the frame and sends it. `size` (bytes of an item), where given, also bounds a frame by
    `max_bytes`, so that big items do not add up to a message above the limit. `first` is sent before anything that
    is put.
    """

    def __init__(
        self,
        write: Callable[[list[Item]], Awaitable[Any]],
        *,
        first: Iterable[Item] = (),
        max_items: int = MAX_ITEMS,
        max_delay_s: float = MAX_DELAY_S,
        capacity: int = CAPACITY,
        size: Callable[[Item], int] | None = None,
        max_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._write = write
        self._max_items = max_items
        self._max_delay_s = max_delay_s
        self._capacity = capacity
        self._size = size
        self._max_bytes = max_bytes
        self._items: deque[Item] = deque(first)
        self._has_items = asyncio.Event()
        self._has_room = asyncio.Event()
        self._is_closed = False

    def __len__(self) -> int:
        """Items that wait."""
        return len(self._items)

    async def put(self, item: Item) -> bool:
        """Queue an item; waits while `capacity` items wait already. False: the writer has ended, the item is lost."""
        while len(self._items) >= self._capacity and not self._is_closed:
            self._has_room.clear()
            await self._has_room.wait()
        return self.put_nowait(item)

    def put_nowait(self, item: Item) -> bool:
        """Queue an item whatever the capacity: for the few that an event loop callback has to say."""
        if self._is_closed:
            return False
        self._items.append(item)
        self._has_items.set()
        return True

    def close(self) -> None:
        """Let `run` end once everything that waits is written."""
        self._is_closed = True
        self._has_items.set()
        self._has_room.set()

    async def run(self) -> None:
        """The writer task. Ends after `close`, by cancellation, or by the error of `write`."""
        loop = asyncio.get_running_loop()
        wrote_at = float("-inf")
        try:
            while await self._wait_for_items():
                linger_s = wrote_at + self._max_delay_s - loop.time()
                if linger_s > 0 and len(self._items) < self._max_items and not self._is_closed:
                    await asyncio.sleep(linger_s)
                wrote_at = loop.time()
                await self._write(self._gather())
        finally:
            self.close()

    async def _wait_for_items(self) -> bool:
        while not self._items:
            if self._is_closed:
                return False
            self._has_items.clear()
            await self._has_items.wait()
        return True

    def _gather(self) -> list[Item]:
        gathered: list[Item] = []
        used = 0
        while self._items and len(gathered) < self._max_items:
            used += self._size(self._items[0]) if self._size else 0
            if gathered and used > self._max_bytes:
                break
            gathered.append(self._items.popleft())
        self._has_room.set()
        return gathered


async def pump(
    frames: AsyncIterable[Any], unpack: Callable[[Any], Iterable[Item]], sink: Callable[[Item], Awaitable[None]]
) -> None:
    """The reader task: give every item of every frame to `sink` (a `queue.put`, or a handler), in order.

    Returns when the peer closes its side; raises what the stream raises. A slow sink slows the peer down.
    """
    async for frame in frames:
        for item in unpack(frame):
            await sink(item)


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    """Run coroutines side by side until one ends or fails; the others are cancelled and waited for.

    A servicer's method is `await first_of(pump(requests, …), writer.run())`: it ends with its client.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _nothing() -> None:
    return None


async def _ignore(_error: Exception | None) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Frames(Generic[Sent, Received]):
    """How the items of a stream travel: `Frames(lambda items: CommandFrame(commands=items), lambda f: f.outcomes)`.

    `size` gives the bytes of an item, for streams whose items can be big (`lambda item: item.ByteSize()`).
    """

    pack: Callable[[list[Sent]], Any]
    unpack: Callable[[Any], Iterable[Received]]
    size: Callable[[Sent], int] | None = None


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """`capacity`: items that may wait before `send` does."""

    connect_timeout_s: float = 5.0
    capacity: int = CAPACITY


class StreamClient(Generic[Sent, Received]):
    """One bidirectional stream kept open to one peer until `close`.

    `open_call` starts the call, `frames` turns items into a message and back. `on_open` runs once a
    connection stands; the items that it returns are sent before any other, so it says what the peer has to know.
    `on_item` gets what arrives, in order; `on_close` gets the reason (None: the peer ended the stream). An exception
    of a hook ends `run`.
    """

    def __init__(
        self,
        open_call: Callable[[], Any],
        frames: Frames[Sent, Received],
        *,
        on_item: Callable[[Received], Awaitable[None]],
        on_open: Callable[[], Awaitable[Iterable[Sent] | None]] = _nothing,
        on_close: Callable[[Exception | None], Awaitable[None]] = _ignore,
        name: str = "stream",
        limits: StreamLimits = StreamLimits(),
    ) -> None:
        self._open_call = open_call
        self._frames = frames
        self._on_item = on_item
        self._on_open = on_open
        self._on_close = on_close
        self._name = name
        self._limits = limits
        self._writer: FrameWriter[Sent] | None = None
        self._closing = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether items can be sent now."""
        return self._writer is not None

    async def send(self, *items: Sent) -> bool:
        """Queue items in order. False when the stream is down: what still matters is for `on_open` to say again."""
        writer = self._writer
        if writer is None:
            return False
        for item in items:
            if not await writer.put(item):
                return False
        return True

    def send_nowait(self, *items: Sent) -> bool:
        """As `send`, without flow control: for an owner that bounds by other means what can wait."""
        writer = self._writer
        return writer is not None and all(writer.put_nowait(item) for item in items)

    def close(self) -> None:
        """Make `run` end; what waits is written first."""
        self._closing.set()
        if self._writer is not None:
            self._writer.close()

    async def run(self) -> None:
        """Keep the stream open. Ends after `close`, or by cancellation."""
        delays = delays_s()
        while not self._closing.is_set():
            if await self._once():
                delays = delays_s()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), next(delays))

    async def _once(self) -> bool:
        """One connection. True if it stood."""
        call = self._open_call()
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                await call.wait_for_connection()
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            log.debug("stream_refused", stream=self._name, reason=_reason(error))
            call.cancel()
            return False
        reason: Exception | None = None
        try:
            await self._carry(call)
        except grpc.aio.AioRpcError as error:
            reason = error
        finally:
            self._writer = None
            call.cancel()
        log.info("stream_closed", stream=self._name, reason=_reason(reason))
        await self._on_close(reason)
        return True

    async def _carry(self, call: Any) -> None:
        opening = await self._on_open()
        # No await between the answer of on_open and this: what others send from here on comes after it.
        writer: FrameWriter[Sent] = FrameWriter(
            lambda items: call.write(self._frames.pack(items)),
            first=opening or (),
            capacity=self._limits.capacity,
            size=self._frames.size,
        )
        self._writer = writer
        log.info("stream_open", stream=self._name)
        if self._closing.is_set():
            writer.close()
        await first_of(pump(call, self._frames.unpack, self._on_item), self._write_all(writer, call))

    async def _write_all(self, writer: FrameWriter[Sent], call: Any) -> None:
        await writer.run()
        await call.done_writing()
        # The peer's half ends when it has read everything; past this it is cut.
        await asyncio.sleep(GOODBYE_S)


def _reason(error: Exception | None) -> str:
    if error is None:
        return "ended by the peer"
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
