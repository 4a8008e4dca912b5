"""`Trainer` on the wire."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

from headrace.service.streams import FrameWriter, first_of, pump
from headrace.wire.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from trainer_svc.commands import Stream


class Trainer(Protocol):
    """What stands behind the wire: one job at a time, its commands in order."""

    async def submit(self, stream: Stream, command: trainer_pb2.TrainerCommand) -> None: ...
    def describe(self, path: str) -> trainer_pb2.InspectResponse: ...


class TrainerServicer(trainer_pb2_grpc.TrainerServicer):
    """Streams in and out of one trainer."""

    def __init__(self, service: Trainer) -> None:
        self._service = service

    async def Run(self, request_iterator: AsyncIterator[trainer_pb2.TrainerFrame], context: Any) -> None:
        """Commands in, events out. Work goes on when the stream breaks; the next one to open gets its events."""
        writer: FrameWriter[trainer_pb2.TrainerEvent] = FrameWriter(
            lambda events: context.write(trainer_pb2.TrainerEventFrame(events=events)),
            size=lambda event: event.ByteSize(),
        )
        stream = Stream(writer.put_nowait)
        await first_of(
            pump(
                aiter(request_iterator),
                lambda frame: frame.commands,
                lambda command: self._service.submit(stream, command),
            ),
            writer.run(),
        )

    async def Inspect(self, request: trainer_pb2.InspectRequest, context: Any) -> trainer_pb2.InspectResponse:
        """What a model directory holds, or the fault that says why it cannot be trained."""
        return await asyncio.to_thread(self._service.describe, request.model_path)
