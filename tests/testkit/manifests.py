"""Manifests without bytes: digests are made up from a seed, so that equal seeds mean equal content."""

from collections.abc import Sequence

from headrace.core.weights import BucketEntry, Manifest, TensorEntry, VersionId
from headrace.core.weights.layout import ITEM_BYTES, plan_buckets


def fake_digest(*parts: object) -> str:
    """32 hex digits that depend on the parts alone."""
    value = 0
    for character in repr(parts):
        value = (value * 1_000_003 + ord(character)) % (1 << 128)
    return f"{value:032x}"


def make_manifest(
    policy_version: int = 0,
    *,
    job_id: str = "job",
    epoch: int = 1,
    seeds: Sequence[object] = (0, 0),
    n_items: int = 64,
    dtype: str = "float32",
) -> Manifest:
    """One tensor of `n_items` per seed, each in a bucket of its own."""
    nbytes = n_items * ITEM_BYTES[dtype]
    bucket_bytes = -(-nbytes // 64) * 64
    plan = plan_buckets([nbytes] * len(seeds), bucket_bytes)
    return Manifest(
        version=VersionId(job_id, policy_version, epoch, parent=policy_version - 1 if policy_version else None),
        tensors=tuple(
            TensorEntry(f"w{index}", (n_items,), dtype, place.bucket, place.offset, nbytes, fake_digest("t", seed))
            for index, (seed, place) in enumerate(zip(seeds, plan.placements, strict=True))
        ),
        buckets=tuple(BucketEntry(bucket_bytes, fake_digest("b", seed)) for seed in seeds),
    )
