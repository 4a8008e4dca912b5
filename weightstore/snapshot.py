"""A version as its publisher holds it: tensors copied once into an arena, cut into buckets, with every digest computed.

After `take_snapshot` returns, the trainer may change its parameters: nothing refers to them any more.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.core.weights.errors import LayoutMismatch
from headrace.core.weights.layout import TensorSpec, canonical_name, canonical_names, plan_buckets
from headrace.core.weights.manifest import BucketEntry, FileEntry, Manifest, TensorEntry, VersionId
from weightstore.digest import digest_of
from weightstore.memory import BufferPool, Bytes

# numpy has no name for these; their bits travel as unsigned integers of the same size.
STORED_AS: Mapping[str, str] = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Content:
    """What goes into a version. `dtypes` names what numpy cannot (bfloat16 in uint16 arrays); nothing is ever cast.

    `aliases`: tied name -> name of the tensor that holds the bytes. `files`: small files by name.
    """

    tensors: Mapping[str, Array]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`arena`: all buckets, one after another. `stage_s`: how long the tensors had to stand still."""

    manifest: Manifest
    arena: Bytes
    stage_s: float

    def bucket(self, index: int) -> Bytes:
        start = self.manifest.bucket_starts[index]
        return self.arena[start : start + self.manifest.buckets[index].nbytes]


def take_snapshot(version: VersionId, content: Content, *, bucket_bytes: int, pool: BufferPool) -> Snapshot:
    """Copies and digests. Raises LayoutMismatch or BadManifest for names, dtypes or ties that do not hold."""
    started_s = time.monotonic()
    owners, ties = _resolve(content)
    specs = [TensorSpec(name, array.shape, dtype) for name, (array, dtype) in owners.items()]
    plan = plan_buckets([spec.nbytes for spec in specs], bucket_bytes)
    files = {name: data for name, data in content.files.items() if data}
    sizes = [*plan.bucket_bytes, *map(len, files.values())]
    starts = np.cumsum([0, *sizes])

    arena = pool.take(sum(sizes))
    try:
        arena[: starts[len(plan.bucket_bytes)]] = 0
        entries: dict[str, TensorEntry] = {}
        for spec, place, (array, _) in zip(specs, plan.placements, owners.values(), strict=True):
            start = int(starts[place.bucket]) + place.offset
            target = arena[start : start + spec.nbytes]
            if spec.nbytes:
                np.copyto(target.view(array.dtype).reshape(array.shape), array, casting="no")
            entries[spec.name] = TensorEntry(
                spec.name, spec.shape, spec.dtype, place.bucket, place.offset, spec.nbytes, digest_of(target)
            )
        for index, data in enumerate(files.values(), start=len(plan.bucket_bytes)):
            arena[starts[index] : starts[index + 1]] = np.frombuffer(data, dtype=np.uint8)
        manifest = Manifest(
            version=version,
            tensors=(*entries.values(), *(_tie(name, entries[owner]) for name, owner in ties.items())),
            buckets=tuple(
                BucketEntry(size, digest_of(arena[start : start + size]))
                for size, start in zip(sizes, starts[:-1], strict=True)
            ),
            files=_file_entries(content.files, first_bucket=len(plan.bucket_bytes)),
        )
    except Exception:
        pool.give(arena)
        raise
    return Snapshot(manifest, arena, time.monotonic() - started_s)


def _tie(name: str, owner: TensorEntry) -> TensorEntry:
    place = (owner.shape, owner.dtype, owner.bucket, owner.offset, owner.nbytes, owner.digest)
    return TensorEntry(name, *place, alias_of=owner.name)


def _file_entries(files: Mapping[str, bytes], first_bucket: int) -> tuple[FileEntry, ...]:
    entries = []
    bucket = first_bucket
    for name, data in files.items():
        entries.append(FileEntry(name, len(data), bucket if data else 0))
        bucket += bool(data)
    return tuple(entries)


def _resolve(content: Content) -> tuple[dict[str, tuple[Array, str]], dict[str, str]]:
    """Tensors that own bytes, with their dtypes, and ties, all under canonical names."""
    short = canonical_names(content.tensors)
    tensors = {short[name]: array for name, array in content.tensors.items()}
    ties = {canonical_name(tied): canonical_name(owner) for tied, owner in content.aliases.items()}
    dtypes = {canonical_name(name): dtype for name, dtype in content.dtypes.items()}
    unknown = sorted((dtypes.keys() | set(ties.values())) - tensors.keys() - ties.keys())
    if unknown:
        raise LayoutMismatch(f"dtypes or aliases name tensors that are not there: {', '.join(unknown)}")
    for tied, owner in ties.items():
        _check_tie(tied, owner, tensors, ties)
    owners = {
        name: (array, _dtype_of(name, array, dtypes.get(name))) for name, array in tensors.items() if name not in ties
    }
    return owners, ties


def _check_tie(tied: str, owner: str, tensors: Mapping[str, Array], ties: Mapping[str, str]) -> None:
    if owner in ties or owner not in tensors:
        raise LayoutMismatch(f"{tied} is tied to {owner}, which holds no bytes of its own")
    if tied not in tensors:
        return
    one, other = tensors[tied], tensors[owner]
    is_same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if not is_same:
        raise LayoutMismatch(f"{tied} and {owner} are tied but hold different values; untie them or give one")


def _dtype_of(name: str, array: Array, declared: str | None) -> str:
    if array.dtype.byteorder == ">":
        raise LayoutMismatch(f"{name}: big-endian arrays are not taken; convert it")
    stored = array.dtype.name
    dtype = declared or stored
    wanted = STORED_AS.get(dtype, dtype)
    if wanted != stored:
        raise LayoutMismatch(f"{name}: declared {dtype}, which is stored as {wanted}, but the array is {stored}")
    return dtype
