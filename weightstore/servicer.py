"""gRPC `Weights`: wire to core and back, WeightsError to status."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from headrace.client.weights import manifest_from_wire, manifest_to_wire, status_of
from headrace.core.weights.errors import BadTransfer, NotResident, WeightsError
from headrace.core.weights.manifest import Manifest
from headrace.core.weights.store import VersionRecord, VersionState
from headrace.core.weights.store_events import CommitDecided, ForgetVersion, JobEnded, RetentionDecided, VersionKey
from headrace.wire.weights.v1 import weights_pb2 as pb
from headrace.wire.weights.v1 import weights_pb2_grpc as rpc
from weightstore.memory import Bytes
from weightstore.node import Node
from weightstore.session import Session
from weightstore.transfer import Request, Sender, beside
from weightstore.wire import credits_from_wire, credits_to_wire

FILE_PART_BYTES = 1024 * 1024

_STATES = {
    VersionState.PUSHING: pb.VERSION_STATE_PUSHING,
    VersionState.SEALED: pb.VERSION_STATE_SEALED,
    VersionState.COMMITTED: pb.VERSION_STATE_COMMITTED,
    VersionState.RETIRED: pb.VERSION_STATE_RETIRED,
}


class WeightsServicer(rpc.WeightsServicer):
    """`incarnation` tells clients of another node that started in this one's place."""

    def __init__(self, node: Node, incarnation: str) -> None:
        self._node = node
        self._incarnation = incarnation

    async def OpenSession(self, request: Any, context: Any) -> Any:
        async with _answering(context):
            session = self._node.sessions.open(
                request.client,
                host_identity=request.host_identity,
                wanted=request.transport or "auto",
                is_loopback=request.is_loopback,
            )
            return pb.OpenSessionReply(
                session=session.session_id,
                incarnation=self._incarnation,
                ucx_address=session.link.address,
                transport=session.link.transport,
                chunk_bytes=self._node.limits.chunk_bytes,
                window=self._node.limits.window,
            )

    async def CloseSession(self, request: Any, context: Any) -> Any:
        self._node.sessions.close(request.session)
        return pb.CloseSessionReply()

    async def Publish(self, request: Any, context: Any) -> None:
        async with _answering(context):
            manifest = manifest_from_wire(request.manifest)
            session = self._node.sessions.connected(request.session, request.ucx_address)

            async def ask(what: Request) -> None:
                await context.write(pb.PublishReplyFrame(credits=credits_to_wire(what.credits)))

            outcome = await self._node.publish(
                session, manifest, epoch=request.epoch, space_wait_s=request.space_wait_s, ask=ask
            )
            sealed = pb.Sealed(digest=manifest.digest, bytes_moved=outcome.bytes_moved, bytes_saved=outcome.bytes_saved)
            await context.write(pb.PublishReplyFrame(sealed=sealed))

    async def Pull(self, request_iterator: Any, context: Any) -> None:
        async with _answering(context):
            frames = aiter(request_iterator)
            begin = (await anext(frames)).begin
            session = self._node.sessions.connected(begin.session, begin.ucx_address)
            with self._node.reading(VersionKey(begin.job_id, begin.policy_version, begin.digest)) as record:
                await self._serve(frames, context, session, record.manifest)

    async def _serve(self, frames: AsyncIterator[Any], context: Any, session: Session, manifest: Manifest) -> None:
        def source(index: int) -> Bytes:
            if index >= len(manifest.buckets):
                raise BadTransfer(f"{manifest} has {len(manifest.buckets)} buckets, not a bucket {index}")
            return self._node.bucket(manifest.buckets[index].digest)

        sender = Sender(session.link, source)
        is_finished = False
        session.n_transfers += 1
        try:
            await context.write(pb.PullReplyFrame(accepted=pb.PullAccepted()))
            await beside(self._answer(frames, context, sender, manifest), sender.failure)
            is_finished = True
        finally:
            session.n_transfers -= 1
            self._node.bytes_out += sender.bytes_sent
            if not is_finished:
                self._node.sessions.close(session.session_id)

    async def _answer(self, frames: AsyncIterator[Any], context: Any, sender: Sender, manifest: Manifest) -> None:
        async for frame in frames:
            match frame.WhichOneof("frame"):
                case "corrupt":
                    bucket = frame.corrupt.bucket
                    await self._node.check_bucket(manifest.buckets[bucket].digest)
                    await context.write(pb.PullReplyFrame(checked=pb.BucketChecked(bucket=bucket)))
                case "credits":
                    for credit in credits_from_wire(frame.credits):
                        sender.send(credit)
        await sender.drain()

    async def Commit(self, request: Any, context: Any) -> Any:
        async with _answering(context):
            key = VersionKey(request.job_id, request.policy_version, request.digest)
            was = self._state_of(key)
            self._node.apply(CommitDecided(key, request.epoch))
            return pb.CommitReply(is_new=was is not VersionState.COMMITTED)

    def _state_of(self, key: VersionKey) -> VersionState | None:
        states = {record.key: record.state for record in self._node.store.versions(key.job_id)}
        return states.get(key)

    async def SetRetention(self, request: Any, context: Any) -> Any:
        async with _answering(context):
            actions = self._node.apply(RetentionDecided(request.job_id, request.epoch, frozenset(request.keep)))
            versions = self._node.store.versions(request.job_id)
            return pb.SetRetentionReply(
                held=_numbers(versions, VersionState.COMMITTED),
                in_reading=_numbers(versions, VersionState.RETIRED),
                dropped=sorted(action.key.policy_version for action in actions if isinstance(action, ForgetVersion)),
                used_bytes=self._node.store.used_bytes,
                cap_bytes=self._node.store.cap_bytes,
            )

    async def ReleaseJob(self, request: Any, context: Any) -> Any:
        async with _answering(context):
            before = self._node.store.used_bytes
            self._node.apply(JobEnded(request.job_id, request.epoch))
            return pb.ReleaseJobReply(freed_bytes=before - self._node.store.used_bytes)

    async def Status(self, request: Any, context: Any) -> Any:
        store = self._node.store
        return pb.StatusReply(
            incarnation=self._incarnation,
            versions=[
                pb.VersionStatus(
                    policy_version=record.key.policy_version,
                    digest=record.key.digest,
                    state=_STATES[record.state],
                    n_missing_buckets=len(store.missing(record)),
                    total_bytes=record.manifest.total_bytes,
                    n_readers=record.n_readers,
                )
                for record in store.versions(request.job_id)
            ],
            missing_digests=store.lacks(request.bucket_digests),
            used_bytes=store.used_bytes,
            cap_bytes=store.cap_bytes,
            highest_epoch=store.highest_epoch(request.job_id),
        )

    async def GetManifest(self, request: Any, context: Any) -> Any:
        async with _answering(context):
            record = self._node.store.committed(request.job_id, request.policy_version)
            return pb.GetManifestReply(manifest=manifest_to_wire(record.manifest))

    async def FetchFiles(self, request: Any, context: Any) -> None:
        async with _answering(context):
            key = self._node.store.committed(request.job_id, request.policy_version).key
            with self._node.reading(key) as record:
                await self._send_files(record.manifest, list(request.names), context)

    async def _send_files(self, manifest: Manifest, names: list[str], context: Any) -> None:
        files = {entry.name: entry for entry in manifest.files}
        unknown = [name for name in names if name not in files]
        if unknown:
            raise NotResident(f"{manifest} has no file {', '.join(unknown)}; it has {', '.join(files) or 'none'}")
        for name in names or files:
            entry = files[name]
            data = self._node.bucket(manifest.buckets[entry.bucket].digest) if entry.nbytes else b""
            for start in range(0, max(entry.nbytes, 1), FILE_PART_BYTES):
                part = bytes(data[start : start + FILE_PART_BYTES])
                is_last = start + FILE_PART_BYTES >= entry.nbytes
                await context.write(pb.FileChunk(name=name, data=part, is_last=is_last))


def _numbers(versions: list[VersionRecord], state: VersionState) -> list[int]:
    return [record.key.policy_version for record in versions if record.state is state]


@asynccontextmanager
async def _answering(context: Any) -> AsyncIterator[None]:
    try:
        yield
    except WeightsError as error:
        await context.abort(*status_of(error))
