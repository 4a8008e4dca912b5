"""What a weight store is told (past tense) and what it wants done (imperative)."""

from dataclasses import dataclass

from headrace.core.weights.manifest import Manifest


@dataclass(frozen=True)
class VersionKey:
    job_id: str
    policy_version: int
    digest: str

    def __str__(self) -> str:
        return f"job {self.job_id} version {self.policy_version} ({self.digest[:12]})"


def version_key(manifest: Manifest) -> VersionKey:
    return VersionKey(manifest.version.job_id, manifest.version.policy_version, manifest.digest)


@dataclass(frozen=True)
class PublishBegan:
    """`epoch`: the publisher's authority, at least the manifest's own (old versions are re-pushed under new ones).

    `push_id`: another one for every push, so that a late event of an old one is not taken for the new one's.
    """

    manifest: Manifest
    epoch: int
    push_id: int


@dataclass(frozen=True)
class BucketArrived:
    """Received and verified."""

    key: VersionKey
    push_id: int
    digest: str


@dataclass(frozen=True)
class PublishFinished:
    key: VersionKey
    push_id: int


@dataclass(frozen=True)
class PublishBroke:
    """The stream ended early. Verified buckets stay for the next try, until they expire."""

    key: VersionKey
    push_id: int


@dataclass(frozen=True)
class CommitDecided:
    key: VersionKey
    epoch: int


@dataclass(frozen=True)
class RetentionDecided:
    job_id: str
    epoch: int
    keep: frozenset[int]


@dataclass(frozen=True)
class ReaderOpened:
    key: VersionKey


@dataclass(frozen=True)
class ReaderClosed:
    key: VersionKey


@dataclass(frozen=True)
class JobEnded:
    job_id: str
    epoch: int


@dataclass(frozen=True)
class BucketDamaged:
    """The node's own copy no longer has its digest."""

    digest: str


@dataclass(frozen=True)
class TimePassed:
    pass


StoreEvent = (
    PublishBegan
    | BucketArrived
    | PublishFinished
    | PublishBroke
    | CommitDecided
    | RetentionDecided
    | ReaderOpened
    | ReaderClosed
    | JobEnded
    | BucketDamaged
    | TimePassed
)


@dataclass(frozen=True)
class ReceiveBucket:
    """Room for it is reserved."""

    digest: str
    nbytes: int


@dataclass(frozen=True)
class FreeBucket:
    digest: str


@dataclass(frozen=True)
class ForgetVersion:
    key: VersionKey


StoreAction = ReceiveBucket | FreeBucket | ForgetVersion
