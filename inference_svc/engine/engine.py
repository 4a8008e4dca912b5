"""What a generation engine is to Headrace: token ids in, token ids with behaviour logprobs out.

An engine holds one set of weights at a time, named by a policy version and a weight digest. Everything it samples is
stamped with that pair where it is sampled, so a chunk never carries the name of weights that did not produce it.

    start ─► load(v, digest, tensors) ─► add … chunks … ─► load(v', …) cancels what runs ─► add again ─► stop

A load cancels every request, running or waiting: their chunks end with ``FinishReason.LOAD`` and whoever owns the
logical request adds it again with the tokens it holds as the prefix. Nothing of the old key-value cache survives.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class TypedArray:
    """A numpy array whose bits are of ``dtype`` (torch's name): numpy has no bfloat16 and carries it as uint16."""

    array: Any
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.array.shape)

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return int(self.array.nbytes)


Tensors = Mapping[str, Any]
"""Tensor name (as in the model's state dict) -> numpy array, TypedArray or torch tensor of the parameter's shape."""


class FinishReason(StrEnum):
    """Why a request ended in this engine. ``ABORT`` and ``LOAD`` leave the logical request unfinished."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    LOAD = "load"


class EngineError(Exception):
    """Base of what an engine answers to a call that it cannot honour; the engine itself goes on."""


class RequestRefused(EngineError):
    """One request that the engine cannot run; no other request is touched.

    ``code`` is stable: empty_prompt, token_out_of_range, bad_temperature, bad_top_p, bad_top_k, bad_max_new_tokens,
    bad_offset, bad_stop_token, bad_seed, too_long, duplicate_request, no_weights, engine_stopped.
    """

    def __init__(self, request_id: str, code: str, message: str) -> None:
        super().__init__(f"request {request_id}: {message}")
        self.request_id = request_id
        self.code = code
        self.message = message


class LoadRefused(EngineError):
    """Weights that do not fit the model (missing, unknown, misshapen or inexact tensors); the old ones still serve."""


class EngineDied(Exception):
    """The generation loop ended by an error. The process that owns the engine has to end."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How to draw tokens; complete, so that no model default can creep in.

    ``max_new_tokens`` counts the tokens of the whole logical request, including ``n_generated_before``.
    ``temperature`` 0 is greedy. ``top_p`` 1 and ``top_k`` 0 truncate nothing. ``seed`` is an unsigned 64-bit number.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One piece of work: continue ``token_ids``.

    ``token_ids`` holds the prompt and the tokens that the logical request has generated so far, of which the last
    ``n_generated_before`` are generated ones. The draw for the token at index p of the sequence uses (seed, p), so
    order, batching and migration do not change it.
    """

    request_id: str
    token_ids: Sequence[int]
    sampling: SamplingSpec
    n_generated_before: int = 0


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Consecutive new tokens of one request, all sampled under one version.

    ``offset`` counts from the logical request's first generated token. ``logprobs`` are natural logarithms of the full
    softmax at the sampling temperature (at temperature 1 for greedy), fp32, before top_p and top_k. A chunk with a
    ``finish_reason`` is the request's last; it may hold no tokens.
    """

    request_id: str
    offset: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy_version: int
    weight_digest: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one load did: seconds from request to resume, KV tokens dropped, requests cancelled, bytes copied."""

    policy_version: int
    weight_digest: str
    load_s: float
    copy_s: float
    kv_tokens_freed: int
    requests_cancelled: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot. Counters and ``busy_s`` (time inside engine steps) run from the engine's start; times are seconds.

    ``prefill_tokens`` were computed for prompts, ``prefix_hit_tokens`` of prompts were found in the cache instead.
    ``kv_bytes_per_token`` is 0 where there is no real cache.
    """

    running: int
    waiting: int
    kv_tokens_used: int
    kv_tokens_total: int
    busy_s: float
    generated_tokens: int
    prefill_tokens: int
    prefix_hit_tokens: int
    steps: int
    policy_version: int | None
    weight_digest: str
    is_paused: bool
    kv_bytes_per_token: int = 0


class Engine(Protocol):
    """The interface that the worker drives; one suite runs against every implementation."""

    async def start(self) -> None:
        """Start the generation loop. It serves nothing before the first load."""

    async def stop(self) -> None:
        """End the loop and the output stream; unfinished requests end with no chunk. Idempotent."""

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises RequestRefused for this request alone; returns before anything is computed."""

    def abort(self, request_id: str) -> None:
        """End a request before the next step: its last chunk says ABORT. Unknown and finished ids are ignored."""

    def outputs(self) -> AsyncIterator[list[TokenChunk]]:
        """All chunks in order, in batches, for one consumer. Ends at stop; raises EngineDied when the loop died."""

    async def load(self, policy_version: int, weight_digest: str, tensors: Tensors) -> LoadReport:
        """Swap weights between two steps, cancel all requests, drop all KV. LoadRefused keeps the old weights."""

    async def pause(self) -> None:
        """Stop before the next step and keep everything; returns once no step is running."""

    async def resume(self) -> None:
        """Continue after a pause. Idempotent."""

    def stats(self) -> EngineStats:
        """Counters and gauges now; cheap, callable at any time."""
