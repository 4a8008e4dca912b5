"""A manifest proves its own coverage, has one text, and two digests that mean what they say."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.manifests import fake_digest, make_manifest

from headrace.client.weights import manifest_from_wire, manifest_to_wire
from headrace.core.weights import (
    BucketEntry,
    FileEntry,
    Manifest,
    TensorEntry,
    VersionId,
    manifest_from_json,
    manifest_to_json,
)
from headrace.core.weights.errors import BadManifest
from headrace.core.weights.layout import plan_buckets

D = fake_digest("d")
V0 = VersionId("job", 0, 1)


def entry(name: str, n: int, bucket: int, offset: int, **more: Any) -> TensorEntry:
    return TensorEntry(name, (n,), "uint8", bucket, offset, n, D, **more)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 3))
def test_every_plan_makes_a_manifest_that_survives_both_encodings(sizes: list[int], n_lines: int, n_files: int) -> None:
    plan = plan_buckets(sizes, 64 * n_lines)
    n_buckets = len(plan.bucket_bytes)
    manifest = Manifest(
        version=VersionId("job", 3, 2, parent=1, step=9),
        tensors=tuple(
            entry(f"w{index}", size, place.bucket, place.offset)
            for index, (size, place) in enumerate(zip(sizes, plan.placements, strict=True))
        ),
        buckets=(
            *(BucketEntry(size, fake_digest(index)) for index, size in enumerate(plan.bucket_bytes)),
            *(BucketEntry(5, fake_digest("file", index)) for index in range(n_files)),
        ),
        files=(*(FileEntry(f"f{index}", 5, n_buckets + index) for index in range(n_files)), FileEntry("empty", 0, 0)),
    )
    assert manifest_from_json(manifest_to_json(manifest)) == manifest
    copy = manifest_from_wire(manifest_to_wire(manifest).SerializeToString())
    assert copy == manifest
    assert copy.digest == manifest.digest


def test_the_digest_names_everything_and_the_content_digest_the_bytes_alone() -> None:
    manifest = make_manifest(3, seeds=(1, 2))
    others = [
        make_manifest(4, seeds=(1, 2)),
        make_manifest(3, seeds=(1, 2), epoch=2),
        make_manifest(3, seeds=(1, 2), job_id="other"),
    ]
    assert len({manifest.digest, *(other.digest for other in others)}) == 4
    assert {other.content_digest for other in others} == {manifest.content_digest}
    assert make_manifest(3, seeds=(1, 3)).content_digest != manifest.content_digest


def test_version_zero_has_no_parent_on_the_wire() -> None:
    copy = manifest_from_wire(manifest_to_wire(make_manifest(0)))
    assert copy.version.parent is None
    zero = replace(make_manifest(1), version=VersionId("job", 1, 1, parent=0))
    assert manifest_from_wire(manifest_to_wire(zero)).version.parent == 0


BROKEN: dict[str, tuple[list[TensorEntry], list[int], list[FileEntry]]] = {
    "overlap": ([entry("a", 64, 0, 0), entry("b", 64, 0, 0)], [128], []),
    "gap": ([entry("a", 10, 0, 0), entry("b", 10, 0, 128)], [192], []),
    "past the end": ([entry("a", 100, 0, 0)], [64], []),
    "bytes that nobody owns": ([entry("a", 64, 0, 0)], [64, 64], []),
    "no such bucket": ([entry("a", 64, 1, 0)], [64], []),
    "offset outside its bucket": ([entry("a", 64, 0, 64)], [64, 64], []),
    "size against shape": ([TensorEntry("a", (2, 3), "float32", 0, 0, 23, D)], [64], []),
    "twice the same name": ([entry("a", 64, 0, 0), entry("a", 64, 0, 64)], [128], []),
    "no digest": ([TensorEntry("a", (64,), "uint8", 0, 0, 64, "")], [64], []),
    "tie to nothing": ([entry("a", 64, 0, 0, alias_of="b")], [], []),
    "tie to a tie": (
        [entry("a", 64, 0, 0), entry("b", 64, 0, 0, alias_of="a"), entry("c", 64, 0, 0, alias_of="b")],
        [64],
        [],
    ),
    "tie of other size": ([entry("a", 64, 0, 0), entry("b", 32, 0, 0, alias_of="a")], [64], []),
    "file in a tensor's bucket": ([entry("a", 64, 0, 0)], [64], [FileEntry("f", 64, 0)]),
    "file of other size": ([entry("a", 64, 0, 0)], [64, 5], [FileEntry("f", 4, 1)]),
    "tensor in a file's bucket": ([entry("a", 64, 1, 0)], [64, 64], [FileEntry("f", 64, 1)]),
    "empty bucket": ([], [0], []),
    "more files than buckets": ([], [], [FileEntry("f", 4, 0)]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_manifest_that_contradicts_itself_is_refused(case: str) -> None:
    tensors, buckets, files = BROKEN[case]
    with pytest.raises(BadManifest):
        Manifest(V0, tuple(tensors), tuple(BucketEntry(size, D) for size in buckets), tuple(files))


@pytest.mark.parametrize(
    "fields", [{"job_id": ""}, {"policy_version": -1}, {"epoch": -1}, {"step": -1}, {"parent": 2}, {"parent": -1}]
)
def test_a_version_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadManifest):
        VersionId(**{"job_id": "job", "policy_version": 2, "epoch": 0, **fields})


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"schema":"headrace.weights/v0"}', '{"schema":"headrace.weights/v1"}']
)
def test_text_that_is_no_manifest_is_refused(text: str) -> None:
    with pytest.raises(BadManifest):
        manifest_from_json(text)


def test_an_unknown_field_is_refused() -> None:
    raw = json.loads(manifest_to_json(make_manifest()))
    raw["buckets"][0]["size"] = 3
    with pytest.raises(BadManifest, match="size"):
        manifest_from_json(json.dumps(raw))


@pytest.mark.parametrize("field", ["digest", "total_bytes"])
def test_a_message_that_was_tampered_with_is_refused(field: str) -> None:
    message = manifest_to_wire(make_manifest())
    setattr(message, field, fake_digest("x") if field == "digest" else message.total_bytes + 1)
    with pytest.raises(BadManifest):
        manifest_from_wire(message)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(BadManifest, match="3 bytes are not a manifest"):
        manifest_from_wire(b"\xff\xff\xff")
