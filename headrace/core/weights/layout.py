"""What a job's weights look like (names, shapes, dtypes, ties), and how they are cut into buckets.

All buckets of a version lie one after another in one arena:

    arena   |t0 t1 ·|t2 t2 t2 ·|t2 t3 ·|          · = zero padding up to ALIGN
    bucket  |   0   |    1     |   2   |          t2 is larger than a bucket and runs on into the next
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.core.weights.errors import BadManifest, LayoutMismatch

ALIGN = 64

ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}

# What wrappers put before or between the parts of a parameter's name, without changing which parameter it is.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_OUTER_WRAPPER = "module"


@dataclass(frozen=True)
class TensorSpec:
    """One tensor: `shape` in elements, `dtype` a key of ITEM_BYTES, `alias_of` the name of the tensor it is tied to."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    alias_of: str | None = None

    @property
    def nbytes(self) -> int:
        return tensor_bytes(self.shape, self.dtype)


def tensor_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a dense tensor. Raises BadManifest for a dtype that is not in ITEM_BYTES or a negative extent."""
    if dtype not in ITEM_BYTES:
        raise BadManifest(f"dtype {dtype!r} is not known; known are {', '.join(sorted(ITEM_BYTES))}")
    if any(extent < 0 for extent in shape):
        raise BadManifest(f"shape {tuple(shape)} has a negative extent")
    return math.prod(shape) * ITEM_BYTES[dtype]


def canonical_name(name: str) -> str:
    """The parameter's own name, without the parts that torch.compile, DDP, FSDP and activation checkpointing add."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in {_OUTER_WRAPPER, *_WRAPPERS}:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _WRAPPERS)


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Given name -> canonical name. Raises LayoutMismatch when two given names mean the same parameter."""
    result: dict[str, str] = {}
    owner: dict[str, str] = {}
    for name in names:
        short = canonical_name(name)
        if not short:
            raise LayoutMismatch(f"{name!r} names no parameter")
        if short in owner:
            raise LayoutMismatch(f"{name!r} and {owner[short]!r} both mean {short!r}; give one of them")
        owner[short] = name
        result[name] = short
    return result


@dataclass(frozen=True)
class LayoutDifference:
    """Names, sorted. `changed` are those whose shape, dtype or tie differs, with both sides written out."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    changed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.changed)


def layout_difference(expected: Iterable[TensorSpec], given: Iterable[TensorSpec]) -> LayoutDifference:
    """How `given` differs from `expected`; falsy when it does not. Equal element counts do not make shapes equal."""
    want = {spec.name: spec for spec in expected}
    have = {spec.name: spec for spec in given}
    changed = (
        f"{name}: {_describe(want[name])} became {_describe(have[name])}"
        for name in sorted(want.keys() & have.keys())
        if want[name] != have[name]
    )
    return LayoutDifference(
        missing=tuple(sorted(want.keys() - have.keys())),
        unexpected=tuple(sorted(have.keys() - want.keys())),
        changed=tuple(changed),
    )


def check_layout(expected: Iterable[TensorSpec], given: Iterable[TensorSpec]) -> None:
    """Raises LayoutMismatch with the missing, unexpected and changed tensors, if there are any."""
    difference = layout_difference(expected, given)
    if difference:
        raise LayoutMismatch(
            f"missing: {_list(difference.missing)}; unexpected: {_list(difference.unexpected)}; "
            f"changed: {_list(difference.changed)}"
        )


def _describe(spec: TensorSpec) -> str:
    tie = f" tied to {spec.alias_of}" if spec.alias_of else ""
    return f"{spec.dtype}{list(spec.shape)}{tie}"


def _list(items: Sequence[str], limit: int = 20) -> str:
    shown = ", ".join(items[:limit]) or "none"
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


@dataclass(frozen=True)
class Placement:
    """Where a tensor starts."""

    bucket: int
    offset: int


@dataclass(frozen=True)
class BucketPlan:
    """One placement per tensor, in the order given, and the size of every bucket in bytes."""

    placements: tuple[Placement, ...]
    bucket_bytes: tuple[int, ...]


def plan_buckets(sizes: Sequence[int], bucket_bytes: int) -> BucketPlan:
    """Packs tensors of these sizes (bytes), in order, into buckets of at most `bucket_bytes`, each a multiple of ALIGN.

    A bucket ends at a tensor's end where it can, so that an unchanged run of tensors keeps its digest. A tensor that
    is larger than a bucket begins a new one and is cut; an empty tensor takes no room and is placed at (0, 0).
    """
    if bucket_bytes < ALIGN or bucket_bytes % ALIGN:
        raise ValueError(f"bucket_bytes must be a positive multiple of {ALIGN}, not {bucket_bytes}")
    placements: list[Placement] = []
    closed: list[int] = []
    filled = 0
    for size in sizes:
        if size == 0:
            placements.append(Placement(0, 0))
            continue
        padded = -(-size // ALIGN) * ALIGN
        if filled and filled + padded > bucket_bytes:
            closed.append(filled)
            filled = 0
        placements.append(Placement(len(closed), filled))
        filled += padded
        while filled > bucket_bytes:
            closed.append(bucket_bytes)
            filled -= bucket_bytes
    if filled:
        closed.append(filled)
    return BucketPlan(tuple(placements), tuple(closed))
