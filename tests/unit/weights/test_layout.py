"""Cutting tensors into buckets, parameter names, and what counts as the same layout."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.weights.errors import BadManifest, LayoutMismatch
from headrace.core.weights.layout import (
    ALIGN,
    TensorSpec,
    canonical_name,
    canonical_names,
    check_layout,
    layout_difference,
    plan_buckets,
    tensor_bytes,
)

SIZES = st.lists(st.integers(0, 2000), max_size=30)
BUCKETS = st.integers(1, 20).map(lambda n: n * ALIGN)


@given(SIZES, BUCKETS)
def test_plan_covers_every_tensor_once_in_order_within_the_bucket_size(sizes: list[int], bucket_bytes: int) -> None:
    plan = plan_buckets(sizes, bucket_bytes)
    starts = [*itertools.accumulate(plan.bucket_bytes, initial=0)]
    reached = 0
    for size, place in zip(sizes, plan.placements, strict=True):
        if not size:
            continue
        start = starts[place.bucket] + place.offset
        assert start % ALIGN == 0
        assert reached <= start < reached + ALIGN
        assert place.offset < plan.bucket_bytes[place.bucket]
        reached = start + size
    assert reached <= starts[-1] < reached + ALIGN
    assert all(0 < size <= bucket_bytes and size % ALIGN == 0 for size in plan.bucket_bytes)


@given(SIZES, BUCKETS)
def test_only_a_tensor_larger_than_a_bucket_is_cut(sizes: list[int], bucket_bytes: int) -> None:
    plan = plan_buckets(sizes, bucket_bytes)
    for size, place in zip(sizes, plan.placements, strict=True):
        if 0 < size <= bucket_bytes:
            assert place.offset + size <= plan.bucket_bytes[place.bucket]
        elif size:
            assert place.offset == 0


@pytest.mark.parametrize("bucket_bytes", [0, -64, 63, 100])
def test_a_bucket_size_that_breaks_alignment_is_refused(bucket_bytes: int) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        plan_buckets([1], bucket_bytes)


@pytest.mark.parametrize(
    ("given_name", "short"),
    [
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("_orig_mod.model.norm.weight", "model.norm.weight"),
        ("module.model.norm.weight", "model.norm.weight"),
        ("module._orig_mod.model.norm.weight", "model.norm.weight"),
        ("_orig_mod.module.module.lm_head.weight", "lm_head.weight"),
        ("model.layers.0._orig_mod.mlp.weight", "model.layers.0.mlp.weight"),
        ("_fsdp_wrapped_module.layers.1._checkpoint_wrapped_module.w", "layers.1.w"),
        ("encoder.module.weight", "encoder.module.weight"),
        ("module", "module"),
    ],
)
def test_wrappers_are_taken_off_names_and_nothing_else(given_name: str, short: str) -> None:
    assert canonical_name(given_name) == short


def test_two_names_for_one_parameter_are_refused() -> None:
    with pytest.raises(LayoutMismatch, match=r"both mean 'w'"):
        canonical_names(["module.w", "w"])


def test_a_misspelt_name_is_listed_as_missing_and_unexpected() -> None:
    right = [TensorSpec("embed", (2, 2), "float32"), TensorSpec("norm", (2,), "float32")]
    wrong = [TensorSpec("embed", (2, 2), "float32"), TensorSpec("nrom", (2,), "float32")]
    difference = layout_difference(right, wrong)
    assert (difference.missing, difference.unexpected, difference.changed) == (("norm",), ("nrom",), ())
    with pytest.raises(LayoutMismatch, match="missing: norm; unexpected: nrom; changed: none"):
        check_layout(right, wrong)


@pytest.mark.parametrize(
    "other",
    [
        TensorSpec("w", (3, 2), "float32"),
        TensorSpec("w", (6,), "float32"),
        TensorSpec("w", (2, 3), "bfloat16"),
        TensorSpec("w", (2, 3), "float32", alias_of="v"),
    ],
)
def test_equal_element_counts_do_not_make_layouts_equal(other: TensorSpec) -> None:
    with pytest.raises(LayoutMismatch, match="changed: w"):
        check_layout([TensorSpec("w", (2, 3), "float32")], [other])


def test_the_order_of_tensors_does_not_matter() -> None:
    one, other = TensorSpec("a", (1,), "int64"), TensorSpec("b", (1,), "int64")
    check_layout([one, other], [other, one])


def test_long_lists_of_names_are_cut() -> None:
    specs = [TensorSpec(f"w{index:03}", (1,), "float32") for index in range(25)]
    with pytest.raises(LayoutMismatch, match=r"w019 and 5 more"):
        check_layout(specs, [])


@pytest.mark.parametrize(
    ("shape", "dtype", "nbytes"), [((), "float32", 4), ((3, 0), "int8", 0), ((2, 3), "bfloat16", 12)]
)
def test_bytes_of_a_tensor(shape: tuple[int, ...], dtype: str, nbytes: int) -> None:
    assert tensor_bytes(shape, dtype) == nbytes


@pytest.mark.parametrize(("shape", "dtype"), [((2,), "complex64"), ((-1,), "int8")])
def test_tensors_that_cannot_be_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(BadManifest):
        tensor_bytes(shape, dtype)
