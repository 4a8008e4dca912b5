"""One side of a session: one UCX worker, its endpoint to the peer, and its progress loop.

A link whose transfer was abandoned is closed as a whole: only a destroyed worker is known not to write any more to the
memory that was posted to it.
"""

import asyncio
import gc
import logging
import os
from typing import Any

from headrace.core.weights.errors import PeerLost, TransportDowngraded
from weightstore import ucx
from weightstore.memory import Bytes
from weightstore.progress import Progress

_LOG = logging.getLogger(__name__)

# Memory that a worker which could not be destroyed may still write to. It is given up, for safety.
_QUARANTINE: list[object] = []


class Link:
    """Made by either side; `connect` when the peer's address is known. Use within one event loop."""

    def __init__(self, transport: ucx.Transport, *, is_loopback: bool) -> None:
        context = ucx.context(transport, is_loopback=is_loopback)
        libucxx, self._array = ucx.load()
        self._ucxx = libucxx
        self.transport = transport
        try:
            self._worker: Any = libucxx.UCXWorker(context, enable_delayed_submission=False, enable_python_future=False)
        except libucxx.UCXError as error:
            raise TransportDowngraded(
                f"{transport} is not usable here ({error}); look at the size of /dev/shm or set the transport to tcp"
            ) from error
        self._endpoint: Any = None
        self._next_tag = 1
        self.lanes = ""
        self._progress = Progress(self._worker, lambda: self.is_alive)

    @property
    def address(self) -> bytes:
        return bytes(self._worker.address.tobytes())

    @property
    def is_connected(self) -> bool:
        return self._endpoint is not None

    @property
    def is_alive(self) -> bool:
        """False once UCX has noticed that the peer is gone, or after close."""
        return self._worker is not None and (self._endpoint is None or bool(self._endpoint.alive))

    def connect(self, peer_address: bytes) -> None:
        """Raises TransportDowngraded when the peer is not reachable over this link's transport."""
        try:
            address = self._ucxx.UCXAddress.create_from_buffer(bytearray(peer_address))
            self._endpoint = self._worker.create_endpoint_from_worker_address(address, True)
        except self._ucxx.UCXError as error:
            raise TransportDowngraded(
                f"the peer is not reachable over {self.transport} ({error}); choose the transport tcp if it must be"
            ) from error
        self.lanes = ucx.check_lanes(self._endpoint, self.transport)

    def new_tag(self) -> int:
        """A tag that this side has not received with before."""
        self._next_tag += 1
        return self._next_tag

    def receive(self, memory: Bytes, tag: int) -> asyncio.Future[None]:
        """Posts a receive. A message that is longer than `memory` fails it; one that is shorter is not noticed here."""
        return self._submit(lambda array: self._worker.tag_recv(array, self._ucxx.UCXXTag(tag)), memory)

    def send(self, memory: Bytes, tag: int) -> asyncio.Future[None]:
        return self._submit(lambda array: self._endpoint.tag_send(array, self._ucxx.UCXXTag(tag)), memory)

    def _submit(self, start: Any, memory: Bytes) -> asyncio.Future[None]:
        if not self.is_alive:
            raise PeerLost("the other side is gone")
        array = self._array(memory)
        return self._progress.submit(start(array), (array, memory))

    def poke(self) -> None:
        """Lets UCX look after its keep-alives on an idle link."""
        self._progress.poke()

    def close(self) -> bool:
        """Destroys the worker. False: it still exists, and memory that was posted to it must not be used again."""
        if self._worker is None:
            return True
        posted = self._progress.close()
        fd = self._progress.fd
        if self._endpoint is not None:
            ucx.close_endpoint(self._worker, self._endpoint)
        self._endpoint = None
        self._worker = None
        if _is_open(fd):
            gc.collect()
        if not _is_open(fd):
            return True
        _QUARANTINE.append(posted)
        _LOG.warning("a UCX worker outlives its session; %d buffers are set aside", len(posted))
        return False


def _is_open(fd: int) -> bool:
    """The worker's epoll descriptor closes with it, and nothing else runs between the two looks."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
