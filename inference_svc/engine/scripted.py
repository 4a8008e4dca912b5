"""The ``scripted`` engine: no model, logits from a function, step time from a formula.

    step_s = t0 + per_running x (requests running) + per_kv_token x (tokens in their sequences)

It stands in for a model wherever the timing and the protocol matter and the text does not, and obeys the same contract
as the real engine. Time passes through ``sleep``, which a test replaces by a manual clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from inference_svc.engine.checks import Limits, check_request
from inference_svc.engine.draw import uniform
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
from inference_svc.engine.outbox import Outbox
from inference_svc.engine.sampling import sample_one

LogitsFn = Callable[[Sequence[int], int], Sequence[float]]
"""(token ids so far, policy version) -> logits over the vocabulary for the next token."""


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """Step time in seconds, lanes, the window in tokens, and the cache in tokens (0: as much as the lanes can fill)."""

    vocab_size: int = 64
    max_length: int = 4096
    max_running: int = 64
    t0_s: float = 0.002
    per_running_s: float = 0.0
    per_kv_token_s: float = 0.0
    seed: int = 0
    kv_tokens: int = 0

    def step_s(self, running: int, kv_tokens: int) -> float:
        """Seconds of a step over ``running`` requests of ``kv_tokens`` tokens together."""
        return self.t0_s + self.per_running_s * running + self.per_kv_token_s * kv_tokens


def hashed_logits(seed: int, vocab_size: int, spread: float = 4.0) -> LogitsFn:
    """Logits in [0, spread) that are a fixed function of (seed, last token, position, version)."""

    @lru_cache(maxsize=65536)
    def row(last_token: int, position: int, policy_version: int) -> tuple[float, ...]:
        salt = (seed << 40) ^ (policy_version << 24) ^ last_token
        return tuple(spread * uniform(salt, position * vocab_size + token) for token in range(vocab_size))

    return lambda token_ids, policy_version: row(token_ids[-1], len(token_ids), policy_version)


NEVER = -1e30
"""A logit that no draw reaches."""


@dataclass(frozen=True, slots=True)
class LengthScript:
    """How a prompt prescribes the length of its answer: ``mark``, then three digits, as its last tokens.

    Attributes:
        mark: id of the token before the digits.
        digits: ids of 0 … 9.
        stop: id that ends the answer; it is the last of the prescribed tokens.
        letters: ids that the rest of an answer is drawn from.
    """

    mark: int
    digits: tuple[int, ...]
    stop: int
    letters: tuple[int, ...]

    def left(self, token_ids: Sequence[int]) -> int | None:
        """Tokens of the answer that are still to come, or None where no length is prescribed."""
        for place in range(len(token_ids) - 1, -1, -1):
            if token_ids[place] == self.mark:
                length = token_ids[place + 1 : place + 4]
                if len(length) < 3 or not set(length) <= set(self.digits):
                    return None
                wanted = 0
                for token in length:
                    wanted = 10 * wanted + self.digits.index(token)
                return wanted - (len(token_ids) - place - 4)
        return None


def prescribed_lengths(logits: LogitsFn, script: LengthScript) -> LogitsFn:
    """``logits`` over the letters alone, and the stop token exactly when the prescribed length is reached."""
    letters = set(script.letters)

    def prescribed(token_ids: Sequence[int], policy_version: int) -> Sequence[float]:
        row = logits(token_ids, policy_version)
        left = script.left(token_ids)
        if left is None:
            return row
        open_ids = letters if left > 1 else {script.stop}
        return [value if token in open_ids else NEVER for token, value in enumerate(row)]

    return prescribed


@dataclass(slots=True)
class _Live:
    request: EngineRequest
    token_ids: list[int]
    offset: int


class ScriptedEngine:
    """Engine over a logits function; see ``inference_svc.engine.engine.Engine`` for the contract."""

    def __init__(
        self,
        settings: ScriptedSettings | None = None,
        *,
        logits: LogitsFn | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings or ScriptedSettings()
        self.limits = Limits(self.settings.vocab_size, self.settings.max_length)
        self._logits = logits or hashed_logits(self.settings.seed, self.settings.vocab_size)
        self._sleep = sleep
        self._now = now
        self._running: dict[str, _Live] = {}
        self._waiting: deque[EngineRequest] = deque()
        self._known: set[str] = set()
        self._can_step = asyncio.Event()
        self._between_steps = asyncio.Lock()
        self._is_paused = False
        self._version: int | None = None
        self._digest = ""
        self._busy_s = 0.0
        self._steps = self._generated = self._prefilled = 0
        self._task: asyncio.Task[None] | None = None
        self._outbox: Outbox | None = None

    async def start(self) -> None:
        """Start the generation task."""
        self._outbox = Outbox(asyncio.get_running_loop())
        self._task = asyncio.create_task(self._run(), name="generation")

    async def stop(self) -> None:
        """End the task; the step that is running is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=5.0)

    def add(self, request: EngineRequest) -> None:
        """Queue a request; RequestRefused if it cannot run here."""
        if self._task is None or self._task.done():
            raise RequestRefused(request.request_id, "engine_stopped", "the engine is not running")
        if self._version is None:
            raise RequestRefused(request.request_id, "no_weights", "no weights are loaded; load a version first")
        if request.request_id in self._known:
            raise RequestRefused(request.request_id, "duplicate_request", "a request of this id is live")
        check_request(request, self.limits)
        self._known.add(request.request_id)
        self._waiting.append(request)
        self._update_can_step()

    def abort(self, request_id: str) -> None:
        """End a request before the next step."""
        if request_id in self._known:
            self._end([request_id], FinishReason.ABORT)

    def outputs(self) -> AsyncIterator[list[TokenChunk]]:
        """All chunks, for one consumer."""
        if self._outbox is None:
            raise RuntimeError("start() the engine before reading its outputs")
        return self._outbox.stream()

    async def load(self, policy_version: int, weight_digest: str, tensors: Tensors) -> LoadReport:
        """Change the stamp between two steps; the tensors' bytes are counted and not used."""
        self._check_alive()
        asked_at = self._now()
        async with self._between_steps:
            kv_freed, cancelled = self._kv_tokens(), list(self._known)
            self._end(cancelled, FinishReason.LOAD)
            self._version, self._digest = policy_version, weight_digest
            return LoadReport(
                policy_version=policy_version,
                weight_digest=weight_digest,
                load_s=self._now() - asked_at,
                copy_s=0.0,
                kv_tokens_freed=kv_freed,
                requests_cancelled=len(cancelled),
                n_bytes=sum(int(tensor.nbytes) for tensor in tensors.values()),
            )

    async def pause(self) -> None:
        """Stop before the next step."""
        self._check_alive()
        self._is_paused = True
        self._update_can_step()
        async with self._between_steps:
            pass

    async def resume(self) -> None:
        """Continue after a pause."""
        self._check_alive()
        self._is_paused = False
        self._update_can_step()

    def stats(self) -> EngineStats:
        """Counters and gauges now."""
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_tokens_used=self._kv_tokens(),
            kv_tokens_total=self.settings.kv_tokens or self.settings.max_running * self.settings.max_length,
            busy_s=self._busy_s,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            prefix_hit_tokens=0,
            steps=self._steps,
            policy_version=self._version,
            weight_digest=self._digest,
            is_paused=self._is_paused,
        )

    def _check_alive(self) -> None:
        if self._task is None or self._task.done():
            raise EngineDied("the engine is not running")

    def _kv_tokens(self) -> int:
        return sum(len(live.token_ids) for live in self._running.values())

    def _fits(self, request: EngineRequest) -> bool:
        """A lane is free and so is the cache for what the request holds; one always runs, however large."""
        if not self._running or not self.settings.kv_tokens:
            return len(self._running) < self.settings.max_running
        has_room = self._kv_tokens() + len(request.token_ids) <= self.settings.kv_tokens
        return has_room and len(self._running) < self.settings.max_running

    def _update_can_step(self) -> None:
        if (self._running or self._waiting) and not self._is_paused:
            self._can_step.set()
        else:
            self._can_step.clear()

    async def _run(self) -> None:
        assert self._outbox is not None
        error: BaseException | None = None
        try:
            while True:
                await self._can_step.wait()
                async with self._between_steps:
                    if not self._is_paused:
                        await self._step()
                self._update_can_step()
        except asyncio.CancelledError:
            pass
        except Exception as raised:  # noqa: BLE001 - a dead loop must surface, whatever killed it
            error = raised
        finally:
            self._outbox.close(error)

    async def _step(self) -> None:
        while self._waiting and self._fits(self._waiting[0]):
            request = self._waiting.popleft()
            self._running[request.request_id] = _Live(request, list(request.token_ids), request.n_generated_before)
            self._prefilled += len(request.token_ids)
        in_step = list(self._running)
        started_at = self._now()
        await self._sleep(self.settings.step_s(len(in_step), self._kv_tokens()))
        self._busy_s += self._now() - started_at
        self._steps += 1
        # An abort may have come during the sleep: what is gone gets no token.
        chunks = [self._generate(self._running[request_id]) for request_id in in_step if request_id in self._running]
        self._generated += len(chunks)
        self._send(chunks)

    def _generate(self, live: _Live) -> TokenChunk:
        assert self._version is not None
        sampling = live.request.sampling
        logits = self._logits(live.token_ids, self._version)
        token, logprob = sample_one(logits, sampling, len(live.token_ids))
        offset = live.offset
        live.token_ids.append(token)
        live.offset += 1
        reason = None
        if token in sampling.stop_token_ids:
            reason = FinishReason.STOP
        elif live.offset >= sampling.max_new_tokens:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._forget(live.request.request_id)
        return self._stamp(live.request.request_id, offset, (token,), (logprob,), reason)

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
        self._running.pop(request_id, None)
        self._known.discard(request_id)

    def _end(self, request_ids: list[str], reason: FinishReason) -> None:
        gone = set(request_ids)
        offsets = {request.request_id: request.n_generated_before for request in self._waiting}
        offsets.update((request_id, live.offset) for request_id, live in self._running.items())
        self._send([self._stamp(request_id, offsets[request_id], (), (), reason) for request_id in request_ids])
        self._waiting = deque(request for request in self._waiting if request.request_id not in gone)
        for request_id in request_ids:
            self._forget(request_id)
        self._update_can_step()

    def _send(self, chunks: list[TokenChunk]) -> None:
        assert self._outbox is not None
        self._outbox.put(chunks)
