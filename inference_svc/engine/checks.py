"""The checks before every ADD: what would disturb another request is refused here, for its own request alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inference_svc.engine.engine import EngineRequest, RequestRefused, SamplingSpec

MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for: token ids in [0, vocab_size), prompt and output together within max_length tokens."""

    vocab_size: int
    max_length: int


def check_request(request: EngineRequest, limits: Limits) -> None:
    """Raise RequestRefused, naming the field and the fix, if the engine cannot run ``request``."""
    problem = _sampling_problem(request.sampling, limits) or _token_problem(request, limits)
    if problem is not None:
        raise RequestRefused(request.request_id, *problem)


def _sampling_problem(sampling: SamplingSpec, limits: Limits) -> tuple[str, str] | None:
    temperature = sampling.temperature
    if not math.isfinite(temperature) or temperature < 0:
        return "bad_temperature", f"temperature is {temperature}; give a finite number above 0, or 0 for greedy"
    if 0 < temperature < 1e-4:
        return "bad_temperature", f"temperature {temperature} overflows the softmax; give 0 for greedy"
    if not 0 < sampling.top_p <= 1:
        return "bad_top_p", f"top_p is {sampling.top_p}; give a number in (0, 1], 1 to keep all tokens"
    if sampling.top_k < 0:
        return "bad_top_k", f"top_k is {sampling.top_k}; give 0 to keep all tokens, or a positive count"
    if not 0 <= sampling.seed <= MAX_SEED:
        return "bad_seed", f"seed is {sampling.seed}; give an unsigned 64-bit number"
    for token in sampling.stop_token_ids:
        if not 0 <= token < limits.vocab_size:
            return "bad_stop_token", f"stop token {token} is outside the vocabulary of {limits.vocab_size}"
    return None


def _token_problem(request: EngineRequest, limits: Limits) -> tuple[str, str] | None:
    n_tokens, before = len(request.token_ids), request.n_generated_before
    if n_tokens == 0:
        return "empty_prompt", "token_ids is empty; give at least one token"
    if not 0 <= before < n_tokens:
        return "bad_offset", f"n_generated_before is {before} of {n_tokens} tokens; it counts their generated tail"
    n_new = request.sampling.max_new_tokens - before
    if n_new < 1:
        given = request.sampling.max_new_tokens
        return "bad_max_new_tokens", f"max_new_tokens is {given} with {before} already generated; nothing is left"
    if n_tokens + n_new > limits.max_length:
        return "too_long", f"{n_tokens} tokens and {n_new} new ones pass the engine's limit of {limits.max_length}"
    low, high = min(request.token_ids), max(request.token_ids)
    if low < 0 or high >= limits.vocab_size:
        bad = low if low < 0 else high
        return "token_out_of_range", f"token {bad} is outside the vocabulary of {limits.vocab_size}"
    return None
