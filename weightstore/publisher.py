"""The trainer's side: copy once, push what the nodes lack, seal.

    publisher = Publisher(["10.0.0.7:7080"])
    published = await publisher.publish(VersionId(job, 7, epoch, parent=6, step=7), tensors, files=files)

A published version is complete and verified on every node, and not current: the control plane commits it.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc

from headrace.client.weights import manifest_to_wire
from headrace.core.weights.errors import PeerLost
from headrace.core.weights.manifest import Manifest, VersionId
from headrace.wire.weights.v1 import weights_pb2 as pb
from weightstore import ucx
from weightstore.memory import BufferPool
from weightstore.peer import Peer, Session, Wanted, wanted_transport
from weightstore.snapshot import Array, Content, Snapshot, take_snapshot
from weightstore.transfer import Sender, beside
from weightstore.wire import credits_from_wire

BUCKET_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class PushReport:
    """`publication_stall_s`: copying and digesting, while the tensors had to stand still. `push_s`: from asking the
    first node to the last seal. Bytes are summed over nodes; `bytes_saved` were there before. `transport`: UCX says.
    """

    push_s: float
    publication_stall_s: float
    bytes_moved: int
    bytes_saved: int
    transport: str


@dataclass(frozen=True)
class Published:
    manifest: Manifest
    report: PushReport


@dataclass(frozen=True)
class _NodeOutcome:
    bytes_moved: int
    bytes_saved: int
    lanes: str


class Publisher:
    """Use within one event loop; close it. The last `keep_snapshots` stay, for a node that restarts."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        transport: Wanted | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        keep_snapshots: int = 2,
    ) -> None:
        if keep_snapshots < 1:
            raise ValueError(f"a publisher keeps at least one snapshot, not {keep_snapshots}")
        self._wanted = wanted_transport(transport)
        ucx.load()
        self._peers = self._reach(addresses)
        self._bucket_bytes = bucket_bytes
        self._keep_snapshots = keep_snapshots
        self._pool = BufferPool()
        self._snapshots: deque[Snapshot] = deque()
        self._in_push: set[int] = set()
        self._staging = threading.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stage(
        self,
        version: VersionId,
        tensors: Mapping[str, Array],
        *,
        dtypes: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> Snapshot:
        """Copies and digests; afterwards the tensors may change. Blocks; may be called from a thread.

        Raises LayoutMismatch for names that collide, dtypes that would need a cast, or ties that hold different values.
        """
        content = Content(tensors, dtypes or {}, aliases or {}, files or {})
        with self._staging:
            self._recycle()
            snapshot = take_snapshot(version, content, bucket_bytes=self._bucket_bytes, pool=self._pool)
            self._pool.trim(snapshot.arena.nbytes)
            self._snapshots.append(snapshot)
        return snapshot

    def _recycle(self) -> None:
        """Makes room for one more snapshot; those in a push stay."""
        n_surplus = max(len(self._snapshots) + 1 - self._keep_snapshots, 0)
        for snapshot in list(self._snapshots)[:n_surplus]:
            if id(snapshot) not in self._in_push:
                self._snapshots.remove(snapshot)
                self._pool.give(snapshot.arena)

    async def push(self, snapshot: Snapshot, *, epoch: int | None = None, deadline_s: float = 60.0) -> Published:
        """Brings the snapshot to every node and seals it there; only buckets that a node lacks move.

        `epoch`: the job's epoch now, if it is newer than the snapshot's. Raises WeightsError; pushing again resumes.
        Raises LookupError for a snapshot that later ones have replaced.
        """
        if snapshot not in self._snapshots:
            raise LookupError(f"{snapshot.manifest} is not among the last {self._keep_snapshots} snapshots")
        started_s = time.monotonic()
        self._in_push.add(id(snapshot))
        try:
            outcomes = await asyncio.gather(
                *(self._push_to(peer, snapshot, epoch=epoch, deadline_s=deadline_s) for peer in self._peers)
            )
        finally:
            self._in_push.discard(id(snapshot))
        report = PushReport(
            push_s=time.monotonic() - started_s,
            publication_stall_s=snapshot.stage_s,
            bytes_moved=sum(outcome.bytes_moved for outcome in outcomes),
            bytes_saved=sum(outcome.bytes_saved for outcome in outcomes),
            transport=outcomes[0].lanes,
        )
        return Published(snapshot.manifest, report)

    async def publish(
        self,
        version: VersionId,
        tensors: Mapping[str, Array],
        *,
        dtypes: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        files: Mapping[str, bytes] | None = None,
        deadline_s: float = 60.0,
    ) -> Published:
        """`stage` in a thread, then `push`. The tensors must stand still until it returns."""
        snapshot = await asyncio.to_thread(self.stage, version, tensors, dtypes=dtypes, aliases=aliases, files=files)
        return await self.push(snapshot, deadline_s=deadline_s)

    async def republish(self, manifest: Manifest, *, epoch: int, deadline_s: float = 60.0) -> Published:
        """Pushes a version again, from the snapshot that is kept. Raises LookupError when it is not kept any more."""
        for snapshot in self._snapshots:
            if snapshot.manifest.digest == manifest.digest:
                return await self.push(snapshot, epoch=epoch, deadline_s=deadline_s)
        raise LookupError(f"{manifest} is not among the last {self._keep_snapshots} snapshots")

    async def _push_to(self, peer: Peer, snapshot: Snapshot, *, epoch: int | None, deadline_s: float) -> _NodeOutcome:
        manifest = snapshot.manifest

        async def work(session: Session, left_s: float) -> _NodeOutcome:
            begin = pb.BeginPublish(
                session=session.session_id,
                ucx_address=session.link.address,
                manifest=manifest_to_wire(manifest),
                epoch=manifest.version.epoch if epoch is None else epoch,
                space_wait_s=left_s * 0.9,  # so that the node's own answer, with the reason, comes before the deadline
            )
            call = peer.stub.Publish(begin, timeout=left_s)
            sender = Sender(session.link, snapshot.bucket)
            try:
                sealed = await beside(_feed(call, sender, peer.address), sender.failure)
            finally:
                call.cancel()
                if not sender.is_idle:
                    peer.drop_session()
            return _NodeOutcome(sealed.bytes_moved, sealed.bytes_saved, session.link.lanes)

        return await peer.transfer(deadline_s, work)

    async def move_to(self, addresses: Sequence[str]) -> None:
        """Other nodes, or the same ones at other addresses; the snapshots stay. Not during a push."""
        await self.close()
        self._peers = self._reach(addresses)

    def _reach(self, addresses: Sequence[str]) -> list[Peer]:
        if not addresses:
            raise ValueError("a publisher needs a node's address")
        client = f"publisher-{os.getpid()}"
        return [Peer(address, client=client, transport=self._wanted) for address in addresses]

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers))


async def _feed(call: Any, sender: Sender, address: str) -> Any:
    """Sends what the node asks for until it has sealed the version."""
    sealed = None
    async for frame in call:
        match frame.WhichOneof("frame"):
            case "credits":
                for credit in credits_from_wire(frame.credits):
                    sender.send(credit)
            case "sealed":
                sealed = frame.sealed
    if sealed is None or await call.code() is not grpc.StatusCode.OK:
        raise PeerLost(f"weight node {address} ended the push before it was sealed")
    await sender.drain()
    return sealed
