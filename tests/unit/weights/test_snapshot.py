"""From tensors to a manifest and an arena: names, ties, dtypes and bucket sizes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.weights import VersionId
from headrace.core.weights.errors import BadManifest, LayoutMismatch
from weightstore.digest import digest_of
from weightstore.memory import BufferPool, allocate
from weightstore.snapshot import Content, Snapshot, take_snapshot

V = VersionId("job", 3, 1, parent=2, step=3)


def snap(tensors: dict[str, Any], *, bucket_bytes: int = 1 << 20, **more: Any) -> Snapshot:
    return take_snapshot(V, Content(tensors, **more), bucket_bytes=bucket_bytes, pool=BufferPool())


def stored(snapshot: Snapshot, name: str) -> bytes:
    entry = snapshot.manifest.tensor(name)
    start = snapshot.manifest.arena_offset(entry)
    return snapshot.arena[start : start + entry.nbytes].tobytes()


def test_bytes_do_not_depend_on_the_bucket_size() -> None:
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((3, 40, 40)).astype(np.float32)
    tensors = {"qkv": qkv, "up": rng.standard_normal((7, 5)), "scale": np.float32(2.0).reshape(()), "norm": np.ones(9)}
    snapshots = [snap(tensors, bucket_bytes=size) for size in (64, 1024, 1 << 20)]
    assert len({len(snapshot.manifest.buckets) for snapshot in snapshots}) == 3
    assert len({snapshot.manifest.content_digest for snapshot in snapshots}) == 1
    for snapshot in snapshots:
        assert {name: stored(snapshot, name) for name in tensors} == {
            name: array.tobytes() for name, array in tensors.items()
        }


@given(st.data())
@settings(max_examples=40)
def test_any_tensors_come_back_bit_for_bit_with_every_digest_right(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=6))
    dtypes = st.sampled_from(["float32", "int64", "bool", "uint16", "float16"])
    rng = np.random.default_rng(1)
    tensors = {
        f"w{index}": rng.integers(0, 2, size=shape).astype(data.draw(dtypes)) for index, shape in enumerate(shapes)
    }
    snapshot = snap(tensors, bucket_bytes=64 * data.draw(st.integers(1, 4)))
    for index, bucket in enumerate(snapshot.manifest.buckets):
        assert digest_of(snapshot.bucket(index)) == bucket.digest
    for name, array in tensors.items():
        entry = snapshot.manifest.tensor(name)
        assert (entry.shape, entry.dtype) == (array.shape, array.dtype.name)
        assert stored(snapshot, name) == array.tobytes()
        assert entry.digest == digest_of(np.frombuffer(array.tobytes(), dtype=np.uint8))


def test_the_snapshot_is_a_copy() -> None:
    weights = np.zeros(4, dtype=np.float32)
    snapshot = snap({"w": weights})
    weights += 1
    assert stored(snapshot, "w") == bytes(16)


def test_views_that_are_not_contiguous_are_stored_in_c_order() -> None:
    base = np.arange(12, dtype=np.int32).reshape(3, 4)
    snapshot = snap({"t": base.T, "strided": base[:, ::2]})
    assert stored(snapshot, "t") == base.T.tobytes()
    assert stored(snapshot, "strided") == base[:, ::2].tobytes()


def test_reused_memory_leaves_no_trace_in_the_padding() -> None:
    pool = BufferPool()
    dirty = allocate(64)
    dirty[:] = 255
    pool.give(dirty)
    again = take_snapshot(V, Content({"w": np.zeros(1, np.float32)}), bucket_bytes=64, pool=pool)
    assert again.arena is dirty
    assert again.manifest.digest == snap({"w": np.zeros(1, np.float32)}, bucket_bytes=64).manifest.digest


def test_tied_tensors_are_stored_once_and_both_names_stay() -> None:
    embed = np.array([[2, 0], [0, 1]], dtype=np.float32)
    alone = snap({"embed": embed}, aliases={"lm_head": "embed"})
    both = snap({"embed": embed, "lm_head": embed.copy()}, aliases={"lm_head": "embed"})
    assert alone.manifest.digest == both.manifest.digest
    assert alone.manifest.total_bytes == 64
    assert stored(alone, "lm_head") == embed.tobytes()
    hidden = np.array([1, 0], dtype=np.float32)
    lm_head = np.frombuffer(stored(alone, "lm_head"), dtype=np.float32).reshape(2, 2)
    assert (lm_head @ hidden)[0] == 2


@pytest.mark.parametrize(
    "aliases", [{"lm_head": "embed"}, {"lm_head": "absent"}, {"lm_head": "embed", "other": "lm_head"}]
)
def test_ties_that_do_not_hold_are_refused(aliases: dict[str, str]) -> None:
    tensors = {"embed": np.ones((2, 2), np.float32), "lm_head": np.zeros((2, 2), np.float32)}
    with pytest.raises(LayoutMismatch, match=r"lm_head|absent"):
        snap(tensors, aliases=aliases)


def test_tied_nan_weights_are_equal() -> None:
    nan = np.full(3, np.nan, np.float32)
    assert snap({"a": nan, "b": nan.copy()}, aliases={"b": "a"}).manifest.tensor("b").alias_of == "a"


def test_names_lose_their_wrappers_everywhere() -> None:
    one = np.ones(2, dtype=np.uint16)
    snapshot = snap(
        {"module._orig_mod.embed": one},
        dtypes={"module._orig_mod.embed": "bfloat16"},
        aliases={"_orig_mod.head": "module.embed"},
    )
    assert snapshot.manifest.names == ("embed", "head")
    assert snapshot.manifest.tensor("embed").dtype == "bfloat16"


def test_nothing_is_cast() -> None:
    fine = np.array([1.0009765625], dtype=np.float32)
    big = np.array([16777217], dtype=np.int64)
    snapshot = snap({"fine": fine, "big": big})
    assert stored(snapshot, "fine") == fine.tobytes()
    assert stored(snapshot, "big") == big.tobytes()
    for wrong in ({"fine": "bfloat16"}, {"big": "float64"}, {"big": "int32"}):
        with pytest.raises(LayoutMismatch, match="declared"):
            snap({"fine": fine, "big": big}, dtypes=wrong)


@pytest.mark.parametrize(
    ("tensors", "more", "error"),
    [
        ({"w": np.ones(2, np.complex64)}, {}, BadManifest),
        ({"w": np.ones(2, ">f4")}, {}, LayoutMismatch),
        ({"w": np.array(["text"])}, {}, BadManifest),
        ({"w": np.ones(2), "module.w": np.ones(2)}, {}, LayoutMismatch),
        ({"w": np.ones(2)}, {"dtypes": {"v": "float32"}}, LayoutMismatch),
        ({"w": np.ones(2)}, {"files": {"": b"x"}}, BadManifest),
    ],
)
def test_what_cannot_be_stored_is_refused(tensors: Any, more: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        snap(tensors, **more)


def test_files_travel_in_buckets_of_their_own() -> None:
    files = {"config.json": b"{}", "empty": b"", "tokenizer.json": b"t" * 100}
    snapshot = snap({"w": np.ones(3, np.float32)}, files=files)
    assert [(entry.name, entry.nbytes, entry.bucket) for entry in snapshot.manifest.files] == [
        ("config.json", 2, 1),
        ("empty", 0, 0),
        ("tokenizer.json", 100, 2),
    ]
    assert snapshot.bucket(2).tobytes() == b"t" * 100


def test_a_pool_reuses_by_size_and_stays_under_its_cap() -> None:
    pool = BufferPool(cap_bytes=300)
    one, two = pool.take(100), pool.take(200)
    pool.give(one)
    assert pool.take(100) is one
    pool.give(one)
    pool.give(two)
    assert pool.spare_bytes == 300
    pool.take(250)
    assert pool.spare_bytes <= 50
