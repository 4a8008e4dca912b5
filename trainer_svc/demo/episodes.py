"""Episodes played in this process: token-in, token-out, many environments in lockstep.

The warm start uses them to make demonstrations and to check progress; the in-process benchmark trains on them. No
service is involved, and environments are plug-ins named by import path, as in a job.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

_ENCODED_TEXTS = 20_000

USER, ASSISTANT = "<|user|>", "<|assistant|>"


class TextEnvironment(Protocol):
    """The five-tuple contract of an environment plug-in."""

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]: ...
    def step(self, text: str) -> tuple[str, float | None, bool, bool, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task: environment plug-in, its settings, a cap on generated tokens per turn, and a scorer.

    ``score`` maps (last answer text, last step's info) to a reward; None keeps the environment's own rewards.
    """

    name: str
    environment: str
    config: dict[str, Any]
    max_turn_tokens: int
    score: Callable[[str, dict[str, Any]], float] | None = None

    def make(self, split: str) -> TextEnvironment:
        """A fresh environment on ``split``."""
        return load_plugin(self.environment)(split=split, **self.config)  # type: ignore[no-any-return]


@dataclass(slots=True)
class Episode:
    """Tokens of one episode, shape [T] each: ids, loss mask (1 = generated), behaviour logprobs (0 elsewhere)."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float = 0.0
    answers: list[str] = field(default_factory=list)


def load_plugin(path: str) -> Any:
    """The object that ``pkg.module:Name`` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


@dataclass(slots=True)
class _Lane:
    environment: TextEnvironment
    episode: Episode
    pending: list[int]
    is_over: bool = False


class Player:
    """Plays batches of episodes of one task with a causal LM and one shared KV cache.

    Lanes advance in lockstep: a forward feeds each lane its pending tokens, right-padded; padding is masked out of
    attention and takes no position, so a lane's logprobs are those it would have alone.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, generator: torch.Generator) -> None:
        self._model, self._tokenizer, self._generator = model, tokenizer, generator
        self._end, self._pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        self._user, self._assistant = (int(tokenizer.vocab[word]) for word in (USER, ASSISTANT))
        self._encoded: dict[str, list[int]] = {}

    @torch.no_grad()
    def play(self, task: TaskSpec, split: str, seeds: Sequence[int], *, is_greedy: bool = False) -> list[Episode]:
        """One episode per seed, sampled at temperature 1 from the full softmax, or greedy."""
        lanes = [self._start(task.make(split), seed) for seed in seeds]
        cache = DynamicCache(config=self._model.config)
        held = torch.zeros((len(lanes), 0), dtype=torch.long)
        while not all(lane.is_over for lane in lanes):
            budget = [task.max_turn_tokens] * len(lanes)
            turn: list[list[int]] = [[] for _ in lanes]
            speaking = [not lane.is_over for lane in lanes]
            while any(speaking):
                held, tokens, logprobs = self._advance(lanes, cache, held, is_greedy)
                for index, lane in enumerate(lanes):
                    if not speaking[index]:
                        continue
                    self._append(lane, tokens[index], logprobs[index])
                    turn[index].append(tokens[index])
                    budget[index] -= 1
                    speaking[index] = tokens[index] != self._end and budget[index] > 0
            for lane, tokens_ in zip(lanes, turn, strict=True):
                if not lane.is_over:
                    self._step(task, lane, tokens_)
        return [lane.episode for lane in lanes]

    def _start(self, environment: TextEnvironment, seed: int) -> _Lane:
        observation, _ = environment.reset(seed)
        ids = self.encode_observation(observation)
        return _Lane(environment, Episode(list(ids), [0] * len(ids), [0.0] * len(ids)), list(ids))

    def encode_answer(self, answer: str) -> list[int]:
        """Ids of an answer as the model would have generated it, its end token included."""
        return [*self._encode(answer), self._end]

    def encode_observation(self, observation: str) -> list[int]:
        """Ids of an observation with its role marks, up to where the model's turn begins."""
        return [self._user, *self._encode(observation), self._assistant]

    def _encode(self, text: str) -> list[int]:
        if text not in self._encoded:
            if len(self._encoded) >= _ENCODED_TEXTS:
                self._encoded.clear()
            self._encoded[text] = self._tokenizer.encode(text, add_special_tokens=False)
        return self._encoded[text]

    def _advance(
        self, lanes: Sequence[_Lane], cache: DynamicCache, held: torch.Tensor, is_greedy: bool
    ) -> tuple[torch.Tensor, list[int], list[float]]:
        width = max(len(lane.pending) for lane in lanes)
        ids = torch.tensor([lane.pending + [self._pad] * (width - len(lane.pending)) for lane in lanes])
        fresh = torch.tensor([[1] * len(lane.pending) + [0] * (width - len(lane.pending)) for lane in lanes])
        last = (fresh.sum(1) - 1).clamp_min(0)
        before = held.sum(1, keepdim=True)
        held = torch.cat([held, fresh], dim=1)
        positions = (before + fresh.cumsum(1) - 1).clamp_min(0)
        hidden = self._model.model(
            input_ids=ids, attention_mask=held, position_ids=positions, cache=cache, use_cache=True
        ).last_hidden_state
        rows = torch.arange(len(lanes))
        distribution = self._model.lm_head(hidden[rows, last]).float().log_softmax(-1)
        if is_greedy:
            tokens = distribution.argmax(-1)
        else:
            tokens = torch.multinomial(distribution.exp(), 1, generator=self._generator).squeeze(1)
        for lane in lanes:
            lane.pending = []
        return held, tokens.tolist(), distribution[rows, tokens].tolist()

    @staticmethod
    def _append(lane: _Lane, token: int, logprob: float) -> None:
        lane.pending.append(token)
        lane.episode.ids.append(token)
        lane.episode.mask.append(1)
        lane.episode.logprobs.append(logprob)

    def _step(self, task: TaskSpec, lane: _Lane, turn: list[int]) -> None:
        kept = [token for token in turn if token != self._end]
        answer = str(self._tokenizer.decode(kept, skip_special_tokens=False))
        observation, reward, is_terminated, is_truncated, info = lane.environment.step(answer)
        lane.episode.answers.append(answer)
        lane.episode.reward += reward or 0.0
        if is_terminated or is_truncated:
            lane.is_over, lane.pending = True, []
            if task.score is not None:
                lane.episode.reward = task.score(answer, info)
            return
        ids = self.encode_observation(observation)
        lane.pending += ids
        lane.episode.ids += ids
        lane.episode.mask += [0] * len(ids)
        lane.episode.logprobs += [0.0] * len(ids)
