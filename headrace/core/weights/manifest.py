"""The immutable manifest of one weight version: what it is called, what it looks like, which bytes it is made of.

Two digests. `Manifest.digest` names the version (number, epoch, layout, buckets, files): a version row stores it,
a worker reports it and a token carries it. `Manifest.content_digest` names the tensors' bytes alone: equal for equal
weights, whatever their number, their epoch and the size of their buckets.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headrace.core.weights.errors import BadManifest
from headrace.core.weights.layout import ALIGN, TensorSpec, tensor_bytes

SCHEMA = "headrace.weights/v1"
DIGEST_HEX_CHARS = 32  # xxh3-128


@dataclass(frozen=True)
class VersionId:
    """`epoch`: the job epoch it was made under; `parent`: the version it came from; `step`: the training step."""

    job_id: str
    policy_version: int
    epoch: int
    parent: int | None = None
    step: int = 0

    def __post_init__(self) -> None:
        if not self.job_id:
            raise BadManifest("job_id is empty")
        if self.policy_version < 0 or self.epoch < 0 or self.step < 0:
            raise BadManifest(f"policy_version, epoch and step must not be negative: {self}")
        if self.parent is not None and not 0 <= self.parent < self.policy_version:
            raise BadManifest(f"parent {self.parent} must be older than version {self.policy_version}")


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of `nbytes` that starts in `bucket` at `offset` (bytes) and may run on into the following buckets.

    `digest` is the xxh3-128 of its bytes in C order, little endian. An alias repeats all this of its owner.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bucket: int
    offset: int
    nbytes: int
    digest: str
    alias_of: str | None = None

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, self.dtype, self.alias_of)


@dataclass(frozen=True)
class BucketEntry:
    """`digest`: xxh3-128 of the bucket's bytes, padding included, as hex."""

    nbytes: int
    digest: str


@dataclass(frozen=True)
class FileEntry:
    """A small file (config, tokenizer, chat template); it has a bucket of its own unless it is empty."""

    name: str
    nbytes: int
    bucket: int


@dataclass(frozen=True)
class Manifest:
    """Checks itself on construction; raises BadManifest. Tensor buckets come first, then those of the files."""

    version: VersionId
    tensors: tuple[TensorEntry, ...]
    buckets: tuple[BucketEntry, ...]
    files: tuple[FileEntry, ...] = ()

    def __post_init__(self) -> None:
        check_manifest(self)

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical text, hex."""
        return hashlib.sha256(manifest_to_json(self).encode()).hexdigest()

    @cached_property
    def content_digest(self) -> str:
        """sha256 over (name, dtype, shape, digest) of every tensor, sorted by name, hex."""
        rows = sorted((entry.name, entry.dtype, list(entry.shape), entry.digest) for entry in self.tensors)
        return hashlib.sha256(_canonical(rows).encode()).hexdigest()

    @cached_property
    def bucket_starts(self) -> tuple[int, ...]:
        """Where each bucket starts in the arena, in bytes."""
        return tuple(itertools.accumulate((bucket.nbytes for bucket in self.buckets), initial=0))[:-1]

    @property
    def total_bytes(self) -> int:
        return sum(bucket.nbytes for bucket in self.buckets)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.tensors)

    @property
    def layout(self) -> tuple[TensorSpec, ...]:
        return tuple(entry.spec for entry in self.tensors)

    @cached_property
    def _by_name(self) -> dict[str, TensorEntry]:
        return {entry.name: entry for entry in self.tensors}

    def tensor(self, name: str) -> TensorEntry:
        """Raises KeyError."""
        return self._by_name[name]

    def arena_offset(self, entry: TensorEntry) -> int:
        """Where the tensor starts in the arena, in bytes; 0 for an empty one."""
        return self.bucket_starts[entry.bucket] + entry.offset if entry.nbytes else 0

    def __str__(self) -> str:
        return f"job {self.version.job_id} version {self.version.policy_version} ({self.digest[:12]})"


def check_manifest(manifest: Manifest) -> None:
    """Coverage: tensors lie inside their buckets, none overlap, no gap is more than padding; files likewise."""
    for index, bucket in enumerate(manifest.buckets):
        if bucket.nbytes <= 0:
            raise BadManifest(f"bucket {index} has {bucket.nbytes} bytes; an empty one is left out")
        _check_digest(f"bucket {index}", bucket.digest)
    n_tensor_buckets = _check_files(manifest)
    _check_tensors(manifest)
    _check_coverage(manifest, n_tensor_buckets)


def _check_files(manifest: Manifest) -> int:
    """Returns the number of tensor buckets."""
    seen: set[str] = set()
    full = [entry for entry in manifest.files if entry.nbytes]
    first = len(manifest.buckets) - len(full)
    for entry in manifest.files:
        if not entry.name or entry.name in seen:
            raise BadManifest(f"file name {entry.name!r} is empty or given twice")
        seen.add(entry.name)
    for index, entry in enumerate(full):
        if entry.bucket != first + index or entry.bucket < 0:
            raise BadManifest(f"file {entry.name!r} must have bucket {first + index}, not {entry.bucket}")
        if manifest.buckets[entry.bucket].nbytes != entry.nbytes:
            raise BadManifest(
                f"file {entry.name!r}: {entry.nbytes} bytes in a bucket of {manifest.buckets[entry.bucket].nbytes}"
            )
    return first


def _check_tensors(manifest: Manifest) -> None:
    owners: dict[str, TensorEntry] = {}
    for entry in manifest.tensors:
        if not entry.name or entry.name in owners:
            raise BadManifest(f"tensor name {entry.name!r} is empty or given twice")
        owners[entry.name] = entry
        if entry.nbytes != tensor_bytes(entry.shape, entry.dtype):
            raise BadManifest(
                f"tensor {entry.name!r}: {entry.nbytes} bytes do not make {entry.dtype}{list(entry.shape)}"
            )
        _check_digest(f"tensor {entry.name!r}", entry.digest)
    for entry in manifest.tensors:
        if entry.alias_of is None:
            continue
        owner = owners.get(entry.alias_of)
        if owner is None or owner.alias_of is not None:
            raise BadManifest(f"tensor {entry.name!r} is tied to {entry.alias_of!r}, which is no tensor of its own")
        if _place_and_bytes(entry) != _place_and_bytes(owner):
            raise BadManifest(f"tensor {entry.name!r} and {owner.name!r}, which it is tied to, differ")


def _place_and_bytes(entry: TensorEntry) -> tuple[object, ...]:
    return entry.shape, entry.dtype, entry.bucket, entry.offset, entry.nbytes, entry.digest


def _check_coverage(manifest: Manifest, n_tensor_buckets: int) -> None:
    end = sum(bucket.nbytes for bucket in manifest.buckets[:n_tensor_buckets])
    reached = 0
    for start, entry in sorted(_spans(manifest, n_tensor_buckets), key=lambda span: span[0]):
        if not reached <= start < reached + ALIGN:
            raise BadManifest(f"tensor {entry.name!r} starts at byte {start} of the arena; covered so far: {reached}")
        reached = start + entry.nbytes
    if not reached <= end < reached + ALIGN:
        raise BadManifest(f"tensors cover {reached} bytes of {end} in their buckets")


def _spans(manifest: Manifest, n_tensor_buckets: int) -> Iterator[tuple[int, TensorEntry]]:
    for entry in manifest.tensors:
        if entry.alias_of is not None or not entry.nbytes:
            continue
        if not 0 <= entry.bucket < n_tensor_buckets:
            raise BadManifest(f"tensor {entry.name!r} names bucket {entry.bucket} of {n_tensor_buckets}")
        if not 0 <= entry.offset < manifest.buckets[entry.bucket].nbytes:
            raise BadManifest(f"tensor {entry.name!r} starts at {entry.offset}, outside its bucket")
        yield manifest.arena_offset(entry), entry


def _check_digest(what: str, digest: str) -> None:
    if len(digest) != DIGEST_HEX_CHARS or not set(digest) <= set("0123456789abcdef"):
        raise BadManifest(f"{what}: {digest!r} is not a digest of {DIGEST_HEX_CHARS} hex digits")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def manifest_to_json(manifest: Manifest) -> str:
    """The canonical text: one manifest has one text."""
    rows = {
        "schema": SCHEMA,
        "version": vars(manifest.version),
        "tensors": [vars(entry) for entry in manifest.tensors],
        "buckets": [vars(entry) for entry in manifest.buckets],
        "files": [vars(entry) for entry in manifest.files],
    }
    return _canonical(rows)


def manifest_from_json(text: str) -> Manifest:
    """Raises BadManifest for text that is not a manifest of this schema."""
    try:
        raw = json.loads(text)
        if raw.pop("schema") != SCHEMA:
            raise BadManifest(f"not a {SCHEMA} manifest")
        return Manifest(
            version=VersionId(**raw["version"]),
            tensors=tuple(TensorEntry(**{**entry, "shape": tuple(entry["shape"])}) for entry in raw["tensors"]),
            buckets=tuple(BucketEntry(**entry) for entry in raw["buckets"]),
            files=tuple(FileEntry(**entry) for entry in raw["files"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadManifest(f"not a {SCHEMA} manifest: {error!r}") from error
