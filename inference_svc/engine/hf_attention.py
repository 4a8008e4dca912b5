"""Attention over a batch of sequences of unequal length, each on its own keys.

Transformers' own path on CPU builds one mask over the whole batch, so every query meets every key of every other
request: the cost grows with (sum of queries) x (sum of keys). Here the batch is cut into groups of like query length;
a group's keys are read from the cache page by page into a padded block, and each request attends to its own row.

    tokens  [ decode requests, one query each | short prefills | long prefills ]
    pages   [ B0 x pages0                     | B1 x pages1    | B2 x pages2   ]   (padding reads the trash page)

Heads that share a key-value head are stacked as extra query rows, so keys are never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "headrace_padded"

SHORT_QUERY_TOKENS = 16
"""Prefills up to this length form one group, so that a long one does not pad them out."""


@dataclass(frozen=True, slots=True)
class Span:
    """One request's part in a step: ``query`` new tokens after ``past`` cached ones, in these cache blocks."""

    past: int
    query: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of like query length.

    ``mask`` is additive, [B, 1, S x Q, K] for S query heads to a key-value head; ``pad_index`` [B x Q] spreads the
    group's tokens over padded rows and ``valid`` [T] picks the real ones again (both None where nothing is padded).
    """

    first_token: int
    n_tokens: int
    first_key: int
    size: int
    max_query: int
    max_key: int
    mask: torch.Tensor
    pad_index: torch.Tensor | None
    valid: torch.Tensor | None


def group_of(query: int) -> int:
    """0 for decodes, 1 for short prefills, 2 for long ones; requests of a step are ordered by it."""
    if query == 1:
        return 0
    return 1 if query <= SHORT_QUERY_TOKENS else 2


@dataclass(frozen=True, slots=True)
class PageLayout:
    """A block's page is ``block * stride`` in one layer's view of the cache; S query heads share a key-value head."""

    page_size: int
    stride: int
    trash_page: int
    heads_per_kv_head: int


def plan_groups(spans: Sequence[Span], layout: PageLayout, dtype: torch.dtype) -> tuple[list[Group], torch.Tensor]:
    """Cut ``spans`` (already ordered by group_of) into groups, and list the pages that they read, in order."""
    groups: list[Group] = []
    reads: list[np.ndarray] = []
    start = first_token = first_key = 0
    while start < len(spans):
        end = start + 1
        while end < len(spans) and group_of(spans[end].query) == group_of(spans[start].query):
            end += 1
        members = spans[start:end]
        pages = _pages(members, layout)
        n_keys = pages.shape[1] * layout.page_size
        groups.append(_group(members, first_token, first_key, n_keys, layout.heads_per_kv_head, dtype))
        reads.append(pages.reshape(-1))
        first_token += groups[-1].n_tokens
        first_key += len(members) * n_keys
        start = end
    return groups, torch.from_numpy(np.concatenate(reads))


def _pages(members: Sequence[Span], layout: PageLayout) -> np.ndarray:
    """Page numbers [B, pages] of each member's keys; past its end, the trash page."""
    n_pages = max(-(-(m.past + m.query) // layout.page_size) for m in members)
    pages = np.full((len(members), n_pages), layout.trash_page, dtype=np.int64)
    for row, member in enumerate(members):
        used = -(-(member.past + member.query) // layout.page_size)
        pages[row, :used] = member.blocks[:used]
        pages[row, :used] *= layout.stride
    return pages


def _group(
    members: Sequence[Span], first_token: int, first_key: int, max_key: int, shared: int, dtype: torch.dtype
) -> Group:
    past = np.fromiter((m.past for m in members), np.int64, len(members))
    query = np.fromiter((m.query for m in members), np.int64, len(members))
    max_query = int(query.max())
    last_key = past[:, None] + np.arange(max_query)
    hidden = np.arange(max_key) > last_key[:, :, None]
    mask = torch.zeros((len(members), 1, shared, max_query, max_key), dtype=dtype)
    mask.masked_fill_(torch.from_numpy(hidden)[:, None, None], float("-inf"))
    pad_index = valid = None
    if int(query.min()) != max_query:
        offsets = np.concatenate(([0], np.cumsum(query)[:-1]))
        columns = np.arange(max_query)
        pad_index = torch.from_numpy((offsets[:, None] + np.minimum(columns, query[:, None] - 1)).reshape(-1))
        valid = torch.from_numpy(np.flatnonzero(columns < query[:, None]))
    return Group(
        first_token=first_token,
        n_tokens=int(query.sum()),
        first_key=first_key,
        size=len(members),
        max_query=max_query,
        max_key=max_key,
        mask=mask.flatten(2, 3),
        pad_index=pad_index,
        valid=valid,
    )


def padded_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    groups: Sequence[Group],
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention interface of transformers: query [1, H, T, D], key and value [1, H_kv, R, D] in the order of the pages.

    Returns [1, T, H, D]. ``attention_mask`` is unused: the groups carry their own.
    """
    del module, attention_mask
    tokens = query[0].transpose(0, 1)
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    parts = [_attend(group, tokens, keys, values, scaling) for group in groups]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).unsqueeze(0), None


def _attend(
    group: Group, tokens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """One group: tokens [T, H, D], keys and values [R, H_kv, D] -> [T_group, H, D]."""
    n_heads, head_dim = tokens.shape[1:]
    n_kv = keys.shape[1]
    shared = n_heads // n_kv
    rows = tokens[group.first_token : group.first_token + group.n_tokens]
    if group.pad_index is not None:
        rows = rows[group.pad_index]
    shape = (group.size, group.max_query, n_kv, shared, head_dim)
    stacked = rows.reshape(shape).permute(0, 2, 3, 1, 4).reshape(group.size, n_kv, shared * group.max_query, head_dim)
    end = group.first_key + group.size * group.max_key
    block = (group.size, group.max_key, n_kv, head_dim)
    k = keys[group.first_key : end].reshape(block).transpose(1, 2)
    v = values[group.first_key : end].reshape(block).transpose(1, 2)
    out = scaled_dot_product_attention(stacked, k, v, attn_mask=group.mask, scale=scaling)
    out = out.reshape(group.size, n_kv, shared, group.max_query, head_dim).permute(0, 3, 1, 2, 4)
    out = out.reshape(group.size * group.max_query, n_heads, head_dim)
    return out if group.valid is None else out[group.valid]


AttentionInterface.register(NAME, padded_attention)
