"""A stream that reopens: order, what is said first, what a broken one loses, and a goodbye that loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace.cli.up.ports import free_port
from headrace.service.grpc import MAX_MESSAGE_BYTES, channel, server
from headrace.service.streams import Frames, FrameWriter, StreamClient, first_of, pump

METHOD = "/test.Echo/Run"
FRAMES: Frames[str, str] = Frames(lambda items: "\n".join(items).encode(), lambda frame: frame.decode().split("\n"))


class Echo:
    """Answers every item with itself; `hang up` ends the stream, `fail` breaks it."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.streams = 0

    async def run(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.streams += 1
        writer: FrameWriter[str] = FrameWriter(lambda items: context.write("\n".join(items).encode()))

        async def hear(item: str) -> None:
            self.heard.append(item)
            if item == "hang up":
                writer.close()
            elif item == "fail":
                await context.abort(grpc.StatusCode.INTERNAL, "told to fail")
            else:
                await writer.put(item)

        await first_of(pump(requests, FRAMES.unpack, hear), writer.run())


@asynccontextmanager
async def serving(echo: Echo, port: int) -> AsyncIterator[None]:
    grpc_server = server()
    handler = grpc.stream_stream_rpc_method_handler(echo.run)
    grpc_server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test.Echo", {"Run": handler})])
    grpc_server.add_insecure_port(f"127.0.0.1:{port}")
    await grpc_server.start()
    try:
        yield
    finally:
        await grpc_server.stop(grace=0)


class Peer:
    """The client under test, with a record of what its hooks saw."""

    def __init__(self, port: int, opening: list[str] | None = None) -> None:
        self.channel = channel(f"127.0.0.1:{port}")
        self.got: list[str] = []
        self.closed: list[Exception | None] = []
        self.opened = asyncio.Event()
        self._opening = opening
        self.client: StreamClient[str, str] = StreamClient(
            self.channel.stream_stream(METHOD),
            FRAMES,
            on_item=self._on_item,
            on_open=self._on_open,
            on_close=self._on_close,
            name="echo",
        )
        self.running = asyncio.create_task(self.client.run())

    async def _on_item(self, item: str) -> None:
        self.got.append(item)

    async def _on_open(self) -> list[str] | None:
        self.opened.set()
        return self._opening

    async def _on_close(self, reason: Exception | None) -> None:
        self.closed.append(reason)
        self.opened.clear()

    async def until_got(self, n: int, deadline_s: float = 8.0) -> None:
        async with asyncio.timeout(deadline_s):
            while len(self.got) < n:
                await asyncio.sleep(0.005)

    async def end(self) -> None:
        self.client.close()
        await asyncio.wait_for(self.running, 5)
        await self.channel.close()


async def test_items_go_there_and_back_in_order() -> None:
    port = free_port()
    echo = Echo()
    async with serving(echo, port):
        peer = Peer(port, opening=["hello"])
        await asyncio.wait_for(peer.opened.wait(), 5)
        words = [f"word {i}" for i in range(500)]
        assert await peer.client.send(*words)
        await peer.until_got(501)
        assert peer.got == ["hello", *words]
        await peer.end()
    assert echo.heard == ["hello", *words]


async def test_close_writes_what_waits() -> None:
    port = free_port()
    echo = Echo()
    async with serving(echo, port):
        peer = Peer(port)
        await asyncio.wait_for(peer.opened.wait(), 5)
        words = [f"last {i}" for i in range(300)]
        assert await peer.client.send(*words)
        await peer.end()
        assert echo.heard == words


async def test_send_says_when_the_stream_is_down_and_a_new_server_is_found() -> None:
    port = free_port()
    peer = Peer(port, opening=["again"])
    assert not await peer.client.send("lost")
    echo = Echo()
    async with serving(echo, port):
        await peer.until_got(1)
    async with asyncio.timeout(5):
        while peer.client.is_open:
            await asyncio.sleep(0.01)
    assert not await peer.client.send("lost, too")
    async with serving(echo, port):
        await peer.until_got(2)
        assert echo.streams == 2
        await peer.end()
    assert echo.heard == ["again", "again"]


@pytest.mark.parametrize(("word", "reason"), [("hang up", None), ("fail", "told to fail")])
async def test_a_stream_that_ends_or_fails_is_reopened_with_its_reason(word: str, reason: str | None) -> None:
    port = free_port()
    echo = Echo()
    async with serving(echo, port):
        peer = Peer(port, opening=["again"])
        await peer.until_got(1)
        await peer.client.send(word)
        await peer.until_got(2)
        assert len(peer.closed) == 1
        error = peer.closed[0]
        assert error is None if reason is None else reason in str(error)
        await peer.end()


async def test_a_hook_that_raises_ends_the_client() -> None:
    port = free_port()
    async with serving(Echo(), port):
        peer = Peer(port, opening=["x"])

        async def broken(_item: str) -> None:
            raise KeyError("unknown request")

        peer.client._on_item = broken
        with pytest.raises(KeyError, match="unknown request"):
            await asyncio.wait_for(peer.running, 5)
        assert not peer.client.is_open
        await peer.channel.close()


async def test_messages_of_tens_of_mebibytes_pass_and_bigger_ones_are_refused() -> None:
    port = free_port()
    async with serving(Echo(), port), channel(f"127.0.0.1:{port}") as link:
        call = link.stream_stream(METHOD)()
        await call.write(b"x" * (40 << 20))
        assert len(await asyncio.wait_for(call.read(), 20)) == 40 << 20
        with pytest.raises(grpc.aio.AioRpcError, match="SendMessageOperation"):
            await call.write(b"x" * (MAX_MESSAGE_BYTES + 1))
            await call.read()
