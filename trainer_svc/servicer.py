"""`Trainer` on the wire."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from headrace.service.streams import FrameWriter, first_of, pump
from headrace.wire.common.v1 import common_pb2
from headrace.wire.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from trainer_svc import model_dir
from trainer_svc.errors import ModelUnusable
from trainer_svc.service import Stream, TrainerService


class TrainerServicer(trainer_pb2_grpc.TrainerServicer):
    """Streams in and out of one TrainerService."""

    def __init__(self, service: TrainerService) -> None:
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
        try:
            facts = await asyncio.to_thread(model_dir.inspect, request.model_path)
        except ModelUnusable as error:
            fault = common_pb2.Fault(code=error.code, kind="infra", detail=str(error))
            return trainer_pb2.InspectResponse(fault=fault)
        return trainer_pb2.InspectResponse(
            architecture=facts.architecture, vocab_size=facts.vocab_size, max_len=facts.max_len
        )
