"""A client's side of its session with one node: channel, session, link, and one retry when either is lost."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal, TypeVar, cast

import grpc
import grpc.aio

from headrace.client.weights import error_of
from headrace.core.weights.errors import DeadlinePassed, PeerLost
from headrace.service.grpc import channel
from headrace.wire.weights.v1 import weights_pb2 as pb
from headrace.wire.weights.v1 import weights_pb2_grpc as rpc
from weightstore import ucx
from weightstore.link import Link

Wanted = Literal["auto", "shm", "tcp"]
Answer = TypeVar("Answer")

TRANSPORT_VARIABLE = "HEADRACE_WEIGHTS_TRANSPORT"
TRIES = 3
FAREWELL_S = 1.0
REACH_S = 5.0  # a node that restarts at the same address is back by then
_LOOPBACK_HOSTS = ("127.", "localhost", "[::1]", "::1")


def wanted_transport(given: Wanted | None) -> Wanted:
    """What was given, or HEADRACE_WEIGHTS_TRANSPORT, or auto."""
    wanted = given or os.environ.get(TRANSPORT_VARIABLE) or "auto"
    if wanted not in ("auto", "shm", "tcp"):
        raise ValueError(f"{TRANSPORT_VARIABLE} is {wanted!r}; choose auto, shm or tcp")
    return cast(Wanted, wanted)


class Unreachable(PeerLost):
    """Nobody listens at the node's address, and has not for a while: it may have another one by now."""


class Session:
    """An open session; `chunk_bytes` and `window` are the node's."""

    def __init__(self, session_id: int, link: Link, *, chunk_bytes: int, window: int) -> None:
        self.session_id = session_id
        self.link = link
        self.chunk_bytes = chunk_bytes
        self.window = window


class Peer:
    """One node, as a client reaches it. One transfer at a time."""

    def __init__(self, address: str, *, client: str, transport: Wanted) -> None:
        self.address = address
        self._client = client
        self._transport = transport
        self._channel = channel(address)
        self.stub: Any = rpc.WeightsStub(self._channel)
        self._session: Session | None = None
        self._lock = asyncio.Lock()
        self._farewells: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    async def transfer(self, deadline_s: float, work: Callable[[Session, float], Awaitable[Answer]]) -> Answer:
        """Runs `work(session, seconds left)`, again on a new session when the peer was lost and time is left.

        Raises WeightsError. `work` drops the session itself when it fails with something posted.
        """
        give_up_s = time.monotonic() + deadline_s
        try:
            async with asyncio.timeout(deadline_s), self._lock:
                return await self._try(give_up_s, work)
        except TimeoutError:
            raise DeadlinePassed(f"weight node {self.address} did not finish in {deadline_s} s") from None

    async def _try(self, give_up_s: float, work: Callable[[Session, float], Awaitable[Answer]]) -> Answer:
        tries_left = TRIES
        while True:
            tries_left -= 1
            try:
                session = await self._open(give_up_s)
                return await work(session, max(give_up_s - time.monotonic(), 0.0))
            except grpc.RpcError as failure:
                error = error_of(failure)
            except Unreachable:
                raise
            except PeerLost as lost:
                error = lost
            if not isinstance(error, PeerLost):
                raise error from None
            self.drop_session()
            if not tries_left:
                raise error from None

    async def _open(self, give_up_s: float) -> Session:
        if self._session is not None and self._session.link.is_alive:
            return self._session
        self.drop_session()
        is_loopback = self.address.startswith(_LOOPBACK_HOSTS)
        request = pb.OpenSessionRequest(
            client=self._client,
            host_identity=ucx.host_identity(),
            transport=self._transport,
            is_loopback=is_loopback,
        )
        reply = await self._reach(request, max(give_up_s - time.monotonic(), 0.0))
        link = Link(reply.transport, is_loopback=is_loopback)
        self._session = Session(reply.session, link, chunk_bytes=reply.chunk_bytes, window=reply.window)
        link.connect(reply.ucx_address)
        return self._session

    async def _reach(self, request: pb.OpenSessionRequest, left_s: float) -> Any:
        try:
            return await self.stub.OpenSession(request, timeout=min(left_s, REACH_S), wait_for_ready=True)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED and left_s > REACH_S:
                raise Unreachable(f"weight node {self.address} was not reachable for {REACH_S} s") from None
            raise

    def drop_session(self) -> bool:
        """Destroys the link. False: memory that was posted to it must not be used again."""
        session, self._session = self._session, None
        if session is None:
            return True
        farewell = asyncio.ensure_future(self._tell(session.session_id))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)
        return session.link.close()

    async def _tell(self, session_id: int) -> None:
        """The node would find out by itself, but later."""
        with suppress(grpc.RpcError):
            await self.stub.CloseSession(pb.CloseSessionRequest(session=session_id), timeout=FAREWELL_S)

    async def close(self) -> None:
        self.drop_session()
        await asyncio.gather(*self._farewells)
        await self._channel.close(None)
