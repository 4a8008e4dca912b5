"""Engines with a reference beside them: what the contract suite drives, and how it knows the right answer."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from inference_svc.engine.engine import Engine, EngineRequest, FinishReason, SamplingSpec, TokenChunk
from inference_svc.engine.hf import HfEngine
from inference_svc.engine.hf_batching import BatchingSettings
from inference_svc.engine.hf_model import build_model
from inference_svc.engine.scripted import ScriptedEngine, ScriptedSettings, hashed_logits

VOCAB_SIZE = 48
MAX_LENGTH = 256

TINY_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "tie_word_embeddings": True,
    "max_position_embeddings": MAX_LENGTH,
}


def tiny_weights(policy_version: int, std: float = 0.25) -> dict[str, np.ndarray]:
    """Weights of the tiny model, clearly different from version to version: normal matrices, unit norms."""
    model = build_model(copy.deepcopy(TINY_CONFIG))
    rng = np.random.default_rng(1000 + policy_version)
    weights: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        shape = tuple(tensor.shape)
        weights[name] = (
            rng.normal(0.0, std, shape).astype(np.float32) if tensor.ndim > 1 else np.ones(shape, np.float32)
        )
    return weights


class Harness(Protocol):
    """An engine under test and its reference function."""

    engine: Engine

    def tensors(self, policy_version: int) -> dict[str, np.ndarray]:
        """Weights of a version."""

    def next_logits(self, token_ids: Sequence[int], policy_version: int) -> list[float]:
        """The reference's logits for the token after ``token_ids``, computed from nothing but these."""

    def twin(self) -> Engine:
        """Another engine of the same kind, not started: what a request migrates to."""


class HfHarness:
    """The hf engine beside a second model of the same weights that runs one plain forward per question."""

    def __init__(self, settings: BatchingSettings | None = None) -> None:
        self._settings = settings or BatchingSettings(n_blocks=256)
        self.engine: Engine = self.twin()
        self._reference: PreTrainedModel = build_model(copy.deepcopy(TINY_CONFIG))
        self._reference.set_attn_implementation("eager")
        self._reference_version: int | None = None

    def tensors(self, policy_version: int) -> dict[str, np.ndarray]:
        return tiny_weights(policy_version)

    def next_logits(self, token_ids: Sequence[int], policy_version: int) -> list[float]:
        if self._reference_version != policy_version:
            state = {name: torch.from_numpy(array) for name, array in tiny_weights(policy_version).items()}
            self._reference.load_state_dict(state, strict=False)
            self._reference_version = policy_version
        with torch.no_grad():
            return self._reference(torch.tensor([list(token_ids)])).logits[0, -1].tolist()

    def twin(self) -> Engine:
        return HfEngine(build_model(copy.deepcopy(TINY_CONFIG)), self._settings, max_length=MAX_LENGTH)


class ScriptedHarness:
    """The scripted engine beside its own logits function."""

    def __init__(self, settings: ScriptedSettings | None = None) -> None:
        self._settings = settings or ScriptedSettings(vocab_size=VOCAB_SIZE, max_length=MAX_LENGTH, t0_s=0.001)
        self._logits = hashed_logits(self._settings.seed, VOCAB_SIZE)
        self.engine: Engine = self.twin()

    def tensors(self, policy_version: int) -> dict[str, np.ndarray]:
        return {"version": np.full(1, policy_version, np.float32)}

    def next_logits(self, token_ids: Sequence[int], policy_version: int) -> list[float]:
        return list(self._logits(token_ids, policy_version))

    def twin(self) -> Engine:
        return ScriptedEngine(self._settings)


@dataclass
class Received:
    """All that came back for one request, in order, with the version of every token."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_offset: int | None = None

    def accept(self, chunk: TokenChunk) -> None:
        """Append a chunk; it must follow on, carry a logprob per token, and come before the finish."""
        assert self.finish_reason is None, f"a chunk after the last one: {chunk}"
        assert len(chunk.ids) == len(chunk.logprobs)
        if self.first_offset is None:
            self.first_offset = chunk.offset
        assert chunk.offset == self.first_offset + len(self.ids), f"offset {chunk.offset} leaves a gap"
        self.ids.extend(chunk.ids)
        self.logprobs.extend(chunk.logprobs)
        self.versions.extend([chunk.policy_version] * len(chunk.ids))
        self.digests.extend([chunk.weight_digest] * len(chunk.ids))
        self.finish_reason = chunk.finish_reason


class Collector:
    """Reads one engine's outputs in a task of its own and sorts the chunks by request."""

    def __init__(self, engine: Engine) -> None:
        self._stream: AsyncIterator[list[TokenChunk]] = engine.outputs()
        self._received: dict[str, Received] = {}
        self._changed = asyncio.Condition()
        self.error: BaseException | None = None
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for batch in self._stream:
                async with self._changed:
                    for chunk in batch:
                        self._received.setdefault(chunk.request_id, Received()).accept(chunk)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        async with self._changed:
            self._changed.notify_all()

    def so_far(self, request_id: str) -> Received:
        """What has come for a request until now."""
        return self._received.setdefault(request_id, Received())

    def forget(self, request_id: str) -> None:
        """Read what comes from now on for a finished id as a request of its own."""
        self._received.pop(request_id, None)

    async def tokens(self, request_id: str, count: int, timeout_s: float = 10.0) -> Received:
        """Wait until a request has ``count`` tokens or has ended."""
        received = self.so_far(request_id)
        await self._until(lambda: len(received.ids) >= count or received.finish_reason is not None, timeout_s)
        return received

    async def finished(self, request_id: str, timeout_s: float = 10.0) -> Received:
        """Wait for a request's last chunk."""
        received = self.so_far(request_id)
        await self._until(lambda: received.finish_reason is not None, timeout_s)
        return received

    async def ended(self, timeout_s: float = 10.0) -> BaseException | None:
        """Wait for the end of the stream; its error, if it had one."""
        await asyncio.wait([self._task], timeout=timeout_s)
        assert self._task.done(), "the output stream did not end"
        return self.error

    async def _until(self, is_reached: Any, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s), self._changed:
            while not is_reached():
                if self._task.done():
                    raise AssertionError(f"the output stream ended early: {self.error!r}")
                await self._changed.wait()


def prompt_of(n_tokens: int, salt: int = 0) -> list[int]:
    """A fixed prompt of ``n_tokens`` ids."""
    return np.random.default_rng(salt).integers(0, VOCAB_SIZE, n_tokens).tolist()


def request_of(
    request_id: str, token_ids: Sequence[int], *, kept: int = 0, seed: int = 1, **sampling: Any
) -> EngineRequest:
    """A request with 8 new tokens at temperature 1 unless ``sampling`` says otherwise."""
    spec = SamplingSpec(**{"max_new_tokens": 8, "seed": seed, **sampling})
    return EngineRequest(request_id, tuple(token_ids), spec, kept)
