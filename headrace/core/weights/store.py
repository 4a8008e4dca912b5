"""What a node holds: versions by (job, number, digest), buckets by digest, and the memory they take.

    pushing ──all buckets there──► sealed ──commit──► committed ──not kept──► (gone)
       │                             │                    └──not kept, in reading──► retired ──last reader──► (gone)
       └────── expired, beaten ──────┴──► (gone)

Uncommitted versions of one number may live side by side (a trainer that restarts makes other bytes): the commit names
the digest that wins and the others go. A committed version whose bucket was damaged stays, with missing buckets,
until it is pushed again. Nothing is ever evicted to make room.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from headrace.core.weights.errors import BadManifest, Fenced, NotResident, StoreFull, VersionConflict
from headrace.core.weights.layout import TensorSpec, check_layout
from headrace.core.weights.manifest import Manifest
from headrace.core.weights.store_events import (
    BucketArrived,
    BucketDamaged,
    CommitDecided,
    ForgetVersion,
    FreeBucket,
    JobEnded,
    PublishBegan,
    PublishBroke,
    PublishFinished,
    ReaderClosed,
    ReaderOpened,
    ReceiveBucket,
    RetentionDecided,
    StoreAction,
    StoreEvent,
    TimePassed,
    VersionKey,
    version_key,
)


class VersionState(Enum):
    PUSHING = "pushing"
    SEALED = "sealed"
    COMMITTED = "committed"
    RETIRED = "retired"
    GONE = "gone"


TRANSITIONS: Mapping[VersionState, frozenset[VersionState]] = {
    VersionState.PUSHING: frozenset({VersionState.SEALED, VersionState.GONE}),
    VersionState.SEALED: frozenset({VersionState.PUSHING, VersionState.COMMITTED, VersionState.GONE}),
    VersionState.COMMITTED: frozenset({VersionState.RETIRED, VersionState.GONE}),
    VersionState.RETIRED: frozenset({VersionState.COMMITTED, VersionState.GONE}),
    VersionState.GONE: frozenset(),
}


class VersionRecord:
    def __init__(self, manifest: Manifest, now_s: float) -> None:
        self.manifest = manifest
        self.key = version_key(manifest)
        self.state = VersionState.PUSHING
        self.pushes: set[int] = set()
        self.n_readers = 0
        self.seen_s = now_s
        self.history: list[str] = []
        self.sizes = {bucket.digest: bucket.nbytes for bucket in manifest.buckets}

    def move(self, state: VersionState) -> None:
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            story = "; ".join(self.history) or "it is new"
            raise ValueError(f"{self.key} cannot go {self.state.value} -> {state.value}: {story}")
        self.history.append(f"{self.state.value} -> {state.value}")
        self.state = state


@dataclass
class _Job:
    highest_epoch: int = 0
    layout: tuple[TensorSpec, ...] | None = None


_HELD = frozenset({VersionState.COMMITTED, VersionState.RETIRED})


class StoreState:
    """`cap_bytes`: for buckets held and room reserved. `ttl_s`: how long an uncommitted version stays untouched."""

    def __init__(self, *, cap_bytes: int, ttl_s: float) -> None:
        self.cap_bytes = cap_bytes
        self._ttl_s = ttl_s
        self._jobs: dict[str, _Job] = {}
        self._versions: dict[VersionKey, VersionRecord] = {}
        self._held: dict[str, int] = {}
        self._reserved: dict[VersionKey, dict[str, int]] = {}

    # ---- what is there

    @property
    def used_bytes(self) -> int:
        """Held and reserved."""
        return sum(self._held.values()) + sum(sum(room.values()) for room in self._reserved.values())

    def highest_epoch(self, job_id: str) -> int:
        return self._jobs[job_id].highest_epoch if job_id in self._jobs else 0

    def versions(self, job_id: str) -> list[VersionRecord]:
        return sorted(
            (record for record in self._versions.values() if record.key.job_id == job_id),
            key=lambda record: (record.key.policy_version, record.key.digest),
        )

    def missing(self, record: VersionRecord) -> list[str]:
        return [digest for digest in record.sizes if digest not in self._held]

    def lacks(self, digests: Iterable[str]) -> list[str]:
        return [digest for digest in digests if digest not in self._held]

    def committed(self, job_id: str, policy_version: int) -> VersionRecord:
        """Raises NotResident."""
        for record in self._versions.values():
            if (record.key.job_id, record.key.policy_version) == (job_id, policy_version) and record.state in _HELD:
                return record
        raise NotResident(f"job {job_id} version {policy_version} is not committed on this node")

    def record(self, key: VersionKey) -> VersionRecord:
        """Raises NotResident."""
        if key not in self._versions:
            raise NotResident(f"{key} is not on this node")
        return self._versions[key]

    # ---- what happens

    def handle(self, event: StoreEvent, now_s: float) -> list[StoreAction]:
        """Raises a WeightsError (nothing has changed then) for what is not allowed, ValueError for what cannot be."""
        match event:
            case PublishBegan():
                return self._begin(event, now_s)
            case BucketArrived():
                return self._bucket_arrived(event, now_s)
            case PublishFinished():
                return self._publish_finished(event, now_s)
            case PublishBroke():
                return self._publish_broke(event, now_s)
            case CommitDecided():
                return self._commit(event, now_s)
            case RetentionDecided():
                return self._retain(event)
            case ReaderOpened():
                return self._reader_opened(event)
            case ReaderClosed():
                return self._reader_closed(event)
            case JobEnded():
                return self._end_job(event)
            case BucketDamaged():
                return self._damaged(event)
            case TimePassed():
                return self._expire(now_s)

    def _begin(self, event: PublishBegan, now_s: float) -> list[StoreAction]:
        manifest = event.manifest
        version = manifest.version
        if event.epoch < version.epoch:
            raise Fenced(f"{manifest}: made under epoch {version.epoch}, pushed under the older {event.epoch}")
        self._check_epoch(version.job_id, event.epoch)
        key = version_key(manifest)
        self._check_conflict(key)
        job = self._jobs.get(version.job_id)
        if job is not None and job.layout is not None:
            check_layout(job.layout, manifest.layout)
        known = self._versions.get(key)
        sizes = known.sizes if known else {bucket.digest: bucket.nbytes for bucket in manifest.buckets}
        self._check_sizes(manifest)
        room = {digest: nbytes for digest, nbytes in sizes.items() if digest not in self._held}
        fresh = {digest: nbytes for digest, nbytes in room.items() if digest not in self._reserved.get(key, {})}
        self._check_room(manifest, sum(fresh.values()))

        self._job(version.job_id).highest_epoch = max(event.epoch, self.highest_epoch(version.job_id))
        record = known or VersionRecord(manifest, now_s)
        self._versions[key] = record
        record.seen_s = now_s
        record.pushes.add(event.push_id)
        if room:
            self._reserved.setdefault(key, {}).update(fresh)
        return [ReceiveBucket(digest, nbytes) for digest, nbytes in room.items()]

    def _bucket_arrived(self, event: BucketArrived, now_s: float) -> list[StoreAction]:
        record = self._pushed(event.key, event.push_id)
        record.seen_s = now_s
        room = self._reserved.get(event.key, {})
        nbytes = room.pop(event.digest, None)
        if not room:
            self._reserved.pop(event.key, None)
        if event.digest not in self._held:
            if nbytes is None:
                raise ValueError(f"{event.key}: no room was reserved for bucket {event.digest}")
            self._held[event.digest] = nbytes
        return []

    def _publish_finished(self, event: PublishFinished, now_s: float) -> list[StoreAction]:
        record = self._pushed(event.key, event.push_id)
        missing = self.missing(record)
        if missing:
            raise NotResident(
                f"{event.key} cannot be sealed: {len(missing)} of {len(record.sizes)} buckets are missing"
            )
        record.pushes.remove(event.push_id)
        record.seen_s = now_s
        if record.state is VersionState.PUSHING:
            record.move(VersionState.SEALED)
        return self._drop_retired()

    def _publish_broke(self, event: PublishBroke, now_s: float) -> list[StoreAction]:
        record = self._versions.get(event.key)
        if record is None or event.push_id not in record.pushes:
            return []
        record.pushes.remove(event.push_id)
        record.seen_s = now_s
        if not record.pushes:
            self._reserved.pop(event.key, None)
        return self._drop_retired()

    def _commit(self, event: CommitDecided, now_s: float) -> list[StoreAction]:
        self._check_epoch(event.key.job_id, event.epoch)
        self._check_conflict(event.key)
        record = self.record(event.key)
        if self.missing(record):
            raise NotResident(
                f"{event.key}: {len(self.missing(record))} buckets are missing; it has to be pushed again"
            )
        if record.state is VersionState.PUSHING:
            record.move(VersionState.SEALED)
        record.move(VersionState.COMMITTED)
        record.seen_s = now_s
        job = self._job(event.key.job_id)
        job.highest_epoch = max(job.highest_epoch, event.epoch)
        job.layout = job.layout or record.manifest.layout
        return self._drop(
            lambda other: (
                (other.key.job_id, other.key.policy_version) == (event.key.job_id, event.key.policy_version)
                and other.state not in _HELD
            )
        )

    def _retain(self, event: RetentionDecided) -> list[StoreAction]:
        self._check_epoch(event.job_id, event.epoch)
        if event.job_id not in self._jobs:
            return []
        self._jobs[event.job_id].highest_epoch = event.epoch
        held = [record for record in self.versions(event.job_id) if record.state in _HELD]
        newest = max((record.key.policy_version for record in held), default=0)
        unwanted: set[VersionKey] = set()
        for record in held:
            if record.key.policy_version in event.keep or record.key.policy_version == newest:
                record.move(VersionState.COMMITTED)
            elif record.n_readers or record.pushes:
                record.move(VersionState.RETIRED)
            else:
                unwanted.add(record.key)
        return self._drop(lambda record: record.key in unwanted)

    def _reader_opened(self, event: ReaderOpened) -> list[StoreAction]:
        record = self.record(event.key)
        if record.state not in _HELD:
            raise NotResident(f"{event.key} is {record.state.value}, not committed")
        missing = self.missing(record)
        if missing:
            raise NotResident(f"{event.key}: {len(missing)} buckets are missing; it has to be pushed again")
        record.n_readers += 1
        return []

    def _reader_closed(self, event: ReaderClosed) -> list[StoreAction]:
        record = self._versions.get(event.key)
        if record is None:
            return []
        record.n_readers -= 1
        return self._drop_retired()

    def _end_job(self, event: JobEnded) -> list[StoreAction]:
        if event.job_id not in self._jobs:
            return []
        self._check_epoch(event.job_id, event.epoch)
        for record in self.versions(event.job_id):
            if record.n_readers:
                record.move(VersionState.RETIRED)
        del self._jobs[event.job_id]
        return self._drop(lambda record: record.key.job_id == event.job_id and not record.n_readers)

    def _damaged(self, event: BucketDamaged) -> list[StoreAction]:
        if self._held.pop(event.digest, None) is None:
            return []
        for record in self._versions.values():
            if record.state is VersionState.SEALED and event.digest in record.sizes:
                record.move(VersionState.PUSHING)
        return [FreeBucket(event.digest)]

    def _expire(self, now_s: float) -> list[StoreAction]:
        return self._drop(
            lambda record: record.state not in _HELD and not record.pushes and now_s - record.seen_s >= self._ttl_s
        )

    # ---- rules

    def _check_epoch(self, job_id: str, epoch: int) -> None:
        if epoch < self.highest_epoch(job_id):
            raise Fenced(f"job {job_id}: epoch {epoch} is over, the job is at {self.highest_epoch(job_id)}")

    def _check_conflict(self, key: VersionKey) -> None:
        for other in self._versions.values():
            same_number = (other.key.job_id, other.key.policy_version) == (key.job_id, key.policy_version)
            if same_number and other.state in _HELD and other.key != key:
                raise VersionConflict(f"{key}: the number is committed with digest {other.key.digest[:12]}")

    def _check_sizes(self, manifest: Manifest) -> None:
        for index, bucket in enumerate(manifest.buckets):
            held = self._held.get(bucket.digest, bucket.nbytes)
            if held != bucket.nbytes:
                raise BadManifest(
                    f"{manifest}: bucket {index} has {bucket.nbytes} bytes, the one with its digest {held}"
                )

    def _check_room(self, manifest: Manifest, nbytes: int) -> None:
        free = self.cap_bytes - self.used_bytes
        if nbytes > free:
            held = ", ".join(f"{record.key} {record.state.value}" for record in self.versions(manifest.version.job_id))
            raise StoreFull(
                f"{manifest} needs {nbytes} bytes, {free} of {self.cap_bytes} are free (memory_cap_bytes); "
                f"of this job are here: {held or 'none'}",
                retryable=nbytes <= self.cap_bytes,
            )

    def _pushed(self, key: VersionKey, push_id: int) -> VersionRecord:
        """A version that went away while it was pushed lost against another one of its number, or its job ended."""
        if key not in self._versions or push_id not in self._versions[key].pushes:
            raise VersionConflict(f"{key} was given up while it was pushed: another one was committed or the job ended")
        return self._versions[key]

    def _job(self, job_id: str) -> _Job:
        return self._jobs.setdefault(job_id, _Job())

    def _drop_retired(self) -> list[StoreAction]:
        return self._drop(
            lambda record: record.state is VersionState.RETIRED and not record.n_readers and not record.pushes
        )

    def _drop(self, is_unwanted: Callable[[VersionRecord], bool]) -> list[StoreAction]:
        gone = [record for record in self._versions.values() if is_unwanted(record)]
        if not gone:
            return []
        for record in gone:
            record.move(VersionState.GONE)
            del self._versions[record.key]
            self._reserved.pop(record.key, None)
        wanted = {digest for record in self._versions.values() for digest in record.sizes}
        freed = [digest for digest in self._held if digest not in wanted]
        for digest in freed:
            del self._held[digest]
        return [*(ForgetVersion(record.key) for record in gone), *(FreeBucket(digest) for digest in freed)]

    def check(self) -> None:
        """Raises AssertionError when memory, versions and states contradict each other."""
        assert 0 <= self.used_bytes <= self.cap_bytes, (self.used_bytes, self.cap_bytes)
        wanted = {digest for record in self._versions.values() for digest in record.sizes}
        assert self._held.keys() <= wanted, "a bucket is held for nobody"
        numbers: set[tuple[str, int]] = set()
        for key, record in self._versions.items():
            assert key == record.key and record.n_readers >= 0, key
            assert record.state is not VersionState.SEALED or not self.missing(record) or record.pushes, key
            assert record.state is not VersionState.RETIRED or record.n_readers or record.pushes, key
            if record.state in _HELD:
                number = (key.job_id, key.policy_version)
                assert number not in numbers, f"two committed versions of {number}"
                numbers.add(number)
        for key in self._reserved:
            assert key in self._versions and self._versions[key].pushes, key
