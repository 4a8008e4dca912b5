"""The sampling step: the only place where the hf engine turns logits into tokens.

One draw per row by inverse transform: the token is the first whose cumulative probability passes uniform(seed,
position). The reported logprob is that of the full softmax at the row's temperature, whatever top_k and top_p cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference_svc.engine.draw import uniform
from inference_svc.engine.engine import SamplingSpec


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: how to sample, and the index that the new token will have in its sequence."""

    sampling: SamplingSpec
    position: int


class NonFiniteLogits(Exception):
    """The weights in use produce NaN or infinite logits; nothing sampled from them can be trusted."""


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Draw one token for each row of ``logits`` [B, V]; returns ids and natural-log probabilities, both of length B.

    Greedy rows (temperature 0) take the largest logit, the lowest id among equals; their logprob is at temperature 1.
    Raises NonFiniteLogits.
    """
    scores = logits.float()
    temperatures = [row.sampling.temperature or 1.0 for row in rows]
    if any(t != 1.0 for t in temperatures):
        scores = scores / torch.tensor(temperatures, dtype=torch.float32).unsqueeze(-1)
    logprobs = torch.log_softmax(scores, dim=-1)
    weights = logprobs.double().exp()
    if any(row.sampling.top_k or row.sampling.top_p < 1.0 for row in rows):
        weights = _truncate(weights, rows)
    cumulative = weights.cumsum(-1)
    draws = torch.tensor([uniform(row.sampling.seed, row.position) for row in rows], dtype=torch.float64)
    targets = (draws * cumulative[:, -1]).unsqueeze(-1)
    chosen = torch.searchsorted(cumulative, targets, right=True).clamp_(max=scores.shape[-1] - 1)
    greedy = [i for i, row in enumerate(rows) if row.sampling.temperature == 0.0]
    if greedy:
        chosen[greedy, 0] = scores[greedy].argmax(-1)
    picked = logprobs.gather(-1, chosen).squeeze(-1)
    if not bool(torch.isfinite(picked).all() & torch.isfinite(targets).all()):
        raise NonFiniteLogits("the model's logits are not finite: the loaded weights are broken")
    return chosen.squeeze(-1).tolist(), picked.tolist()


def _truncate(weights: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Zero the weights [B, V] that top_k, then top_p, cut. The likeliest token always stays."""
    vocab_size = weights.shape[-1]
    top_k = torch.tensor([row.sampling.top_k or vocab_size for row in rows]).clamp_(max=vocab_size).unsqueeze(-1)
    top_p = torch.tensor([row.sampling.top_p for row in rows], dtype=torch.float64).unsqueeze(-1)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(vocab_size) >= top_k, 0.0)
    before = ordered.cumsum(-1) - ordered
    is_cut = (before >= top_p * ordered.sum(-1, keepdim=True)) & (top_p < 1.0)
    ordered = ordered.masked_fill(is_cut, 0.0)
    return torch.zeros_like(weights).scatter_(-1, order, ordered)
