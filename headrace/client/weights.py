"""Weights over the wire: manifests as messages, errors as statuses, and a client for what travels without UCX.

A status that stands for a WeightsError has `code: message` as its details, so that both sides speak of the same error.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from headrace.core.weights.errors import (
    BY_CODE,
    BadManifest,
    BadTransfer,
    DeadlinePassed,
    Fenced,
    LayoutMismatch,
    NotResident,
    PeerLost,
    StoreFull,
    TransportDowngraded,
    VersionConflict,
    WeightsError,
)
from headrace.core.weights.manifest import BucketEntry, FileEntry, Manifest, TensorEntry, VersionId
from headrace.service.grpc import channel
from headrace.wire.weights.v1 import weights_pb2 as pb
from headrace.wire.weights.v1 import weights_pb2_grpc as rpc

_STATUS: dict[type[WeightsError], grpc.StatusCode] = {
    Fenced: grpc.StatusCode.FAILED_PRECONDITION,
    VersionConflict: grpc.StatusCode.ALREADY_EXISTS,
    NotResident: grpc.StatusCode.NOT_FOUND,
    StoreFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LayoutMismatch: grpc.StatusCode.INVALID_ARGUMENT,
    BadManifest: grpc.StatusCode.INVALID_ARGUMENT,
    BadTransfer: grpc.StatusCode.DATA_LOSS,
    PeerLost: grpc.StatusCode.UNAVAILABLE,
    DeadlinePassed: grpc.StatusCode.DEADLINE_EXCEEDED,
    TransportDowngraded: grpc.StatusCode.FAILED_PRECONDITION,
}


def manifest_to_wire(manifest: Manifest) -> pb.Manifest:
    """`SerializeToString()` of it is what other services carry as bytes."""
    version = manifest.version
    return pb.Manifest(
        job_id=version.job_id,
        policy_version=version.policy_version,
        epoch=version.epoch,
        parent=version.parent,
        step=version.step,
        tensors=[
            pb.Tensor(
                name=entry.name,
                shape=entry.shape,
                dtype=entry.dtype,
                bucket=entry.bucket,
                offset=entry.offset,
                nbytes=entry.nbytes,
                digest=entry.digest,
                alias_of=entry.alias_of or "",
            )
            for entry in manifest.tensors
        ],
        buckets=[pb.Bucket(nbytes=bucket.nbytes, digest=bucket.digest) for bucket in manifest.buckets],
        files=[pb.File(name=entry.name, nbytes=entry.nbytes, bucket=entry.bucket) for entry in manifest.files],
        total_bytes=manifest.total_bytes,
        digest=manifest.digest,
    )


def manifest_from_wire(message: pb.Manifest | bytes) -> Manifest:
    """From a message or its bytes. Raises BadManifest when it contradicts itself or its own digest."""
    wire = message if isinstance(message, pb.Manifest) else _parse(message)
    manifest = Manifest(
        version=VersionId(
            job_id=wire.job_id,
            policy_version=wire.policy_version,
            epoch=wire.epoch,
            parent=wire.parent if wire.HasField("parent") else None,
            step=wire.step,
        ),
        tensors=tuple(
            TensorEntry(
                name=entry.name,
                shape=tuple(entry.shape),
                dtype=entry.dtype,
                bucket=entry.bucket,
                offset=entry.offset,
                nbytes=entry.nbytes,
                digest=entry.digest,
                alias_of=entry.alias_of or None,
            )
            for entry in wire.tensors
        ),
        buckets=tuple(BucketEntry(bucket.nbytes, bucket.digest) for bucket in wire.buckets),
        files=tuple(FileEntry(entry.name, entry.nbytes, entry.bucket) for entry in wire.files),
    )
    if wire.digest != manifest.digest:
        raise BadManifest(f"{manifest}: the digest that came with it is {wire.digest[:12] or 'empty'}")
    if wire.total_bytes != manifest.total_bytes:
        raise BadManifest(f"{manifest}: {wire.total_bytes} bytes announced, its buckets have {manifest.total_bytes}")
    return manifest


def _parse(data: bytes) -> pb.Manifest:
    try:
        return pb.Manifest.FromString(data)
    except DecodeError as error:
        raise BadManifest(f"{len(data)} bytes are not a manifest: {error}") from error


def status_of(error: WeightsError) -> tuple[grpc.StatusCode, str]:
    """Status and details for the wire."""
    prefix = f"{error.code}+" if error.retryable else error.code
    return _STATUS.get(type(error), grpc.StatusCode.UNKNOWN), f"{prefix}: {error}"


def error_of(failure: grpc.RpcError) -> WeightsError:
    """The WeightsError that a failed call stands for."""
    if not isinstance(failure, grpc.aio.AioRpcError):
        return PeerLost(f"the call failed: {failure!r}")
    details = failure.details() or ""
    code, _, message = details.partition(": ")
    kind = BY_CODE.get(code.removesuffix("+"))
    if kind is not None:
        error = kind(message)
        error.retryable = code.endswith("+")
        return error
    match failure.code():
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlinePassed(details)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED | grpc.StatusCode.UNKNOWN:
            return PeerLost(details)
    return WeightsError(f"{failure.code().name}: {details}")


class NodeVersionState(Enum):
    """Where a version is on a node; only committed ones can be pulled, retired ones until their readers finish."""

    PUSHING = pb.VERSION_STATE_PUSHING
    SEALED = pb.VERSION_STATE_SEALED
    COMMITTED = pb.VERSION_STATE_COMMITTED
    RETIRED = pb.VERSION_STATE_RETIRED


@dataclass(frozen=True)
class NodeVersion:
    policy_version: int
    digest: str
    state: NodeVersionState
    n_missing_buckets: int
    total_bytes: int
    n_readers: int


@dataclass(frozen=True)
class NodeStatus:
    """`incarnation` changes when the node restarted, and with it everything that it held is gone."""

    incarnation: str
    versions: tuple[NodeVersion, ...]
    missing_digests: tuple[str, ...]
    used_bytes: int
    cap_bytes: int
    highest_epoch: int


@dataclass(frozen=True)
class RetentionReport:
    """Policy versions by what became of them; `in_reading` ones are freed when their readers finish."""

    held: tuple[int, ...]
    dropped: tuple[int, ...]
    in_reading: tuple[int, ...]
    used_bytes: int
    cap_bytes: int


class WeightsClient:
    """Control of one node. Every call raises a WeightsError; `deadline_s` is for the call as a whole."""

    def __init__(self, grpc_channel: grpc.aio.Channel) -> None:
        self._channel = grpc_channel
        self._stub: Any = rpc.WeightsStub(grpc_channel)

    @classmethod
    def at(cls, address: str) -> "WeightsClient":
        """A client with a channel of its own to `host:port`; `close` it."""
        return cls(channel(address))

    async def close(self) -> None:
        await self._channel.close(None)

    async def commit(
        self, job_id: str, policy_version: int, manifest_digest: str, *, epoch: int, deadline_s: float = 10.0
    ) -> bool:
        """Makes a pushed version readable. False: it was already, with this digest.

        Raises NotResident when its bytes have to be pushed again, VersionConflict when the number has another digest.
        """
        request = pb.CommitRequest(job_id=job_id, policy_version=policy_version, digest=manifest_digest, epoch=epoch)
        return bool((await self._call(self._stub.Commit, request, deadline_s)).is_new)

    async def set_retention(
        self, job_id: str, keep: Iterable[int], *, epoch: int, deadline_s: float = 10.0
    ) -> RetentionReport:
        """`keep`: every committed version that somebody still needs. The newest one stays in any case."""
        request = pb.SetRetentionRequest(job_id=job_id, epoch=epoch, keep=sorted(set(keep)))
        reply = await self._call(self._stub.SetRetention, request, deadline_s)
        return RetentionReport(
            held=tuple(reply.held),
            dropped=tuple(reply.dropped),
            in_reading=tuple(reply.in_reading),
            used_bytes=reply.used_bytes,
            cap_bytes=reply.cap_bytes,
        )

    async def release_job(self, job_id: str, *, epoch: int, deadline_s: float = 10.0) -> int:
        """Forgets the job; returns the bytes freed, 0 when the node did not know it."""
        request = pb.ReleaseJobRequest(job_id=job_id, epoch=epoch)
        return int((await self._call(self._stub.ReleaseJob, request, deadline_s)).freed_bytes)

    async def status(self, job_id: str, *, buckets: Sequence[str] = (), deadline_s: float = 10.0) -> NodeStatus:
        """What the node holds of the job, and which of these bucket digests it lacks."""
        request = pb.StatusRequest(job_id=job_id, bucket_digests=buckets)
        reply = await self._call(self._stub.Status, request, deadline_s)
        return NodeStatus(
            incarnation=reply.incarnation,
            versions=tuple(
                NodeVersion(
                    policy_version=version.policy_version,
                    digest=version.digest,
                    state=NodeVersionState(version.state),
                    n_missing_buckets=version.n_missing_buckets,
                    total_bytes=version.total_bytes,
                    n_readers=version.n_readers,
                )
                for version in reply.versions
            ),
            missing_digests=tuple(reply.missing_digests),
            used_bytes=reply.used_bytes,
            cap_bytes=reply.cap_bytes,
            highest_epoch=reply.highest_epoch,
        )

    async def get_manifest(self, job_id: str, policy_version: int, *, deadline_s: float = 10.0) -> Manifest:
        """Raises NotResident unless the version is committed on the node."""
        request = pb.GetManifestRequest(job_id=job_id, policy_version=policy_version)
        return manifest_from_wire((await self._call(self._stub.GetManifest, request, deadline_s)).manifest)

    async def fetch_files(
        self, job_id: str, policy_version: int, *, names: Sequence[str] = (), deadline_s: float = 30.0
    ) -> dict[str, bytes]:
        """The version's small files (config, tokenizer); all of them unless `names` says which."""
        request = pb.FetchFilesRequest(job_id=job_id, policy_version=policy_version, names=names)
        parts: dict[str, list[bytes]] = {}
        try:
            async for chunk in self._stub.FetchFiles(request, timeout=deadline_s):
                parts.setdefault(chunk.name, []).append(chunk.data)
        except grpc.RpcError as failure:
            raise error_of(failure) from None
        return {name: b"".join(pieces) for name, pieces in parts.items()}

    @staticmethod
    async def _call(method: Any, request: Any, deadline_s: float) -> Any:
        try:
            return await method(request, timeout=deadline_s)
        except grpc.RpcError as failure:
            raise error_of(failure) from None
