"""One training step: recompute pi_old, correct for staleness, then one or more clipped updates.

Order of a step over its rows:

1. pi_old of every token that can move the policy, under the parameters as they are (version n);
2. rho = pi_old / pi_behaviour, per token by its own behaviour version, and its correction weight;
3. rows dealt by whole groups into ``updates_per_step`` mini-batches; per mini-batch one weight per token (rows of
   advantage 0 count in it and are not computed), micro-batches by token budget, one optimizer update.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.core.packing import split_evenly
from trainer_svc import losses
from trainer_svc.batch import Padded, Row, micro_batches
from trainer_svc.logprobs import token_logprobs
from trainer_svc.results import StepResult

Progress = Callable[[str, int, int], None]
"""Called with (phase, done, total)."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The part of a job's algorithm and optimizer blocks that a step needs."""

    loss: losses.PolicyLoss = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    correction: losses.Correction = "tis"
    correction_cap: float = 2.0
    correction_floor: float = 0.5
    denominator: str = "kept"
    loss_reduction: losses.Aggregation = "token-mean"
    max_tokens: int | None = None
    task_balance: str = "none"
    updates_per_step: int = 1
    kl_coefficient: float = 0.0
    kl_estimator: losses.KlEstimator = "k3"
    max_tokens_per_microbatch: int = 8192
    grad_clip: float = 1.0


@dataclass(frozen=True, slots=True)
class StepHooks:
    """What a step may need from its owner.

    ``learning_rate`` maps the number of updates already made in this step to the next one's rate; None leaves the
    optimizer's. ``reference`` is the model that a KL term compares with. ``old`` holds the parameters of version n
    where the model has already moved on from them (a batch that is trained in parts); None: the model itself.
    """

    progress: Progress = lambda phase, done, total: None
    learning_rate: Callable[[int], float] | None = None
    reference: PreTrainedModel | None = None
    old: PreTrainedModel | None = None


NO_HOOKS = StepHooks()


@dataclass(slots=True)
class _Prepared:
    """pi_old and correction weights of each computed row, by row index, shape [T] each."""

    old: dict[int, Tensor]
    weights: dict[int, Tensor]
    rho: dict[int, Tensor]


def train_step(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    rows: Sequence[Row],
    groups: Sequence[Sequence[int]],
    settings: StepSettings,
    hooks: StepHooks = NO_HOOKS,
) -> StepResult:
    """Update ``model`` in place from ``rows``; ``groups`` lists the row indices of each group.

    The result is the same for every ``max_tokens_per_microbatch`` up to float rounding. Rows without loss tokens count
    nowhere; rows with advantage 0 count in denominators only (unless a KL term trains them too).

    Raises:
        FloatingPointError: a gradient is not finite; that update was not applied.
    """
    result = StepResult(metrics={"n_rows": float(len(rows))})
    result.metrics["n_loss_tokens"] = float(sum(row.n_loss_tokens for row in rows))
    active = [index for index, row in enumerate(rows) if _is_active(row, settings)]
    result.metrics["n_active_rows"] = float(len(active))
    if not active:
        result.skip_reason = "no trainable tokens"
        return result
    started = time.monotonic()
    prepared = _prepare(hooks.old or model, rows, active, settings, hooks.progress)
    result.seconds["old_logprobs"] = time.monotonic() - started
    started = time.monotonic()
    stats = _updates(model, optimizer, _Batch(rows, groups, prepared), settings, hooks)
    result.seconds["update"] = time.monotonic() - started
    result.n_updates = len(stats)
    result.metrics |= _summary(stats) | _by_lag(rows, prepared, settings)
    return result


def _updates(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: "_Batch", settings: StepSettings, hooks: StepHooks
) -> "list[_MicroStats]":
    stats: list[_MicroStats] = []
    minibatches = split_evenly([len(group) for group in batch.groups], settings.updates_per_step)
    for done, minibatch in enumerate(minibatches):
        members = [row for place in minibatch for row in batch.groups[place]]
        if hooks.learning_rate is not None:
            for parameters in optimizer.param_groups:
                parameters["lr"] = hooks.learning_rate(len(stats))
        made = _update(model, optimizer, batch, members, settings, hooks.reference)
        if made is not None:
            stats.append(made)
        hooks.progress("update", done + 1, len(minibatches))
    return stats


def _is_active(row: Row, settings: StepSettings) -> bool:
    return row.n_loss_tokens > 0 and (row.advantage * row.weight != 0 or settings.kl_coefficient != 0)


@dataclass(frozen=True, slots=True)
class _Batch:
    """A step's rows, the row indices of each group, and what was prepared for the rows that are computed."""

    rows: Sequence[Row]
    groups: Sequence[Sequence[int]]
    prepared: _Prepared


@torch.no_grad()
def _prepare(
    model: PreTrainedModel, rows: Sequence[Row], active: Sequence[int], settings: StepSettings, progress: Progress
) -> _Prepared:
    model.eval()
    prepared = _Prepared({}, {}, {})
    batches = micro_batches(rows, active, settings.max_tokens_per_microbatch, model.device)
    for done, batch in enumerate(batches):
        old = token_logprobs(model, batch)
        rho = losses.importance_ratios(old, batch.behaviour, batch.mask)
        weights = losses.correction_weights(
            rho, batch.mask, settings.correction, cap=settings.correction_cap, floor=settings.correction_floor
        )
        for line, index in enumerate(batch.rows):
            length = len(rows[index].ids)
            prepared.old[index] = old[line, :length]
            prepared.rho[index] = rho[line, :length]
            prepared.weights[index] = weights[line, :length]
        progress("old_logprobs", done + 1, len(batches))
    return prepared


@dataclass(slots=True)
class _MicroStats:
    """Sums over one update's computed tokens, and its gradient norm before clipping."""

    loss: float = 0.0
    n_tokens: float = 0.0
    n_clipped: float = 0.0
    kl_from_old: float = 0.0
    ratio_deviation: float = 0.0
    entropy_proxy: float = 0.0
    grad_norm: float = 0.0


def _update(
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    batch: _Batch,
    members: Sequence[int],
    settings: StepSettings,
    reference: PreTrainedModel | None,
) -> _MicroStats | None:
    rows, prepared = batch.rows, batch.prepared
    active = [index for index in members if index in prepared.old]
    if not active:
        return None
    weights = _loss_weights(rows, members, prepared, settings)
    stats = _MicroStats()
    # Dropout would draw the ratio away from 1 before anything was learnt; gradients need no training mode.
    model.eval()
    optimizer.zero_grad(set_to_none=True)
    for micro in micro_batches(rows, active, settings.max_tokens_per_microbatch, model.device):
        loss = _micro_loss(model, micro, prepared, weights, settings, reference, stats)
        loss.backward()
    stats.grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.grad_clip))
    if not math.isfinite(stats.grad_norm):
        raise FloatingPointError(f"gradient norm is {stats.grad_norm}; the update was not applied")
    optimizer.step()
    return stats


def _micro_loss(
    model: PreTrainedModel,
    batch: Padded,
    prepared: _Prepared,
    weights: dict[int, Tensor],
    settings: StepSettings,
    reference: PreTrainedModel | None,
    stats: _MicroStats,
) -> Tensor:
    new = token_logprobs(model, batch)
    old = _pad_like(batch, prepared.old)
    per_token = _policy_term(new, old, batch, settings) * _pad_like(batch, prepared.weights)
    if settings.kl_coefficient and reference is not None:
        with torch.no_grad():
            reference_logprobs = token_logprobs(reference, batch)
        estimate = losses.kl_estimate(new, reference_logprobs, batch.mask, settings.kl_estimator)
        per_token = per_token + settings.kl_coefficient * estimate
    loss = (per_token * _pad_like(batch, weights)).sum()
    _record(stats, loss, new.detach(), old, batch, settings)
    return loss


def _policy_term(new: Tensor, old: Tensor, batch: Padded, settings: StepSettings) -> Tensor:
    low, high = settings.clip_low, settings.clip_high
    match settings.loss:
        case "ppo":
            return losses.ppo(new, old, batch.advantages, batch.mask, low=low, high=high, dual_clip=settings.dual_clip)
        case "gspo":
            return losses.gspo(new, old, batch.advantages, batch.mask, low=low, high=high)
        case "cispo":
            return losses.cispo(new, old, batch.advantages, batch.mask, low=low, high=high)


def _loss_weights(
    rows: Sequence[Row], members: Sequence[int], prepared: _Prepared, settings: StepSettings
) -> dict[int, Tensor]:
    """Each row's per-token loss weights, shape [T], over the mini-batch ``members``."""
    counted = [index for index in members if rows[index].n_loss_tokens > 0]
    by_task: dict[str, list[int]] = {}
    for index in counted:
        by_task.setdefault(rows[index].task if settings.task_balance == "per_task" else "", []).append(index)
    weights: dict[int, Tensor] = {}
    for indices in by_task.values():
        width = max(len(rows[index].ids) for index in indices)
        mask = torch.zeros((len(indices), width))
        for line, index in enumerate(indices):
            mask[line, : len(rows[index].ids)] = _counted_mask(rows[index], prepared.weights.get(index), settings)
        table = losses.token_weights(mask, settings.loss_reduction, max_tokens=settings.max_tokens) / len(by_task)
        for line, index in enumerate(indices):
            weights[index] = table[line, : len(rows[index].ids)] * rows[index].weight
    return weights


def _counted_mask(row: Row, correction: Tensor | None, settings: StepSettings) -> Tensor:
    """Tokens that count in the denominator: under ``kept``, not those that the correction rejected."""
    mask = torch.as_tensor(row.mask, dtype=torch.float32)
    if correction is None or settings.denominator == "original" or settings.correction != "icepop":
        return mask
    return mask * (correction.cpu() > 0)


def _pad_like(batch: Padded, values: dict[int, Tensor]) -> Tensor:
    table = torch.zeros_like(batch.mask)
    for line, index in enumerate(batch.rows):
        table[line, : len(values[index])] = values[index]
    return table


@torch.no_grad()
def _record(stats: _MicroStats, loss: Tensor, new: Tensor, old: Tensor, batch: Padded, settings: StepSettings) -> None:
    n_tokens = float(batch.mask.sum())
    ratio = losses.log_ratio(new, old, batch.mask).exp()
    stats.loss += float(loss)
    stats.n_tokens += n_tokens
    stats.kl_from_old += float(losses.kl_estimate(new, old, batch.mask, "k3").sum())
    stats.ratio_deviation += float(((ratio - 1).abs() * batch.mask).sum())
    stats.entropy_proxy -= float((new * batch.mask).sum())
    stats.n_clipped += n_tokens * float(
        losses.clip_fraction(new, old, batch.advantages, batch.mask, low=settings.clip_low, high=settings.clip_high)
    )


def _summary(stats: Sequence[_MicroStats]) -> dict[str, float]:
    n_tokens = sum(update.n_tokens for update in stats)
    return {
        "loss": sum(update.loss for update in stats) / len(stats),
        "grad_norm": sum(update.grad_norm for update in stats) / len(stats),
        "clip_fraction": sum(update.n_clipped for update in stats) / n_tokens,
        "kl_from_old": sum(update.kl_from_old for update in stats) / n_tokens,
        "ratio_deviation": sum(update.ratio_deviation for update in stats) / n_tokens,
        "surprise": sum(update.entropy_proxy for update in stats) / n_tokens,
    }


def _by_lag(rows: Sequence[Row], prepared: _Prepared, settings: StepSettings) -> dict[str, float]:
    """Staleness as seen in the importance ratios, over the computed tokens of each lag."""
    metrics: dict[str, float] = {}
    by_lag: dict[int, list[int]] = {}
    for index in prepared.rho:
        by_lag.setdefault(rows[index].lag, []).append(index)
    for lag, indices in sorted(by_lag.items()):
        mask = torch.cat([torch.as_tensor(rows[index].mask, dtype=torch.bool) for index in indices])
        rho = torch.cat([prepared.rho[index].cpu() for index in indices])[mask]
        weights = torch.cat([prepared.weights[index].cpu() for index in indices])[mask]
        ones = torch.ones_like(rho)
        is_capped = rho > settings.correction_cap
        metrics |= {
            f"lag/{lag}/n_tokens": float(len(rho)),
            f"lag/{lag}/rho_deviation": float((rho - 1).abs().mean()),
            f"lag/{lag}/effective_sample_share": losses.effective_sample_share(weights, ones),
            f"lag/{lag}/capped_fraction": float(is_capped.float().mean()),
            f"lag/{lag}/kl_behaviour": float((rho - 1 - rho.log()).mean()),
        }
    return metrics
