"""Attention over groups of unequal length equals one plain attention per request."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from inference_svc.engine.hf_attention import PageLayout, Span, group_of, padded_attention, plan_groups

PAGE, HEADS, KV_HEADS, DIM = 4, 4, 2, 8
LAYOUT = PageLayout(page_size=PAGE, stride=1, trash_page=0, heads_per_kv_head=HEADS // KV_HEADS)


def build(lengths: list[tuple[int, int]]) -> tuple[list[Span], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Spans over a shuffled page table, and the caches and queries that go with them."""
    ordered = sorted(lengths, key=lambda pair: group_of(pair[1]))
    generator = torch.Generator().manual_seed(len(ordered))
    n_pages = sum(-(-(past + query) // PAGE) for past, query in ordered)
    pages = (torch.randperm(n_pages, generator=generator) + 1).tolist()
    spans = []
    for past, query in ordered:
        used = -(-(past + query) // PAGE)
        spans.append(Span(past, query, [pages.pop() for _ in range(used)]))
    shape = ((n_pages + 1) * PAGE, KV_HEADS, DIM)
    keys, values = (torch.randn(shape, generator=generator) for _ in range(2))
    query = torch.randn(1, HEADS, sum(query for _, query in ordered), DIM, generator=generator)
    return spans, query, keys, values


def plain(span: Span, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One request alone: query [1, H, Q, D] over its own keys, causal; returns [Q, H, D]."""
    length = span.past + span.query
    index = torch.tensor([span.blocks[n // PAGE] * PAGE + n % PAGE for n in range(length)])
    k, v = (
        cache[index].transpose(0, 1).unsqueeze(0).repeat_interleave(HEADS // KV_HEADS, 1) for cache in (keys, values)
    )
    is_seen = torch.arange(length) <= (span.past + torch.arange(span.query)).unsqueeze(-1)
    return scaled_dot_product_attention(query, k, v, attn_mask=is_seen, scale=0.3)[0].transpose(0, 1)


lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), min_size=1, max_size=8)


@settings(max_examples=60)
@given(lengths)
def test_it_equals_one_attention_per_request(pairs: list[tuple[int, int]]) -> None:
    spans, query, keys, values = build(pairs)
    groups, pages = plan_groups(spans, LAYOUT, torch.float32)
    read_keys, read_values = (
        cache.view(-1, PAGE, KV_HEADS, DIM)[pages].flatten(0, 1).transpose(0, 1).unsqueeze(0)
        for cache in (keys, values)
    )
    out, _ = padded_attention(torch.nn.Identity(), query, read_keys, read_values, None, scaling=0.3, groups=groups)
    first = 0
    for span in spans:
        expected = plain(span, query[:, :, first : first + span.query], keys, values)
        torch.testing.assert_close(out[0, first : first + span.query], expected, atol=2e-6, rtol=1e-5)
        first += span.query
    assert first == out.shape[1]


@pytest.mark.parametrize(("query", "group"), [(1, 0), (2, 1), (16, 1), (17, 2), (500, 2)])
def test_groups_are_cut_by_query_length(query: int, group: int) -> None:
    assert group_of(query) == group


def test_work_does_not_grow_with_the_other_requests() -> None:
    # The keys that are read are the sum over requests, padded to the longest of a group: no cross products.
    spans, *_ = build([(20, 1)] * 8)
    groups, pages = plan_groups(spans, LAYOUT, torch.float32)
    assert pages.numel() == 8 * 6
    assert [tuple(group.mask.shape) for group in groups] == [(8, 1, HEADS // KV_HEADS, 24)]
