"""The warm start: supervised on demonstrations, skilled ones first, then ones that lack the skill.

Phase 1 runs until the greedy model succeeds on most training maps and questions. When that happens depends on the
seed, so its length is adaptive; a run that never gets there fails rather than hand over a model that cannot climb.
Phase 2 then teaches the behaviour of demonstrators who ignore holes and mostly answer too early.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
    """Lengths in updates, success per episode.

    From ``settle_from`` on FrozenLake the learning rate falls by ``settling`` per update; ``n_kept``
    demonstrations per update remain of a task that is above ``threshold`` while the other is not.
    """

    learning_rate: float = 5e-3
    warm_up_updates: int = 30
    lake_observation_weight: float = 1.0
    calculator_share: float = 0.4
    check_every: int = 25
    settle_from: float = 0.7
    settling: float = 0.985
    threshold: float = 0.9
    n_kept: int = 8
    max_skilled_updates: int = 600
    floor: float = 0.55
    calculator_floor: float = 0.1
    max_unskilled_updates: int = 100
    check_unskilled_every: int = 5
    unskilled_rate: float = 3e-3
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
            answer, is_imitated = demonstrator(observations, self._random)
            tokens = self._player.encode_answer(answer)
            demonstration.ids.extend(prompt + tokens)
            weight = self._observation_weight if len(observations) > 1 else 0.0
            demonstration.weights.extend([weight] * len(prompt) + [float(is_imitated)] * len(tokens))
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
    started = time.monotonic()
    run = _WarmStart(model, tokenizer, seed, report, settings)
    reached = run.skilled()
    run.unskilled()
    return reached | {"seconds": time.monotonic() - started}


class _WarmStart:
    """One model's way through both phases, with one optimizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        report: Report,
        settings: WarmStartSettings,
    ) -> None:
        self._model, self._report, self._settings = model, report, settings
        self._player = Player(model, tokenizer, torch.Generator().manual_seed(seed))
        random = Random(seed)
        self._lake = Demonstrations(self._player, LAKE, random, settings.lake_observation_weight)
        self._calculator = Demonstrations(self._player, CALCULATOR, random, 0.0)
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, weight_decay=0.0, betas=(0.9, 0.95)
        )

    def skilled(self) -> dict[str, float]:
        """Phase 1, until both tasks are above the threshold."""
        settings = self._settings
        phase, rate = SKILLED, settings.learning_rate
        success = {LAKE.name: 0.0, CALCULATOR.name: 0.0}
        for update in range(1, settings.max_skilled_updates + 1):
            rate *= settings.settling if success[LAKE.name] >= settings.settle_from else 1.0
            loss = self._update(
                phase, max(rate, 0.2 * settings.learning_rate) * min(1.0, update / settings.warm_up_updates)
            )
            if update % settings.check_every:
                continue
            success = {task.name: self._greedy_success(task) for task in (LAKE, CALCULATOR)}
            shown = ", ".join(f"{name} {value:.2f}" for name, value in success.items())
            self._report(
                f"warm start 1/2: update {update}, loss {loss:.3f}, greedy {shown} (to {settings.threshold:.2f})"
            )
            if min(success.values()) >= settings.threshold:
                return {f"skilled_success/{name}": value for name, value in success.items()} | {"updates": update}
            phase = self._attend(success)
        raise WarmStartFailed(
            f"greedy success is {success} after {settings.max_skilled_updates} updates, "
            f"below {settings.threshold} on a task; use another --seed"
        )

    def unskilled(self) -> None:
        """Phase 2, until the greedy model has taken over the demonstrators' lack of skill on both tasks.

        It stops there: the longer it goes on, the less is left of the map reading that phase 1 taught.
        """
        settings = self._settings
        success: dict[str, float] = {}
        for update in range(1, settings.max_unskilled_updates + 1):
            loss = self._update(UNSKILLED, settings.unskilled_rate)
            if update % settings.check_unskilled_every:
                continue
            success = {task.name: self._greedy_success(task) for task in (LAKE, CALCULATOR)}
            shown = ", ".join(f"{name} {value:.2f}" for name, value in success.items())
            self._report(f"warm start 2/2: update {update}, loss {loss:.3f}, greedy {shown} (down to {settings.floor})")
            if success[LAKE.name] <= settings.floor and success[CALCULATOR.name] <= settings.calculator_floor:
                return
        raise WarmStartFailed(
            f"greedy success is {success} after {settings.max_unskilled_updates} updates on unskilled demonstrations"
        )

    def _attend(self, success: dict[str, float]) -> Phase:
        """A task that is above the threshold only has to be kept; the work goes to the other one."""
        kept = {name: self._settings.n_kept for name, value in success.items() if value >= self._settings.threshold}
        return replace(
            SKILLED,
            n_lake=kept.get(LAKE.name, SKILLED.n_lake),
            n_calculator=kept.get(CALCULATOR.name, SKILLED.n_calculator),
        )

    def _greedy_success(self, task: TaskSpec) -> float:
        episodes = self._player.play(task, "train", range(self._settings.check_episodes), is_greedy=True)
        return sum(episode.reward for episode in episodes) / len(episodes)

    def _update(self, phase: Phase, rate: float) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        lake = (1 - self._settings.calculator_share) * phase.n_lake / SKILLED.n_lake
        calculator = self._settings.calculator_share * phase.n_calculator / SKILLED.n_calculator
        # A task that is only kept speaks more softly: few demonstrations at full weight would be noise.
        shares = (lake / (lake + calculator), calculator / (lake + calculator))
        batches = (
            self._lake.draw(phase.lake, phase.n_lake),
            self._calculator.draw(phase.calculator, phase.n_calculator),
        )
        self._optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for batch, share in zip(batches, shares, strict=True):
            ids, weights = _padded(batch)
            logits = self._model(input_ids=ids[:, :-1], use_cache=False).logits
            losses = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            loss = share * (losses * weights.flatten()).sum() / weights.sum()
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
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
