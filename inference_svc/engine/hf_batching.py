"""The one file that touches the inside of transformers' continuous batching (pinned exactly in pyproject.toml).

From transformers come the paged key-value cache, its prefix sharing and its scheduler; a step here is: schedule, lay
out, forward, sample, record. Everything runs on the caller's thread, one step at a time, so that a load, an abort or a
pause lies between two steps by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, PreTrainedModel
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState, RequestStatus
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from inference_svc.engine import hf_attention
from inference_svc.engine.engine import EngineRequest, SamplingSpec
from inference_svc.engine.hf_sampling import Row, sample

FULL_ATTENTION = "full_attention"


class UnsupportedModel(Exception):
    """A model that the hf engine cannot serve, with the reason."""


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """Sizes of the cache and of a step. ``n_blocks`` pages of ``page_size`` tokens; a step computes at most
    ``max_batch_tokens`` tokens for at most ``max_running`` requests."""

    page_size: int = 16
    n_blocks: int = 2048
    max_running: int = 64
    max_batch_tokens: int = 512

    @property
    def kv_tokens(self) -> int:
        """Capacity of the cache in tokens."""
        return self.page_size * self.n_blocks


@dataclass(frozen=True, slots=True)
class Sampled:
    """One new token of one request; ``is_stop`` and ``is_last`` say whether and why it ended."""

    request_id: str
    token_id: int
    logprob: float
    is_stop: bool
    is_last: bool


class LayerPages:
    """The cache as one step's attention sees it: new keys and values in by token, a batch's keys out by page."""

    def __init__(self, allocator: Any, write_index: torch.Tensor, pages: torch.Tensor) -> None:
        self._allocator = allocator
        self._write_index = write_index
        self._pages = pages

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, kwargs: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store states [1, H_kv, T, D] of a layer; returns its keys and values [1, H_kv, R, D] over all pages read."""
        del kwargs
        tokens = self._allocator._kv_token_views[layer_idx]
        pages = self._allocator.get_cache_for_block_table(layer_idx)
        for states, view in zip((key_states, value_states), tokens, strict=True):
            view.index_copy_(0, self._write_index, states[0].transpose(0, 1))
        keys, values = (view.index_select(0, self._pages).flatten(0, 1).transpose(0, 1).unsqueeze(0) for view in pages)
        return keys, values


class PagedBatch:
    """The requests that are running, their key-value cache, and the step over them. Not thread-safe."""

    def __init__(self, model: PreTrainedModel, settings: BatchingSettings) -> None:
        self._model = model
        self.settings = settings
        model.set_attn_implementation(hf_attention.NAME)
        self._cache = self._build_cache(model, settings)
        self._allocator = self._full_attention_allocator()
        # Admission below reserves room for every running request up front, so the scheduler never meets a full cache;
        # its margin is where cached prefixes of finished requests are evicted.
        self._scheduler = FIFOScheduler(self._cache, safety_margin=0.15, max_requests_per_batch=settings.max_running)
        self._layout = hf_attention.PageLayout(
            page_size=settings.page_size,
            stride=self._allocator.block_physical_stride // settings.page_size,
            trash_page=self._allocator.read_trash_index // settings.page_size,
            heads_per_kv_head=_heads_per_kv_head(model),
        )
        # A model that does not know the argument logits_to_keep returns a row for every token.
        self._keeps_logits = bool(model._supports_logits_to_keep())  # type: ignore[operator]
        self._sampling: dict[str, SamplingSpec] = {}
        self._reserved: dict[str, int] = {}
        self._n_reserved = 0
        self.prefill_tokens = 0
        self.prefix_hit_tokens = 0

    @staticmethod
    def _build_cache(model: PreTrainedModel, settings: BatchingSettings) -> PagedAttentionCache:
        return PagedAttentionCache(
            config=model.config.get_text_config(),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=settings.page_size,
                num_blocks=settings.n_blocks,
                max_batch_tokens=settings.max_batch_tokens,
                max_requests_per_batch=settings.max_running,
                max_blocks_per_request=0,
                allow_block_sharing=True,
                max_memory_percent=0.6,
            ),
            device=model.device,
            distributed_helper=DistributedHelper(device_mesh=None, cpu_group_timeout=None, tp_plan={}),
            dtype=model.dtype,
            model_supports_logits_to_keep=True,
        )

    def _full_attention_allocator(self) -> Any:
        allocators = self._cache.cache_allocators
        if list(allocators) != [FULL_ATTENTION]:
            raise UnsupportedModel(f"attention types {sorted(allocators)}: this engine serves full attention only")
        return allocators[FULL_ATTENTION]

    @property
    def max_request_tokens(self) -> int:
        """The longest sequence (prompt and output) that the cache can hold beside the eviction margin."""
        return int(self.settings.n_blocks * 0.8) * self.settings.page_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token, in all layers."""
        config = self._model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return 2 * int(config.num_hidden_layers * kv_heads * head_dim) * self._model.dtype.itemsize

    @property
    def running(self) -> int:
        """Requests admitted and not finished."""
        return len(self._sampling)

    @property
    def running_ids(self) -> list[str]:
        """Their ids, in order of admission."""
        return list(self._sampling)

    @property
    def kv_tokens_used(self) -> int:
        """Tokens in blocks that belong to a request or hold a cached prefix."""
        free = self._cache.compute_free_capacity(relative=True)
        return round((1.0 - float(free)) * self.settings.kv_tokens)

    def can_admit(self, request: EngineRequest) -> bool:
        """Whether a lane is free and the cache has room for all that the request may come to need."""
        if self.running >= self.settings.max_running:
            return False
        return self._n_reserved + self._blocks_for(request) <= int(self.settings.n_blocks * 0.8)

    def _blocks_for(self, request: EngineRequest) -> int:
        n_new = request.sampling.max_new_tokens - request.n_generated_before
        return -(-(len(request.token_ids) + n_new) // self.settings.page_size)

    def shareable_prefix(self, request: EngineRequest) -> tuple[int, ...]:
        """The full pages of a request's tokens; its last token is always computed, so it never counts."""
        page_size = self.settings.page_size
        return tuple(request.token_ids[: (len(request.token_ids) - 1) // page_size * page_size])

    def is_cached(self, prefix: tuple[int, ...]) -> bool:
        """Whether the cache holds all pages of a shareable prefix."""
        n_pages = len(prefix) // self.settings.page_size
        return len(self._allocator.match_prefix_blocks([*prefix, 0])) == n_pages

    def admit(self, request: EngineRequest) -> None:
        """Give the request a lane; it takes part in the next step."""
        request_id = request.request_id
        state = RequestState(
            request_id=request_id,
            initial_tokens=list(request.token_ids),
            max_new_tokens=request.sampling.max_new_tokens - request.n_generated_before,
            eos_token_id=list(request.sampling.stop_token_ids),
        )
        self._sampling[request_id] = request.sampling
        self._reserved[request_id] = self._blocks_for(request)
        self._n_reserved += self._reserved[request_id]
        self._scheduler.add_waiting_request(state)

    def drop(self, request_ids: Sequence[str]) -> None:
        """Take these requests out and free their blocks; prefixes that they completed stay cached."""
        for request_id in request_ids:
            self._scheduler.set_request_cancellation(request_id)
            self._forget(request_id)
        self._scheduler.clear_cancelled_requests()

    def _forget(self, request_id: str) -> None:
        self._sampling.pop(request_id, None)
        self._n_reserved -= self._reserved.pop(request_id, 0)

    def clear(self) -> int:
        """Drop every request and every cached prefix; returns the tokens freed.

        Freeing the requests with cleared ledgers is not enough: completed blocks then belong to neither the ledger nor
        the pool, and the cache shrinks with each load. The cache's reset returns all sectors to the pool as well.
        """
        freed = self.kv_tokens_used
        self.drop(self.running_ids)
        self._scheduler.reset()
        self._cache.reset()
        return freed

    @torch.inference_mode()
    def step(self) -> list[Sampled]:
        """One forward over what is scheduled; a token for each request whose prompt is complete. Empty if idle."""
        scheduled = self._schedule()
        if not scheduled:
            return []
        kwargs, rows = self._lay_out(scheduled)
        logits = self._model(**kwargs).logits[0]
        if not self._keeps_logits:
            logits = logits[kwargs["logits_to_keep"]]
        ids: list[int] = []
        logprobs: list[float] = []
        if rows:
            ids, logprobs = sample(logits, rows)
        return self._record(scheduled, ids, logprobs)

    def _schedule(self) -> list[FutureRequestState]:
        """The step's requests, ordered by attention group."""
        if not self._scheduler.has_pending_requests():
            return []
        before = {state.request_id: state for state in self._scheduler.waiting_requests.values()}
        scheduled, *_ = self._scheduler.schedule_batch(self.settings.max_batch_tokens, self._cache.max_tokens_read)
        if scheduled is None:
            raise RuntimeError("the key-value cache is full although every request had its room reserved")
        for future in scheduled:
            if future.state.request_id in before:
                self.prefix_hit_tokens += future.state.position_offset
        return sorted(scheduled, key=lambda future: hf_attention.group_of(future.query_length))

    def _lay_out(self, scheduled: Sequence[FutureRequestState]) -> tuple[dict[str, Any], list[Row]]:
        """The model's keyword arguments for this step, and one sampling row per request that gets a token."""
        input_ids: list[int] = []
        positions: list[int] = []
        writes: list[int] = []
        spans: list[hf_attention.Span] = []
        last_tokens: list[int] = []
        rows: list[Row] = []
        for future in scheduled:
            state, past, query = future.state, future.state.position_offset, future.query_length
            input_ids.extend(state.tokens_to_process)
            positions.extend(range(past, past + query))
            writes.extend(self._allocator.get_write_indices(state.request_id, past, query))
            spans.append(hf_attention.Span(past, query, self._allocator.block_table[state.request_id]))
            state.position_offset = past + query
            if future.has_new_token:
                last_tokens.append(len(input_ids) - 1)
                rows.append(Row(self._sampling[state.request_id], past + query))
            if query > 1 or not state.generated_tokens:
                self.prefill_tokens += query
        groups, pages = hf_attention.plan_groups(spans, self._layout, self._model.dtype)
        kwargs: dict[str, Any] = {
            "input_ids": torch.tensor([input_ids]),
            "position_ids": torch.tensor([positions]),
            "attention_mask": None,
            "logits_to_keep": torch.tensor(last_tokens, dtype=torch.int64),
            "cache": LayerPages(self._allocator, torch.tensor(writes), pages),
            "use_cache": False,
            "groups": groups,
        }
        return kwargs, rows

    def _record(
        self, scheduled: Sequence[FutureRequestState], ids: Sequence[int], logprobs: Sequence[float]
    ) -> list[Sampled]:
        sampled: list[Sampled] = []
        tokens = iter(zip(ids, logprobs, strict=True))
        for future in scheduled:
            state = future.state
            if not future.has_new_token:
                self._cache.mark_complete_blocks(state, future.complete_blocks)
                continue
            token_id, logprob = next(tokens)
            state.status = RequestStatus.DECODING
            is_last = state.update_and_check_completion(token_id, logprob)
            self._cache.mark_complete_blocks(state, future.complete_blocks)
            is_stop = is_last and token_id in self._sampling[state.request_id].stop_token_ids
            sampled.append(Sampled(state.request_id, token_id, logprob, is_stop, is_last))
            if is_last:
                self._scheduler.finish_request(state.request_id)
                self._forget(state.request_id)
        return sampled


def _heads_per_kv_head(model: PreTrainedModel) -> int:
    config = model.config.get_text_config()
    n_heads = int(config.num_attention_heads)
    return n_heads // int(getattr(config, "num_key_value_heads", None) or n_heads)
