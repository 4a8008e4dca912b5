"""The node's side of its clients' sessions: which link belongs to whom, and when one ends."""

import logging
import secrets
import time
from dataclasses import dataclass, field

from headrace.core.weights.errors import PeerLost, TransportDowngraded
from weightstore import ucx
from weightstore.link import Link

_LOG = logging.getLogger(__name__)


@dataclass
class Session:
    """`n_transfers`: streams that use the link now."""

    session_id: int
    client: str
    link: Link
    n_transfers: int = 0
    used_s: float = field(default_factory=time.monotonic)


class Sessions:
    """Ends sessions whose client is gone, or that nobody used for `idle_s`."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._sessions: dict[int, Session] = {}
        ucx.load()
        self._identity = ucx.host_identity()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, client: str, *, host_identity: str, wanted: str, is_loopback: bool) -> Session:
        """Raises TransportDowngraded when shared memory is demanded and the client is on another host."""
        transport = self._agree(host_identity, wanted)
        session = Session(secrets.randbits(63), client, Link(transport, is_loopback=is_loopback))
        self._sessions[session.session_id] = session
        _LOG.info("session opened", extra={"client": client, "transport": transport})
        return session

    def _agree(self, host_identity: str, wanted: str) -> ucx.Transport:
        is_same_host = host_identity == self._identity
        match wanted:
            case "tcp":
                return "tcp"
            case "shm" if is_same_host:
                return "shm"
            case "auto":
                return "shm" if is_same_host else "tcp"
            case "shm":
                raise TransportDowngraded(
                    f"shared memory was asked for, but the client ({host_identity}) and the node ({self._identity}) "
                    "do not share a host, its namespaces and a user; allow tcp with transport auto"
                )
        raise TransportDowngraded(f"transport {wanted!r} is none of auto, shm, tcp")

    def connected(self, session_id: int, peer_address: bytes) -> Session:
        """The session, its link connected. Raises PeerLost for one that has ended: the client opens another."""
        session = self._sessions.get(session_id)
        if session is None:
            raise PeerLost("the session is over; open another one")
        if not session.link.is_connected:
            session.link.connect(peer_address)
        session.used_s = time.monotonic()
        return session

    def close(self, session_id: int) -> bool:
        """Destroys the link. False: memory posted to it must not be used again. True for a session that is over."""
        session = self._sessions.pop(session_id, None)
        return session is None or session.link.close()

    def sweep(self) -> None:
        """Call every second or so."""
        now_s = time.monotonic()
        for session in list(self._sessions.values()):
            session.link.poke()
            is_idle = not session.n_transfers and now_s - session.used_s > self._idle_s
            if is_idle or not session.link.is_alive:
                _LOG.info("session ended", extra={"client": session.client, "is_idle": is_idle})
                self.close(session.session_id)

    def close_all(self) -> None:
        for session_id in list(self._sessions):
            self.close(session_id)
