"""How far the engine's logprobs of one version lie from the trainer's: the health of everything in between."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from trainer_svc.batch import Row, micro_batches
from trainer_svc.logprobs import token_logprobs

MIN_TOKENS = 256
"""With fewer tokens of the trainer's own version in a batch, a probe speaks instead."""

MAX_TOKENS = 2048
"""Enough for a mean to three digits; more would only cost forwards."""


def of_version(rows: Sequence[Row], policy_version: int) -> list[Row]:
    """Rows cut to their tokens of ``policy_version``, up to MAX_TOKENS of them."""
    picked: list[Row] = []
    n_tokens = 0
    for row in rows:
        mask = [int(version == policy_version) for version in row.versions]
        if any(mask) and n_tokens < MAX_TOKENS:
            picked.append(replace(row, mask=mask))
            n_tokens += sum(mask)
    return picked


@torch.no_grad()
def measure(model: PreTrainedModel, rows: Sequence[Row], budget_tokens: int) -> dict[str, float]:
    """Mean and largest |engine - trainer| over the rows' masked tokens, in nats, and their number."""
    if not rows:
        return {"logprob_gap/n_tokens": 0.0}
    gaps = [
        (token_logprobs(model, batch) - batch.behaviour).abs()[batch.mask.bool()]
        for batch in micro_batches(rows, range(len(rows)), budget_tokens, model.device)
    ]
    gap = torch.cat(gaps)
    return {
        "logprob_gap/mean": float(gap.mean()),
        "logprob_gap/max": float(gap.max()),
        "logprob_gap/n_tokens": float(len(gap)),
    }
