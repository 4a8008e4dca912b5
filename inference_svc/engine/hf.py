"""The ``hf`` engine: transformers' continuous batching on its own thread, weights swapped between two steps.

    caller's event loop                         generation thread
    add, abort, load, pause  ── inbox ──►  apply all that waits ─► step ─► chunks, stamped (version, digest) ──► outbox

The thread is the only one that touches the model, the cache and the requests. A load is one inbox entry: cancel every
request, copy in place, reset the cache with its prefix ledgers, set the new stamp. Old keys and values under new
weights would be wrong by tenths of a nat, so nothing of them survives.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from inference_svc.engine.checks import Limits, check_request
from inference_svc.engine.engine import (
    EngineDied,
    EngineRequest,
    EngineStats,
    FinishReason,
    LoadReport,
    RequestRefused,
    Tensors,
    TokenChunk,
)
from inference_svc.engine.hf_batching import BatchingSettings, PagedBatch, Sampled
from inference_svc.engine.hf_weights import LiveWeights
from inference_svc.engine.outbox import Outbox

T = TypeVar("T")

IDLE_WAIT_S = 0.5


@dataclass(slots=True)
class _Live:
    """A request in this engine and the offset of its next token."""

    request: EngineRequest
    offset: int


class HfEngine:
    """Engine over one transformers model on the CPU; see ``inference_svc.engine.engine.Engine`` for the contract."""

    def __init__(
        self, model: PreTrainedModel, settings: BatchingSettings | None = None, *, max_length: int | None = None
    ) -> None:
        torch.set_num_threads(1)
        self._batch = PagedBatch(model, settings or BatchingSettings())
        self._weights = LiveWeights(model)
        text_config = model.config.get_text_config()
        window = self._batch.max_request_tokens
        window = min(window, int(getattr(text_config, "max_position_embeddings", window)))
        self.limits = Limits(vocab_size=int(text_config.vocab_size), max_length=min(max_length or window, window))
        self._live: dict[str, _Live] = {}
        self._waiting: deque[str] = deque()
        self._known: set[str] = set()
        self._inbox: deque[Callable[[], None]] = deque()
        self._calls: set[Future[Any]] = set()
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_paused = False
        self._version: int | None = None
        self._digest = ""
        self._has_weights = False
        self._busy_s = 0.0
        self._steps = 0
        self._generated = 0
        self._thread: threading.Thread | None = None
        self._outbox: Outbox | None = None
        self._error: BaseException | None = None

    # ---- the caller's side -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the generation thread."""
        self._outbox = Outbox(asyncio.get_running_loop())
        self._thread = threading.Thread(target=self._run, name="generation", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after the step that is running."""
        self._is_stopping = True
        self._wake.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 30.0)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; RequestRefused if it cannot run here."""
        if self._thread is None or self._is_stopping or self._error is not None:
            raise RequestRefused(request.request_id, "engine_stopped", "the engine is not running")
        if not self._has_weights:
            raise RequestRefused(request.request_id, "no_weights", "no weights are loaded; load a version first")
        if request.request_id in self._known:
            raise RequestRefused(request.request_id, "duplicate_request", "a request of this id is live")
        check_request(request, self.limits)
        self._known.add(request.request_id)
        self._post(lambda: self._enqueue(request))

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        self._post(lambda: self._end([request_id], FinishReason.ABORT))

    def outputs(self) -> AsyncIterator[list[TokenChunk]]:
        """All chunks, for one consumer."""
        if self._outbox is None:
            raise RuntimeError("start() the engine before reading its outputs")
        return self._outbox.stream()

    async def load(self, policy_version: int, weight_digest: str, tensors: Tensors) -> LoadReport:
        """Swap weights between two steps; LoadRefused keeps the old ones and their requests."""
        asked_at = time.perf_counter()
        return await self._call(lambda: self._load(policy_version, weight_digest, tensors, asked_at))

    async def pause(self) -> None:
        """Stop before the next step."""
        await self._call(lambda: self._set_paused(True))

    async def resume(self) -> None:
        """Continue after a pause."""
        await self._call(lambda: self._set_paused(False))

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        running = self._batch.running
        return EngineStats(
            running=running,
            waiting=max(0, len(self._known) - running),
            kv_tokens_used=self._batch.kv_tokens_used,
            kv_tokens_total=self._batch.settings.kv_tokens,
            busy_s=self._busy_s,
            generated_tokens=self._generated,
            prefill_tokens=self._batch.prefill_tokens,
            prefix_hit_tokens=self._batch.prefix_hit_tokens,
            steps=self._steps,
            policy_version=self._version,
            weight_digest=self._digest,
            is_paused=self._is_paused,
            kv_bytes_per_token=self._batch.kv_bytes_per_token,
        )

    def _post(self, command: Callable[[], None]) -> None:
        self._inbox.append(command)
        self._wake.set()

    async def _call(self, command: Callable[[], T]) -> T:
        """Run ``command`` on the generation thread between two steps and wait for its result."""
        if self._thread is None or self._is_stopping or self._error is not None:
            raise EngineDied("the engine is not running") from self._error
        done: Future[T] = Future()
        self._calls.add(done)

        def run() -> None:
            try:
                result = command()
            except Exception as error:  # noqa: BLE001 - it belongs to the caller, who gets it
                done.set_exception(error)
            else:
                done.set_result(result)

        self._post(run)
        try:
            return await asyncio.wrap_future(done)
        finally:
            self._calls.discard(done)

    # ---- the generation thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._outbox is not None
        try:
            while not self._is_stopping:
                self._wake.clear()
                while self._inbox:
                    self._inbox.popleft()()
                if self._is_paused or not self._advance():
                    self._wake.wait(IDLE_WAIT_S)
        except BaseException as error:  # noqa: BLE001 - a dead loop must surface, whatever killed it
            self._error = error
        finally:
            self._outbox.close(self._error)
            for call in list(self._calls):
                if not call.done():
                    call.set_exception(EngineDied(f"the generation loop ended: {self._error!r}"))

    def _enqueue(self, request: EngineRequest) -> None:
        self._live[request.request_id] = _Live(request, request.n_generated_before)
        self._waiting.append(request.request_id)

    def _advance(self) -> bool:
        """Admit what fits and make one step; False if there was nothing to do."""
        self._admit_waiting()
        if self._batch.running == 0:
            return False
        started_at = time.perf_counter()
        sampled = self._batch.step()
        self._busy_s += time.perf_counter() - started_at
        self._steps += 1
        self._generated += len(sampled)
        self._send([self._chunk(token) for token in sampled])
        return True

    def _admit_waiting(self) -> None:
        """Give free lanes away in order of arrival.

        Siblings of a group arrive together with one prompt. The first computes it; the others are held back for the
        one step after which they find it in the cache.
        """
        computed_now: set[tuple[int, ...]] = set()
        held: list[str] = []
        while self._waiting:
            request = self._live[self._waiting[0]].request
            prefix = self._batch.shareable_prefix(request)
            if prefix in computed_now and not self._batch.is_cached(prefix):
                held.append(self._waiting.popleft())
                continue
            if not self._batch.can_admit(request):
                break
            self._batch.admit(request)
            self._waiting.popleft()
            if prefix:
                computed_now.add(prefix)
        self._waiting.extendleft(reversed(held))

    def _chunk(self, token: Sampled) -> TokenChunk:
        live = self._live[token.request_id]
        reason = None
        if token.is_last:
            reason = FinishReason.STOP if token.is_stop else FinishReason.LENGTH
            self._forget(token.request_id)
        chunk = self._stamp(token.request_id, live.offset, (token.token_id,), (token.logprob,), reason)
        live.offset += 1
        return chunk

    def _stamp(
        self,
        request_id: str,
        offset: int,
        ids: tuple[int, ...],
        logprobs: tuple[float, ...],
        reason: FinishReason | None,
    ) -> TokenChunk:
        assert self._version is not None
        return TokenChunk(request_id, offset, ids, logprobs, self._version, self._digest, reason)

    def _forget(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        self._known.discard(request_id)

    def _end(self, request_ids: list[str], reason: FinishReason) -> None:
        """Take live requests out; each gets a last, empty chunk."""
        ended = [request_id for request_id in request_ids if request_id in self._live]
        last = [self._stamp(request_id, self._live[request_id].offset, (), (), reason) for request_id in ended]
        self._batch.drop(ended)
        for request_id in ended:
            self._forget(request_id)
        self._waiting = deque(request_id for request_id in self._waiting if request_id in self._live)
        self._send(last)

    def _send(self, chunks: list[TokenChunk]) -> None:
        assert self._outbox is not None
        self._outbox.put(chunks)

    def _load(self, policy_version: int, weight_digest: str, tensors: Tensors, asked_at: float) -> LoadReport:
        self._weights.check(tensors)
        n_cancelled = len(self._live)
        self._end(list(self._live), FinishReason.LOAD)
        kv_freed = self._batch.clear()
        copied_from = time.perf_counter()
        n_bytes = self._weights.copy(tensors)
        self._version, self._digest, self._has_weights = policy_version, weight_digest, True
        now = time.perf_counter()
        return LoadReport(
            policy_version=policy_version,
            weight_digest=weight_digest,
            load_s=now - asked_at,
            copy_s=now - copied_from,
            kv_tokens_freed=kv_freed,
            requests_cancelled=n_cancelled,
            n_bytes=n_bytes,
        )

    def _set_paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
