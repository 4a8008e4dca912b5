"""The `Inference` service: streams of environment managers and of the job's runner to the proxy's service."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from headrace.service.streams import FrameWriter, first_of
from headrace.wire.inference.v1 import inference_pb2, inference_pb2_grpc
from inference_svc.proxy.policy import InvalidPolicy
from inference_svc.proxy.service import Fenced, ManageSession, ProxyService

SERVICE_NAME = inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """One handler per stream: it reads here, its writer task writes."""

    def __init__(self, service: ProxyService) -> None:
        self._service = service

    async def Generate(self, request_iterator: AsyncIterator[inference_pb2.GenerateFrame], context: Context) -> None:
        """Carry a caller's requests. When its stream breaks they are orphans: ended soon, unless it comes back."""
        open_requests = _OpenRequests()
        writer: FrameWriter[inference_pb2.TokenChunk] = FrameWriter(
            lambda chunks: context.write(inference_pb2.TokenFrame(chunks=chunks))
        )

        def put(chunk: inference_pb2.TokenChunk) -> None:
            writer.put_nowait(chunk)
            if chunk.finish_reason:
                open_requests.ended(chunk.request_id)

        stream_id = self._service.caller_opened(put)

        async def read() -> None:
            async for frame in request_iterator:
                for command in frame.commands:
                    if command.HasField("start"):
                        open_requests.began(command.start.request_id)
                    self._service.generate(stream_id, command)
            # A caller that has said everything still hears the end of what it asked for.
            await open_requests.all_ended()
            writer.close()
            await asyncio.Event().wait()

        try:
            await first_of(read(), writer.run())
        finally:
            self._service.caller_closed(stream_id)

    async def Manage(self, request_iterator: AsyncIterator[inference_pb2.ManageFrame], context: Context) -> None:
        """Serve a runner until it goes or a newer one takes over: FAILED_PRECONDITION then."""
        writer: FrameWriter[inference_pb2.ManageEvent] = FrameWriter(
            lambda events: context.write(inference_pb2.ManageEventFrame(events=events))
        )
        session = ManageSession(writer.put_nowait, asyncio.get_running_loop().create_future())

        async def be_fenced() -> None:
            raise Fenced(await session.ended)

        try:
            await first_of(self._read_runner(session, request_iterator), writer.run(), be_fenced())
        except Fenced as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except (InvalidPolicy, ValueError) as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        finally:
            self._service.manage_closed(session)

    async def _read_runner(self, session: ManageSession, frames: AsyncIterator[inference_pb2.ManageFrame]) -> None:
        async for frame in frames:
            for command in frame.commands:
                if command.HasField("open"):
                    self._service.manage_opened(session, command.open)
                elif not session.job_id:
                    raise ValueError("the first command of a Manage stream must be OpenRollout")
                else:
                    self._service.manage(session, command)


class _OpenRequests:
    """Requests of a stream without a last chunk yet."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._none = asyncio.Event()
        self._none.set()

    def began(self, request_id: str) -> None:
        self._ids.add(request_id)
        self._none.clear()

    def ended(self, request_id: str) -> None:
        self._ids.discard(request_id)
        if not self._ids:
            self._none.set()

    async def all_ended(self) -> None:
        await self._none.wait()
