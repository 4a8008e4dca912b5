"""Items leave in order, many a frame, bounded, and never get lost without a word."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.service.streams import FrameWriter, first_of, pump


class Sink:
    """Records frames; a gate holds writes back."""

    def __init__(self) -> None:
        self.frames: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def write(self, items: list[int]) -> None:
        await self.gate.wait()
        self.frames.append(list(items))

    @property
    def items(self) -> list[int]:
        return [item for frame in self.frames for item in frame]


async def test_what_waits_goes_into_frames_of_at_most_64() -> None:
    sink = Sink()
    writer: FrameWriter[int] = FrameWriter(sink.write)
    for item in range(200):
        await writer.put(item)
    writer.close()
    await writer.run()
    assert sink.items == list(range(200))
    assert [len(frame) for frame in sink.frames] == [64, 64, 64, 8]


async def test_the_first_item_after_a_quiet_time_leaves_at_once() -> None:
    sink = Sink()
    writer: FrameWriter[int] = FrameWriter(sink.write, max_delay_s=30)
    task = asyncio.create_task(writer.run())
    await writer.put(1)
    await asyncio.sleep(0.01)
    assert sink.frames == [[1]]
    await writer.put(2)
    await asyncio.sleep(0.01)
    assert sink.frames == [[1]], "the second waits for company"
    writer.close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_full_frame_does_not_wait_for_the_delay() -> None:
    sink = Sink()
    writer: FrameWriter[int] = FrameWriter(sink.write, max_delay_s=30, max_items=4)
    task = asyncio.create_task(writer.run())
    await writer.put(0)
    await asyncio.sleep(0.01)
    for item in range(1, 5):
        await writer.put(item)
    sink.gate.set()
    writer.close()
    await asyncio.wait_for(task, 1)
    assert sink.items == [0, 1, 2, 3, 4]


async def test_put_waits_while_the_writer_is_behind() -> None:
    sink = Sink()
    sink.gate.clear()
    writer: FrameWriter[int] = FrameWriter(sink.write, capacity=2, max_items=1, max_delay_s=0)
    task = asyncio.create_task(writer.run())
    assert await writer.put(1)
    await asyncio.sleep(0)
    await writer.put(2)
    await writer.put(3)
    blocked = asyncio.create_task(writer.put(4))
    await asyncio.sleep(0.01)
    assert not blocked.done()
    sink.gate.set()
    assert await asyncio.wait_for(blocked, 1)
    writer.close()
    await task
    assert sink.items == [1, 2, 3, 4]


async def test_a_put_that_waits_learns_that_the_writer_died() -> None:
    async def fail(_items: list[int]) -> None:
        await asyncio.sleep(0.01)
        raise ConnectionError("gone")

    writer: FrameWriter[int] = FrameWriter(fail, capacity=1)
    task = asyncio.create_task(writer.run())
    await writer.put(1)
    await asyncio.sleep(0)
    await writer.put(2)
    assert not await asyncio.wait_for(writer.put(3), 1)
    with pytest.raises(ConnectionError):
        await task
    assert not writer.put_nowait(4)


async def test_first_items_come_before_what_was_put() -> None:
    sink = Sink()
    writer: FrameWriter[int] = FrameWriter(sink.write, first=[1, 2])
    writer.put_nowait(3)
    writer.close()
    await writer.run()
    assert sink.items == [1, 2, 3]


@settings(max_examples=200)
@given(st.lists(st.integers(1, 100)), st.integers(1, 10), st.integers(1, 150))
def test_frames_keep_order_and_limits(sizes: list[int], max_items: int, max_bytes: int) -> None:
    frames: list[list[int]] = []

    async def write(items: list[int]) -> None:
        frames.append(items)

    async def run() -> None:
        writer: FrameWriter[int] = FrameWriter(
            write, first=sizes, max_items=max_items, max_delay_s=0, size=lambda item: item, max_bytes=max_bytes
        )
        writer.close()
        await writer.run()

    asyncio.run(run())
    assert [item for frame in frames for item in frame] == sizes
    assert all(len(frame) <= max_items for frame in frames)
    assert all(len(frame) == 1 or sum(frame) <= max_bytes for frame in frames), "a bigger item travels alone"


async def test_pump_hands_on_in_order_and_ends_with_the_stream() -> None:
    async def frames() -> object:
        yield [1, 2]
        yield [3]

    got: list[int] = []

    async def sink(item: int) -> None:
        got.append(item)

    await pump(frames(), lambda frame: frame, sink)  # type: ignore[arg-type]
    assert got == [1, 2, 3]


async def test_first_of_ends_the_others_and_raises_what_failed() -> None:
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def ends() -> None:
        return None

    async def fails() -> None:
        raise ValueError("broken")

    await first_of(endless(), ends())
    assert cancelled.is_set()
    with pytest.raises(ValueError, match="broken"):
        await first_of(endless(), fails())
