"""The inference worker's side: a version lands in staging memory, verified; live weights are not touched.

puller = Puller()
staged = await puller.pull(manifest, "10.0.0.7:7080", deadline_s=30)
engine.load(staged.tensors())       # copies, between engine steps
staged.release()
"""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from headrace.core.weights.errors import PeerLost
from headrace.core.weights.manifest import Manifest
from headrace.core.weights.receive import ReceivePlan
from headrace.wire.weights.v1 import weights_pb2 as pb
from weightstore import ucx
from weightstore.digest import digest_of, digest_of_async
from weightstore.memory import BufferPool, Bytes
from weightstore.peer import Peer, Session, Wanted, wanted_transport
from weightstore.snapshot import STORED_AS, Array
from weightstore.transfer import Receiver, Request
from weightstore.wire import credits_to_wire

MAX_PEERS = 4


@dataclass(frozen=True)
class PullReport:
    """`pull_s`: the whole call. `verify_s`: digests, part of it. `bytes_saved`: copied from versions staged here.
    `refetched_buckets` came with other bytes the first time. `transport`: UCX's own words.
    """

    pull_s: float
    verify_s: float
    bytes_moved: int
    bytes_saved: int
    refetched_buckets: int
    transport: str


class Staging:
    """An arena that fills. Buckets in `done` are verified; the others may hold anything."""

    def __init__(self, manifest: Manifest, arena: Bytes) -> None:
        self.manifest = manifest
        self.arena = arena
        self.done: set[int] = set()
        self.lanes = ""
        self.is_safe = True
        self.start_count()
        self._places: dict[str, list[int]] = {}
        for index, bucket in enumerate(manifest.buckets):
            self._places.setdefault(bucket.digest, []).append(index)

    def start_count(self) -> None:
        """What is reported is about one call; `done` is about all of them."""
        self.verify_s = 0.0
        self.bytes_moved = 0
        self.bytes_saved = 0
        self.refetched_buckets = 0

    def memory(self, bucket: int) -> Bytes:
        start = self.manifest.bucket_starts[bucket]
        return self.arena[start : start + self.manifest.buckets[bucket].nbytes]

    def missing(self) -> dict[int, int]:
        """Index -> bytes; equal buckets once."""
        firsts = (places[0] for places in self._places.values())
        return {index: self.manifest.buckets[index].nbytes for index in sorted(firsts) if index not in self.done}

    async def verify(self, bucket: int) -> bool:
        started_s = time.monotonic()
        memory = self.memory(bucket)
        is_right = await digest_of_async(memory) == self.manifest.buckets[bucket].digest
        self.verify_s += time.monotonic() - started_s
        self.bytes_moved += memory.nbytes
        if is_right:
            self._accept(bucket)
        else:
            self.refetched_buckets += 1
        return is_right

    def shared_with(self, other: "Staging") -> list[tuple[int, int]]:
        """Missing buckets that the other one has: (index here, index there)."""
        have = {bucket.digest: index for index, bucket in enumerate(other.manifest.buckets)}
        pairs = ((index, have.get(self.manifest.buckets[index].digest)) for index in self.missing())
        return [(index, there) for index, there in pairs if there is not None]

    def copy(self, bucket: int, source: Bytes) -> None:
        """From a version staged here; verified, as its memory was in other hands since."""
        memory = self.memory(bucket)
        np.copyto(memory, source)
        if digest_of(memory) == self.manifest.buckets[bucket].digest:
            self._accept(bucket)
            self.bytes_saved += memory.nbytes

    def _accept(self, bucket: int) -> None:
        for place in self._places[self.manifest.buckets[bucket].digest]:
            if place != bucket:
                np.copyto(self.memory(place), self.memory(bucket))
            self.done.add(place)


class StagedVersion:
    """A whole, verified version in host memory. Nothing given out by it may be used after `release`."""

    def __init__(self, staging: Staging, report: PullReport, owner: "Puller") -> None:
        self._staging = staging
        self._owner = owner
        self.report = report

    @property
    def manifest(self) -> Manifest:
        return self._staging.manifest

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def policy_version(self) -> int:
        return self.manifest.version.policy_version

    def tensors(self) -> dict[str, Array]:
        """Every name, tied ones included, as a view in its own shape; bfloat16 as uint16, float8 as uint8."""
        return {entry.name: self._view(entry.name) for entry in self.manifest.tensors}

    def _view(self, name: str) -> Array:
        entry = self.manifest.tensor(name)
        start = self.manifest.arena_offset(entry)
        raw = self._arena()[start : start + entry.nbytes]
        return raw.view(np.dtype(STORED_AS.get(entry.dtype, entry.dtype))).reshape(entry.shape)

    def files(self) -> dict[str, bytes]:
        return {
            entry.name: self._staging.memory(entry.bucket).tobytes() if entry.nbytes else b""
            for entry in self.manifest.files
        }

    def _arena(self) -> Bytes:
        if not self._owner.holds(self):
            raise ValueError(f"{self.manifest} was released")
        return self._staging.arena

    def release(self) -> None:
        """Gives the memory back for the next pull. Harmless when repeated."""
        self._owner.take_back(self)


class Puller:
    """Use within one event loop; close it. One pull per node at a time, the others wait their turn."""

    def __init__(self, *, transport: Wanted | None = None) -> None:
        self._transport = wanted_transport(transport)
        ucx.load()
        self._peers: dict[str, Peer] = {}
        self._pool = BufferPool()
        self._staged: dict[StagedVersion, Staging] = {}
        self._partial: Staging | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def pull(self, manifest: Manifest, node_address: str, *, deadline_s: float = 30.0) -> StagedVersion:
        """The version, whole and verified, from the node at `host:port`.

        Raises WeightsError; what was verified until then is kept, and the next pull of this version fetches the rest.
        """
        started_s = time.monotonic()
        staging = self._resume(manifest)
        staging.start_count()
        is_whole = False
        try:
            await self._copy_shared(staging)
            if staging.missing():
                peer = await self._peer(node_address)
                await peer.transfer(deadline_s, _Fetch(peer, staging).run)
            is_whole = True
        finally:
            if not is_whole:
                self._keep_partial(staging)
        report = PullReport(
            pull_s=time.monotonic() - started_s,
            verify_s=staging.verify_s,
            bytes_moved=staging.bytes_moved,
            bytes_saved=staging.bytes_saved,
            refetched_buckets=staging.refetched_buckets,
            transport=staging.lanes,
        )
        staged = StagedVersion(staging, report, self)
        self._staged[staged] = staging
        return staged

    async def _copy_shared(self, staging: Staging) -> None:
        for other, there in list(self._staged.items()):
            for bucket, source in staging.shared_with(there):
                if self.holds(other):
                    staging.copy(bucket, there.memory(source))
                await asyncio.sleep(0)

    def _resume(self, manifest: Manifest) -> Staging:
        partial, self._partial = self._partial, None
        if partial is not None and partial.manifest.digest == manifest.digest:
            return partial
        if partial is not None:
            self._pool.give(partial.arena)
        self._pool.trim(manifest.total_bytes)
        return Staging(manifest, self._pool.take(manifest.total_bytes))

    def _keep_partial(self, staging: Staging) -> None:
        if not staging.is_safe:
            self._pool.forget(staging.arena)
            return
        if self._partial is not None:
            self._pool.give(self._partial.arena)
        self._partial = staging

    async def _peer(self, address: str) -> Peer:
        if address not in self._peers:
            await self._forget_old_peers()
            self._peers[address] = Peer(address, client=f"puller-{os.getpid()}", transport=self._transport)
        return self._peers[address]

    async def _forget_old_peers(self) -> None:
        """A node that restarts has a new address each time."""
        idle = [address for address, peer in self._peers.items() if not peer.is_busy]
        for address in idle[: max(len(self._peers) + 1 - MAX_PEERS, 0)]:
            await self._peers.pop(address).close()

    @property
    def staged(self) -> Mapping[int, StagedVersion]:
        """What is not released, by policy version."""
        return {staged.policy_version: staged for staged in self._staged}

    def holds(self, staged: StagedVersion) -> bool:
        return staged in self._staged

    def take_back(self, staged: StagedVersion) -> None:
        staging = self._staged.pop(staged, None)
        if staging is not None:
            self._pool.give(staging.arena)

    async def close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self._peers.values()))


class _Fetch:
    """One stream that brings what a staging area lacks."""

    def __init__(self, peer: Peer, staging: Staging) -> None:
        self._peer = peer
        self._staging = staging
        self._call: Any = None

    async def run(self, session: Session, left_s: float) -> None:
        self._call = self._peer.stub.Pull(timeout=left_s)
        reader: asyncio.Task[None] | None = None
        is_whole = False
        try:
            await self._begin(session)
            plan = ReceivePlan(self._staging.missing(), chunk_bytes=session.chunk_bytes, window=session.window)
            receiver = Receiver(session.link, plan, self._staging, self._ask)
            reader = asyncio.ensure_future(self._read(receiver))
            await receiver.run()
            await self._call.done_writing()
            await reader
            is_whole = True
        finally:
            if not is_whole:
                self._staging.is_safe &= self._peer.drop_session()
            self._call.cancel()
            if reader is not None:
                await asyncio.wait([reader])
        self._staging.lanes = session.link.lanes

    async def _begin(self, session: Session) -> None:
        """Nothing is posted before the node has agreed."""
        version = self._staging.manifest.version
        begin = pb.BeginPull(
            session=session.session_id,
            ucx_address=session.link.address,
            job_id=version.job_id,
            policy_version=version.policy_version,
            digest=self._staging.manifest.digest,
        )
        await self._write(pb.PullFrame(begin=begin))
        frame = await self._call.read()
        if not isinstance(frame, pb.PullReplyFrame):
            raise PeerLost(f"weight node {self._peer.address} ended the pull before it began")

    async def _ask(self, request: Request) -> None:
        for bucket in request.corrupt:
            await self._write(pb.PullFrame(corrupt=pb.BucketCorrupt(bucket=bucket)))
        if request.credits:
            await self._write(pb.PullFrame(credits=credits_to_wire(request.credits)))

    async def _write(self, frame: pb.PullFrame) -> None:
        try:
            await self._call.write(frame)
        except asyncio.InvalidStateError:
            # The stream is over; its status says why.
            await self._call.read()
            raise PeerLost(f"weight node {self._peer.address} ended the pull") from None

    async def _read(self, receiver: Receiver) -> None:
        """Until the stream ends. The end, or its error, reaches the receiver; after its own end it does not mind."""
        try:
            while isinstance(await self._call.read(), pb.PullReplyFrame):
                pass
        except Exception as error:  # noqa: BLE001 -- handed over, not handled
            receiver.interrupt(error)
        else:
            receiver.interrupt(PeerLost(f"weight node {self._peer.address} ended the pull early"))
