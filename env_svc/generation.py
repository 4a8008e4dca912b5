"""Turns generated through the LLM proxy: one stream per proxy, many turns on it.

The episode's own copy of the tokens is the truth. When a stream breaks, or the job's proxy changes, every open turn
is asked for again with the tokens it already has, after the trajectories have been named that are not over: between
two turns the proxy holds their place.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from env_svc.faults import InfraFault
from headrace.core.episode import Ask, Chunk, Episode, EpisodeError, Phase, Verdict
from headrace.service.grpc import channel
from headrace.service.logging import get_logger
from headrace.service.streams import Frames, StreamClient
from headrace.wire.common.v1.common_pb2 import AttemptKey, FinishReason
from headrace.wire.inference.v1 import inference_pb2, inference_pb2_grpc

FINISHES = {
    FinishReason.FINISH_REASON_UNSPECIFIED: None,
    FinishReason.FINISH_REASON_STOP: "stop",
    FinishReason.FINISH_REASON_LENGTH: "length",
}

log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Turn:
    """One open logical request. ``request`` holds what does not change between the times it is asked for."""

    request: inference_pb2.StartGeneration
    episode: Episode
    on_start_version: Callable[[int], None]
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_sent: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def command(self, ask: Ask) -> inference_pb2.GenerateCommand:
        """The request under a new epoch, with the tokens held."""
        start = self.request
        start.assignment_epoch = ask.epoch
        start.sampling.max_new_tokens = ask.max_new_tokens
        del start.kept_token_ids[:]
        start.kept_token_ids.extend(self.episode.turn_token_ids)
        if self.episode.start_version is not None:
            start.start_version = self.episode.start_version
        return inference_pb2.GenerateCommand(start=start)


@dataclass(slots=True)
class GenerationCounts:
    """Chunks by what became of them, and turns asked for again; cumulative."""

    kept: int = 0
    dropped: int = 0
    asked_again: int = 0


class ProxyStream:
    """The stream to one proxy and the turns open on it."""

    def __init__(self, address: str, counts: GenerationCounts) -> None:
        self.address = address
        self._counts = counts
        self._turns: dict[str, Turn] = {}
        self._live: dict[tuple[str, int], Turn] = {}  # the last turn of every trajectory that is not over
        self._channel = channel(address)
        stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._stream: StreamClient[inference_pb2.GenerateCommand, inference_pb2.TokenChunk] = StreamClient(
            stub.Generate,
            Frames(
                lambda commands: inference_pb2.GenerateFrame(commands=commands),
                lambda frame: frame.chunks,
                lambda command: command.ByteSize(),
            ),
            on_open=self._resume,
            on_item=self._take,
            name=f"generate {address}",
        )
        self._task = asyncio.create_task(self._stream.run())

    async def start(self, turn: Turn, ask: Ask) -> None:
        """Ask for a turn, now or as soon as the stream stands."""
        self._turns[turn.request_id] = turn
        self._live[_name(turn.request.key)] = turn
        turn.is_sent = await self._stream.send(turn.command(ask))

    async def drop(self, turn: Turn) -> None:
        """Forget a turn; one that is not finished is aborted at the proxy."""
        self._turns.pop(turn.request_id, None)
        if turn.episode.phase is Phase.GENERATING and turn.is_sent:
            abort = inference_pb2.AbortGeneration(request_id=turn.request_id)
            await self._stream.send(inference_pb2.GenerateCommand(abort=abort))

    def end(self, key: AttemptKey) -> None:
        """No turn of the trajectory comes any more. When the stream is down, the next one does not name it."""
        if self._live.pop(_name(key), None) is not None:
            over = inference_pb2.EndTrajectory(key=key)
            self._stream.send_nowait(inference_pb2.GenerateCommand(end=over))

    def take_over(self, job_id: str) -> tuple[list[Turn], list[Turn]]:
        """The open turns of a job, and the last turn of each of its live trajectories; both are forgotten here."""
        moved = [turn for turn in self._turns.values() if turn.request.job_id == job_id]
        for turn in moved:
            del self._turns[turn.request_id]
        live = [turn for turn in self._live.values() if turn.request.job_id == job_id]
        for turn in live:
            del self._live[_name(turn.request.key)]
        return moved, live

    def take_in(self, live: Iterable[Turn]) -> None:
        """Trajectories that went through another proxy so far."""
        turns = {_name(turn.request.key): turn for turn in live}
        self._live.update(turns)
        if turns:
            self._stream.send_nowait(_naming(turns.values()))

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._channel.close(None)

    async def _resume(self) -> Iterable[inference_pb2.GenerateCommand]:
        commands = [_naming(self._live.values())]
        for turn in self._turns.values():
            if turn.episode.phase is Phase.GENERATING:
                self._counts.asked_again += turn.is_sent
                turn.is_sent = True
                commands.append(turn.command(turn.episode.ask_again()))
        return commands

    async def _take(self, message: inference_pb2.TokenChunk) -> None:
        turn = self._turns.get(message.request_id)
        if turn is None:
            self._counts.dropped += 1
            return
        try:
            await self._offer(turn, message)
        except (EpisodeError, InfraFault) as error:
            fault = error if isinstance(error, InfraFault) else InfraFault("bad_chunk", str(error))
            if not turn.done.done():
                turn.done.set_exception(fault)

    async def _offer(self, turn: Turn, message: inference_pb2.TokenChunk) -> None:
        episode = turn.episode
        before = episode.start_version
        if message.assignment_epoch == episode.epoch:
            _raise_if_failed(message)
        verdict = episode.take(_chunk(message))
        if verdict is Verdict.KEPT:
            self._counts.kept += 1
        else:
            self._counts.dropped += 1
        if episode.start_version != before and episode.start_version is not None:
            turn.on_start_version(episode.start_version)
        if verdict is Verdict.GAP:
            self._counts.asked_again += 1
            await self.start(turn, episode.ask_again())
        if episode.phase is not Phase.GENERATING and not turn.done.done():
            turn.done.set_result(None)


class ProxyRoute:
    """The proxy of one job, which may not be known yet and may change."""

    def __init__(self, streams: "ProxyStreams", job_id: str) -> None:
        self._streams, self._job_id = streams, job_id
        self._stream: ProxyStream | None = None
        self._known = asyncio.Event()

    async def set_address(self, address: str) -> None:
        """Send this job's turns, open ones included, to another proxy."""
        former, stream = self._stream, self._streams.get(address)
        if former is stream:
            return
        self._stream = stream
        self._known.set()
        turns, live = former.take_over(self._job_id) if former else ([], [])
        stream.take_in(live)
        for turn in turns:
            if turn.episode.phase is Phase.GENERATING:
                await stream.start(turn, turn.episode.ask_again())

    async def generate(self, turn: Turn, ask: Ask) -> None:
        """Return when the turn's generation has ended. No deadline of its own: the caller's bounds it.

        Raises:
            InfraFault: the proxy gave the turn up, or broke the protocol.
        """
        await self._known.wait()
        assert self._stream is not None
        await self._stream.start(turn, ask)
        try:
            await turn.done
        finally:
            await self._stream.drop(turn)

    def end(self, key: AttemptKey) -> None:
        """The episode has no more turns."""
        if self._stream is not None:
            self._stream.end(key)


class ProxyStreams:
    """One stream per proxy address, for all jobs of this process."""

    def __init__(self) -> None:
        self.counts = GenerationCounts()
        self._streams: dict[str, ProxyStream] = {}

    def get(self, address: str) -> ProxyStream:
        """The stream to ``address``, opened when it is new."""
        if address not in self._streams:
            self._streams[address] = ProxyStream(address, self.counts)
        return self._streams[address]

    def route(self, job_id: str) -> ProxyRoute:
        """A job's way to its proxy."""
        return ProxyRoute(self, job_id)

    async def close(self) -> None:
        for stream in self._streams.values():
            await stream.close()
        self._streams.clear()


def _name(key: AttemptKey) -> tuple[str, int]:
    return key.trajectory_id, key.attempt


def _naming(turns: Iterable[Turn]) -> inference_pb2.GenerateCommand:
    """Those that have kept tokens: the others may begin anywhere."""
    live = [
        inference_pb2.LiveTrajectory(
            job_id=turn.request.job_id,
            key=turn.request.key,
            task=turn.request.task,
            start_version=turn.episode.start_version,
            context_tokens=len(turn.episode.token_ids),
        )
        for turn in turns
        if turn.episode.start_version is not None
    ]
    return inference_pb2.GenerateCommand(live=inference_pb2.LiveTrajectories(trajectories=live))


def _chunk(message: inference_pb2.TokenChunk) -> Chunk:
    return Chunk(
        epoch=message.assignment_epoch,
        offset=message.offset,
        token_ids=message.token_ids,
        logprobs=message.logprobs,
        policy_version=message.policy_version,
        worker_id=message.worker_id,
        weight_digest=message.weight_digest,
        finish=FINISHES.get(message.finish_reason),
        discarded_tokens=message.discarded_tokens,
    )


def _raise_if_failed(message: inference_pb2.TokenChunk) -> None:
    if message.HasField("fault"):
        fault = message.fault
        raise InfraFault(fault.code or "generation_failed", fault.detail, retryable=fault.retryable)
    if message.finish_reason in (FinishReason.FINISH_REASON_ABORTED, FinishReason.FINISH_REASON_FAILED):
        raise InfraFault("generation_failed", f"the proxy ended the turn: {message.finish_reason}")
