from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VersionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERSION_STATE_UNSPECIFIED: _ClassVar[VersionState]
    VERSION_STATE_PUSHING: _ClassVar[VersionState]
    VERSION_STATE_SEALED: _ClassVar[VersionState]
    VERSION_STATE_COMMITTED: _ClassVar[VersionState]
    VERSION_STATE_RETIRED: _ClassVar[VersionState]
VERSION_STATE_UNSPECIFIED: VersionState
VERSION_STATE_PUSHING: VersionState
VERSION_STATE_SEALED: VersionState
VERSION_STATE_COMMITTED: VersionState
VERSION_STATE_RETIRED: VersionState

class Manifest(_message.Message):
    __slots__ = ("job_id", "policy_version", "epoch", "parent", "step", "tensors", "buckets", "files", "total_bytes", "digest")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy_version: int
    epoch: int
    parent: int
    step: int
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    buckets: _containers.RepeatedCompositeFieldContainer[Bucket]
    files: _containers.RepeatedCompositeFieldContainer[File]
    total_bytes: int
    digest: str
    def __init__(self, job_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., epoch: _Optional[int] = ..., parent: _Optional[int] = ..., step: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., buckets: _Optional[_Iterable[_Union[Bucket, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., total_bytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "shape", "dtype", "bucket", "offset", "nbytes", "digest", "alias_of")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    ALIAS_OF_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    bucket: int
    offset: int
    nbytes: int
    digest: str
    alias_of: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., bucket: _Optional[int] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ..., digest: _Optional[str] = ..., alias_of: _Optional[str] = ...) -> None: ...

class Bucket(_message.Message):
    __slots__ = ("nbytes", "digest")
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    nbytes: int
    digest: str
    def __init__(self, nbytes: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "nbytes", "bucket")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    name: str
    nbytes: int
    bucket: int
    def __init__(self, name: _Optional[str] = ..., nbytes: _Optional[int] = ..., bucket: _Optional[int] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("client", "host_identity", "transport", "is_loopback")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    HOST_IDENTITY_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    IS_LOOPBACK_FIELD_NUMBER: _ClassVar[int]
    client: str
    host_identity: str
    transport: str
    is_loopback: bool
    def __init__(self, client: _Optional[str] = ..., host_identity: _Optional[str] = ..., transport: _Optional[str] = ..., is_loopback: bool = ...) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ("session", "incarnation", "ucx_address", "transport", "chunk_bytes", "window")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UCX_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    session: int
    incarnation: str
    ucx_address: bytes
    transport: str
    chunk_bytes: int
    window: int
    def __init__(self, session: _Optional[int] = ..., incarnation: _Optional[str] = ..., ucx_address: _Optional[bytes] = ..., transport: _Optional[str] = ..., chunk_bytes: _Optional[int] = ..., window: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class CloseSessionReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginPublish(_message.Message):
    __slots__ = ("session", "ucx_address", "manifest", "epoch", "space_wait_s")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UCX_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SPACE_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    session: int
    ucx_address: bytes
    manifest: Manifest
    epoch: int
    space_wait_s: float
    def __init__(self, session: _Optional[int] = ..., ucx_address: _Optional[bytes] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., epoch: _Optional[int] = ..., space_wait_s: _Optional[float] = ...) -> None: ...

class PublishReplyFrame(_message.Message):
    __slots__ = ("credits", "sealed")
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    credits: Credits
    sealed: Sealed
    def __init__(self, credits: _Optional[_Union[Credits, _Mapping]] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ...) -> None: ...

class Credits(_message.Message):
    __slots__ = ("credits",)
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    def __init__(self, credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("bucket", "offset", "nbytes", "tag")
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    offset: int
    nbytes: int
    tag: int
    def __init__(self, bucket: _Optional[int] = ..., offset: _Optional[int] = ..., nbytes: _Optional[int] = ..., tag: _Optional[int] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("digest", "bytes_moved", "bytes_saved")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SAVED_FIELD_NUMBER: _ClassVar[int]
    digest: str
    bytes_moved: int
    bytes_saved: int
    def __init__(self, digest: _Optional[str] = ..., bytes_moved: _Optional[int] = ..., bytes_saved: _Optional[int] = ...) -> None: ...

class PullFrame(_message.Message):
    __slots__ = ("begin", "credits", "corrupt")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    begin: BeginPull
    credits: Credits
    corrupt: BucketCorrupt
    def __init__(self, begin: _Optional[_Union[BeginPull, _Mapping]] = ..., credits: _Optional[_Union[Credits, _Mapping]] = ..., corrupt: _Optional[_Union[BucketCorrupt, _Mapping]] = ...) -> None: ...

class BeginPull(_message.Message):
    __slots__ = ("session", "ucx_address", "job_id", "policy_version", "digest")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    UCX_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    session: int
    ucx_address: bytes
    job_id: str
    policy_version: int
    digest: str
    def __init__(self, session: _Optional[int] = ..., ucx_address: _Optional[bytes] = ..., job_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class BucketCorrupt(_message.Message):
    __slots__ = ("bucket",)
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    def __init__(self, bucket: _Optional[int] = ...) -> None: ...

class PullReplyFrame(_message.Message):
    __slots__ = ("accepted", "checked")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    accepted: PullAccepted
    checked: BucketChecked
    def __init__(self, accepted: _Optional[_Union[PullAccepted, _Mapping]] = ..., checked: _Optional[_Union[BucketChecked, _Mapping]] = ...) -> None: ...

class PullAccepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BucketChecked(_message.Message):
    __slots__ = ("bucket",)
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    bucket: int
    def __init__(self, bucket: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("job_id", "policy_version", "digest", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy_version: int
    digest: str
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., digest: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class CommitReply(_message.Message):
    __slots__ = ("is_new",)
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    is_new: bool
    def __init__(self, is_new: bool = ...) -> None: ...

class SetRetentionRequest(_message.Message):
    __slots__ = ("job_id", "epoch", "keep")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    epoch: int
    keep: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job_id: _Optional[str] = ..., epoch: _Optional[int] = ..., keep: _Optional[_Iterable[int]] = ...) -> None: ...

class SetRetentionReply(_message.Message):
    __slots__ = ("held", "dropped", "in_reading", "used_bytes", "cap_bytes")
    HELD_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    IN_READING_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedScalarFieldContainer[int]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    in_reading: _containers.RepeatedScalarFieldContainer[int]
    used_bytes: int
    cap_bytes: int
    def __init__(self, held: _Optional[_Iterable[int]] = ..., dropped: _Optional[_Iterable[int]] = ..., in_reading: _Optional[_Iterable[int]] = ..., used_bytes: _Optional[int] = ..., cap_bytes: _Optional[int] = ...) -> None: ...

class ReleaseJobRequest(_message.Message):
    __slots__ = ("job_id", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReleaseJobReply(_message.Message):
    __slots__ = ("freed_bytes",)
    FREED_BYTES_FIELD_NUMBER: _ClassVar[int]
    freed_bytes: int
    def __init__(self, freed_bytes: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("job_id", "bucket_digests")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    bucket_digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., bucket_digests: _Optional[_Iterable[str]] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("incarnation", "versions", "missing_digests", "used_bytes", "cap_bytes", "highest_epoch")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MISSING_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    incarnation: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionStatus]
    missing_digests: _containers.RepeatedScalarFieldContainer[str]
    used_bytes: int
    cap_bytes: int
    highest_epoch: int
    def __init__(self, incarnation: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionStatus, _Mapping]]] = ..., missing_digests: _Optional[_Iterable[str]] = ..., used_bytes: _Optional[int] = ..., cap_bytes: _Optional[int] = ..., highest_epoch: _Optional[int] = ...) -> None: ...

class VersionStatus(_message.Message):
    __slots__ = ("policy_version", "digest", "state", "n_missing_buckets", "total_bytes", "n_readers")
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    N_MISSING_BUCKETS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    N_READERS_FIELD_NUMBER: _ClassVar[int]
    policy_version: int
    digest: str
    state: VersionState
    n_missing_buckets: int
    total_bytes: int
    n_readers: int
    def __init__(self, policy_version: _Optional[int] = ..., digest: _Optional[str] = ..., state: _Optional[_Union[VersionState, str]] = ..., n_missing_buckets: _Optional[int] = ..., total_bytes: _Optional[int] = ..., n_readers: _Optional[int] = ...) -> None: ...

class GetManifestRequest(_message.Message):
    __slots__ = ("job_id", "policy_version")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy_version: int
    def __init__(self, job_id: _Optional[str] = ..., policy_version: _Optional[int] = ...) -> None: ...

class GetManifestReply(_message.Message):
    __slots__ = ("manifest",)
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    manifest: Manifest
    def __init__(self, manifest: _Optional[_Union[Manifest, _Mapping]] = ...) -> None: ...

class FetchFilesRequest(_message.Message):
    __slots__ = ("job_id", "policy_version", "names")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    policy_version: int
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., policy_version: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("name", "data", "is_last")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    is_last: bool
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ..., is_last: bool = ...) -> None: ...
