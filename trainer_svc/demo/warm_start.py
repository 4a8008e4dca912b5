"""The warm start: supervised on demonstrations, skilled ones first, then ones that lack the skill.

Phase 1 runs until the greedy model succeeds on most training maps and questions. When that happens depends on the
seed, so its length is adaptive; a run that never gets there fails rather than hand over a model that cannot climb.
Phase 2 then teaches the behaviour of demonstrators who ignore holes and mostly answer too early.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from trainer_svc.demo.demonstrators import Demonstrator
from trainer_svc.demo.episodes import Player, TaskSpec
from trainer_svc.demo.tasks import CALCULATOR, LAKE, SKILLED, UNSKILLED, Phase


class WarmStartFailed(RuntimeError):
    """Phase 1 ended at its step limit below the threshold."""


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Lengths in updates, rates in success per episode."""

    learning_rate: float = 5e-3
    warm_up_updates: int = 30
    lake_observation_weight: float = 1.0
    calculator_share: float = 0.3
    check_every: int = 25
    threshold: float = 0.8
    max_skilled_updates: int = 500
    unskilled_updates: int = 80
    check_episodes: int = 96


Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One episode: token ids and the loss weight of each, shape [T] both."""

    ids: list[int]
    weights: list[float]


class Demonstrations:
    """An endless stream of demonstrated episodes of one task, as token ids.

    Answers weigh 1 and later observations ``observation_weight``: predicting the cells that come next is what makes
    the model read the map. The first observation is random, so nothing can be learned from predicting it.
    """

    def __init__(self, player: Player, task: TaskSpec, random: Random, observation_weight: float) -> None:
        self._player, self._task, self._random = player, task, random
        self._observation_weight = observation_weight

    def draw(self, demonstrator: Demonstrator, n: int) -> list[Demonstration]:
        """``n`` fresh episodes on training content."""
        return [self._one(demonstrator) for _ in range(n)]

    def _one(self, demonstrator: Demonstrator) -> Demonstration:
        environment = self._task.make("train")
        observation, _ = environment.reset(self._random.getrandbits(31))
        demonstration = Demonstration([], [])
        observations: list[str] = []
        is_over = False
        while not is_over:
            observations.append(observation)
            prompt = self._player.encode_observation(observation)
            answer = demonstrator(observations, self._random)
            tokens = self._player.encode_answer(answer)
            demonstration.ids.extend(prompt + tokens)
            weight = self._observation_weight if len(observations) > 1 else 0.0
            demonstration.weights.extend([weight] * len(prompt) + [1.0] * len(tokens))
            observation, _, is_terminated, is_truncated, _ = environment.step(answer)
            is_over = is_terminated or is_truncated
        return demonstration


def warm_start(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int, report: Report, settings: WarmStartSettings
) -> dict[str, float]:
    """Train ``model`` in place through both phases; returns what was reached, for the model card.

    Raises:
        WarmStartFailed: greedy success of a task stayed below ``settings.threshold``.
    """
    random = Random(seed)
    player = Player(model, tokenizer, torch.Generator().manual_seed(seed))
    sources = (
        Demonstrations(player, LAKE, random, settings.lake_observation_weight),
        Demonstrations(player, CALCULATOR, random, 0.0),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0, betas=(0.9, 0.95))
    started = time.monotonic()
    n_updates, success = _skilled(model, optimizer, player, sources, settings, report)
    for update in range(settings.unskilled_updates):
        _set_rate(optimizer, settings.learning_rate * (1 - 0.9 * update / settings.unskilled_updates))
        loss = _update(model, optimizer, sources, UNSKILLED, settings)
        if (update + 1) % 20 == 0:
            report(f"warm start 2/2: update {update + 1}/{settings.unskilled_updates}, loss {loss:.3f}")
    reached = {f"skilled_success/{name}": rate for name, rate in success.items()}
    return {"skilled_updates": n_updates, **reached, "seconds": time.monotonic() - started}


def _skilled(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    player: Player,
    sources: tuple[Demonstrations, ...],
    settings: WarmStartSettings,
    report: Report,
) -> tuple[int, dict[str, float]]:
    success: dict[str, float] = {}
    for update in range(1, settings.max_skilled_updates + 1):
        _set_rate(optimizer, settings.learning_rate * min(1.0, update / settings.warm_up_updates))
        loss = _update(model, optimizer, sources, SKILLED, settings)
        if update % settings.check_every:
            continue
        success = {task.name: _greedy_success(player, task, settings.check_episodes) for task in (LAKE, CALCULATOR)}
        shown = ", ".join(f"{name} {rate:.2f}" for name, rate in success.items())
        report(f"warm start 1/2: update {update}, loss {loss:.3f}, greedy {shown} (both to {settings.threshold:.2f})")
        if min(success.values()) >= settings.threshold:
            return update, success
    raise WarmStartFailed(
        f"greedy success is {success} after {settings.max_skilled_updates} updates, "
        f"below {settings.threshold} on a task; use another --seed"
    )


def _greedy_success(player: Player, task: TaskSpec, n_episodes: int) -> float:
    episodes = player.play(task, "train", range(n_episodes), is_greedy=True)
    return sum(episode.reward for episode in episodes) / n_episodes


def _update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    sources: tuple[Demonstrations, ...],
    phase: Phase,
    settings: WarmStartSettings,
) -> float:
    batches = (sources[0].draw(phase.lake, phase.n_lake), sources[1].draw(phase.calculator, phase.n_calculator))
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for batch, share in zip(batches, (1 - settings.calculator_share, settings.calculator_share), strict=True):
        ids, weights = _padded(batch)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        loss = share * (losses * weights.flatten()).sum() / weights.sum()
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def _padded(demonstrations: list[Demonstration]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids [S, T] and loss weights [S, T - 1] of the predicted tokens; padding weighs nothing."""
    width = max(len(demonstration.ids) for demonstration in demonstrations)
    ids = torch.zeros((len(demonstrations), width), dtype=torch.long)
    weights = torch.zeros((len(demonstrations), width))
    for row, demonstration in enumerate(demonstrations):
        length = len(demonstration.ids)
        ids[row, :length] = torch.tensor(demonstration.ids)
        weights[row, :length] = torch.tensor(demonstration.weights)
    return ids, weights[:, 1:]


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
