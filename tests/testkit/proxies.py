"""A scripted LLM proxy on a real gRPC server, strict about what it is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from headrace.service.grpc import server
from headrace.service.streams import FrameWriter
from headrace.wire.common.v1 import common_pb2
from headrace.wire.inference.v1 import inference_pb2, inference_pb2_grpc

Start = inference_pb2.StartGeneration
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH


@dataclass
class Turn:
    """What the model says: ids, how it ends, and how many tokens a chunk carries."""

    ids: Sequence[int]
    finish: int = STOP
    chunk_size: int = 2
    version: int = 0
    delay_s: float = 0.0


@dataclass
class ScriptedProxy(inference_pb2_grpc.InferenceServicer):
    """``script(start)`` gives each turn; what it is told is kept: ``starts``, ``aborts``, ``ended`` and ``named``
    (by stream, the trajectories that it names first)."""

    script: Callable[[Start], Turn]
    starts: list[Start] = field(default_factory=list)
    aborts: list[str] = field(default_factory=list)
    ended: list[tuple[str, int]] = field(default_factory=list)
    named: list[list[str]] = field(default_factory=list)
    n_streams: int = 0
    address: str = ""
    _server: Any = None
    _contexts: list[Any] = field(default_factory=list)

    async def __aenter__(self) -> "ScriptedProxy":
        await self.listen(0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def listen(self, port: int) -> None:
        self._server = server()
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        """Cut every stream, as a killed process does."""
        await self._server.stop(None)

    async def Generate(self, request_iterator: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        self.n_streams += 1
        writer: FrameWriter[Any] = FrameWriter(lambda chunks: context.write(inference_pb2.TokenFrame(chunks=chunks)))
        async with asyncio.TaskGroup() as speaking:
            writing = speaking.create_task(writer.run())
            try:
                async for frame in request_iterator:
                    for command in frame.commands:
                        if command.HasField("abort"):
                            self.aborts.append(command.abort.request_id)
                            continue
                        if command.HasField("live"):
                            assert self.n_streams == len(self.named) + 1, "a second naming on one stream"
                            self.named.append(sorted(one.key.trajectory_id for one in command.live.trajectories))
                            continue
                        if command.HasField("end"):
                            self.ended.append((command.end.key.trajectory_id, command.end.key.attempt))
                            continue
                        check(command.start)
                        self.starts.append(command.start)
                        speaking.create_task(self._speak(command.start, writer))
            finally:
                writing.cancel()

    async def _speak(self, start: Start, writer: FrameWriter[Any]) -> None:
        turn = self.script(start)
        ids = list(turn.ids)
        assert ids[: len(start.kept_token_ids)] == list(start.kept_token_ids), "kept tokens are not of this turn"
        offset = len(start.kept_token_ids)
        while True:
            await asyncio.sleep(turn.delay_s)
            part = ids[offset : offset + turn.chunk_size]
            is_last = offset + len(part) >= len(ids)
            await writer.put(chunk(start, offset, part, turn, is_last=is_last))
            offset += len(part)
            if is_last:
                return


def chunk(start: Start, offset: int, ids: Sequence[int], turn: Turn, *, is_last: bool) -> inference_pb2.TokenChunk:
    """Tokens of a turn on the wire; the logprob of id i is -i / 100."""
    return inference_pb2.TokenChunk(
        request_id=start.request_id,
        assignment_epoch=start.assignment_epoch,
        offset=offset,
        token_ids=ids,
        logprobs=[-i / 100 for i in ids],
        policy_version=turn.version,
        worker_id="inference-0@a",
        weight_digest=f"digest-{turn.version}",
        finish_reason=turn.finish if is_last else common_pb2.FINISH_REASON_UNSPECIFIED,
    )


def check(start: Start) -> None:
    """Every request is full and explicit."""
    assert start.request_id == f"{start.key.trajectory_id}/{start.key.attempt}/{start.turn}"
    assert start.assignment_epoch >= 1 and start.job_id and start.task
    assert start.prompt_token_ids, "an empty prompt"
    assert start.sampling.max_new_tokens >= 1 and start.sampling.top_p > 0 and start.sampling.stop_token_ids
