"""The stream to one engine worker: opened, greeted, reopened with back-off."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from headrace.core.membership import Member
from headrace.service.grpc import channel
from headrace.service.logging import get_logger
from headrace.service.streams import Frames, StreamClient
from headrace.wire.engine.v1 import engine_pb2, engine_pb2_grpc

log = get_logger(__name__)


class LinkOwner(Protocol):
    """Who hears of what a worker says."""

    def link_opened(self, worker_id: str, hello: engine_pb2.EngineHello) -> None: ...
    def link_closed(self, worker_id: str, detail: str) -> None: ...
    def engine_event(self, worker_id: str, event: engine_pb2.EngineEvent) -> None: ...
    def opening(self) -> engine_pb2.OpenEngine: ...


class EngineLink:
    """One worker's stream. The worker counts as connected from the Hello that answers our Open, since the one before
    it may speak of another job's weights."""

    def __init__(self, member: Member, owner: LinkOwner, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.member = member
        self._owner = owner
        self._clock = clock
        self._channel = channel(member.address)
        self._n_hellos = 0
        self._heard_at = clock()
        self._connected_at: float | None = None
        self.is_greeted = False
        self._stream = self._make_stream()
        self._task = asyncio.create_task(self._stream.run())

    def send(self, command: engine_pb2.EngineCommand) -> bool:
        """Queue a command; False when the stream is down, and its owner will hear of that."""
        return self._stream.send_nowait(command)

    def is_silent(self, *, silence_s: float, hello_s: float) -> bool:
        """Whether a standing stream has said nothing for too long."""
        if self._connected_at is None:
            return False
        return self._clock() - self._heard_at > (silence_s if self.is_greeted else hello_s)

    async def reset(self, reason: str) -> None:
        """Cut the stream and open another one."""
        log.warning("engine_link_reset", worker_id=self.member.worker_id, reason=reason)
        self._connected_at = None
        await self._stop()
        self._lost(reason)
        self._stream = self._make_stream()
        self._task = asyncio.create_task(self._stream.run())

    async def close(self) -> None:
        await self._stop()
        await self._channel.close(None)

    async def _stop(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _make_stream(self) -> StreamClient[engine_pb2.EngineCommand, engine_pb2.EngineEvent]:
        stub = engine_pb2_grpc.EngineStub(self._channel)
        return StreamClient(
            stub.Run,
            Frames(lambda items: engine_pb2.EngineFrame(commands=items), lambda frame: frame.events, _size),
            on_open=self._on_open,
            on_item=self._on_item,
            on_close=self._on_close,
            name=f"engine {self.member.worker_id}",
        )

    async def _on_open(self) -> Iterable[engine_pb2.EngineCommand]:
        self._n_hellos, self.is_greeted = 0, False
        self._heard_at = self._connected_at = self._clock()
        return [engine_pb2.EngineCommand(open=self._owner.opening())]

    async def _on_item(self, event: engine_pb2.EngineEvent) -> None:
        self._heard_at = self._clock()
        if event.WhichOneof("event") == "hello":
            self._hello(event.hello)
        if self.is_greeted:
            self._owner.engine_event(self.member.worker_id, event)

    def _hello(self, hello: engine_pb2.EngineHello) -> None:
        if hello.worker_id != self.member.worker_id:
            # Another process took the address over; the control plane will name it by its own id.
            log.warning("engine_is_another", worker_id=self.member.worker_id, found=hello.worker_id)
            return
        self._n_hellos += 1
        if self._n_hellos == 2:
            self.is_greeted = True
            self._owner.link_opened(self.member.worker_id, hello)

    async def _on_close(self, error: Exception | None) -> None:
        self._lost(str(error) if error else "the worker ended the stream")

    def _lost(self, reason: str) -> None:
        was_greeted, self.is_greeted, self._connected_at = self.is_greeted, False, None
        if was_greeted:
            self._owner.link_closed(self.member.worker_id, reason)


def _size(command: engine_pb2.EngineCommand) -> int:
    return command.ByteSize()
