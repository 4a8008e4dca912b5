"""Sampling one token from one row of logits in plain Python: the reference for the vectorised step of the hf engine."""

from __future__ import annotations

import math
from collections.abc import Sequence

from inference_svc.engine.draw import uniform
from inference_svc.engine.engine import SamplingSpec


def log_softmax(logits: Sequence[float], temperature: float) -> list[float]:
    """Natural-log probabilities of ``logits / temperature``; temperature 0 counts as 1."""
    scaled = [value / (temperature or 1.0) for value in logits]
    top = max(scaled)
    log_total = top + math.log(math.fsum(math.exp(value - top) for value in scaled))
    return [value - log_total for value in scaled]


def sample_one(logits: Sequence[float], sampling: SamplingSpec, position: int) -> tuple[int, float]:
    """The token drawn for index ``position`` of a sequence, and its logprob under the full softmax at temperature."""
    logprobs = log_softmax(logits, sampling.temperature)
    if sampling.temperature == 0.0:
        token = max(range(len(logits)), key=logits.__getitem__)
        return token, logprobs[token]
    weights = _truncated([math.exp(value) for value in logprobs], sampling)
    target = uniform(sampling.seed, position) * math.fsum(weights)
    total = 0.0
    token = 0
    for index, weight in enumerate(weights):
        if weight == 0.0:
            continue
        token = index
        total += weight
        if total > target:
            break
    return token, logprobs[token]


def _truncated(weights: list[float], sampling: SamplingSpec) -> list[float]:
    """Zero what top_k, then top_p, cut; the likeliest token always stays."""
    if sampling.top_k == 0 and sampling.top_p >= 1.0:
        return weights
    order = sorted(range(len(weights)), key=lambda index: -weights[index])
    kept = order[: sampling.top_k or len(order)]
    if sampling.top_p < 1.0:
        limit = sampling.top_p * math.fsum(weights[index] for index in kept)
        before = 0.0
        nucleus: list[int] = []
        for index in kept:
            if before >= limit:
                break
            nucleus.append(index)
            before += weights[index]
        kept = nucleus
    chosen = set(kept)
    return [weight if index in chosen else 0.0 for index, weight in enumerate(weights)]
