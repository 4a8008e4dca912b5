"""Policy losses, importance corrections, KL estimators and aggregation, on tensors of shape [S, T].

S sequences, T positions; entry i of every tensor means token i of the sequence. ``mask`` is 1 at tokens that train.
Aggregation is expressed as one weight per token, computed over a whole mini-batch before it is cut: the loss is the
weighted sum of per-token losses, and so is the same for every way of cutting the mini-batch into micro-batches.
"""

from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this on both sides before they are exponentiated."""

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
PolicyLoss = Literal["ppo", "gspo", "cispo"]
Correction = Literal["none", "tis", "icepop"]
KlEstimator = Literal["k1", "k2", "k3"]


def log_ratio(new: Tensor, old: Tensor, mask: Tensor) -> Tensor:
    """(new - old) clamped to +-20, 0 where the mask is 0."""
    return ((new - old) * mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def ppo(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    low: float,
    high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """Clipped surrogate per token (Schulman et al. 2017, equation 7; separate upper clip: DAPO, equation 10).

    ``dual_clip`` c > 1 bounds the loss of negative advantages by -c A (Ye et al. 2020); off unless set.
    """
    return _clipped_surrogate(log_ratio(new, old, mask).exp(), advantages, low, high, dual_clip) * mask


def gspo(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, low: float, high: float) -> Tensor:
    """Clipped surrogate on the sequence ratio exp(mean log-ratio) (GSPO, Zheng et al. 2025, equation 7).

    Each token carries its sequence's ratio, with the gradient going through the token's own log-probability.
    """
    lengths = mask.sum(1, keepdim=True).clamp_min(1)
    sequence = log_ratio(new, old, mask).sum(1, keepdim=True) / lengths
    token = (sequence.detach() + new - new.detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return _clipped_surrogate(token.exp(), advantages, low, high, None) * mask


def cispo(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, low: float, high: float) -> Tensor:
    """-sg(clip(r)) A log pi: the ratio is a weight without gradient (CISPO, MiniMax 2025, equation 4)."""
    weight = log_ratio(new, old, mask).exp().clamp(1 - low, 1 + high).detach()
    return -weight * advantages * new * mask


def clip_fraction(new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, *, low: float, high: float) -> Tensor:
    """Share of masked tokens whose clipped term is the larger one, a scalar."""
    ratio = log_ratio(new, old, mask).exp()
    is_clipped = -advantages * ratio.clamp(1 - low, 1 + high) > -advantages * ratio
    return (is_clipped * mask).sum() / mask.sum().clamp_min(1)


def importance_ratios(old: Tensor, behaviour: Tensor, mask: Tensor) -> Tensor:
    """rho = pi_old / pi_behaviour per token, detached; 1 where the mask is 0."""
    return log_ratio(old, behaviour, mask).exp().detach()


def correction_weights(rho: Tensor, mask: Tensor, kind: Correction, *, cap: float, floor: float = 0.5) -> Tensor:
    """Weights of tokens sampled by another policy than the one that is trained, shape [S, T].

    ``tis`` is min(rho, cap) with no floor (truncated importance sampling); ``icepop`` keeps rho inside
    [floor, cap] and drops the token outside; ``none`` is 1. Masked tokens weigh 0.
    """
    match kind:
        case "none":
            return mask
        case "tis":
            return rho.clamp(max=cap) * mask
        case "icepop":
            return torch.where((rho >= floor) & (rho <= cap), rho, torch.zeros_like(rho)) * mask


def sequence_ratios(old: Tensor, behaviour: Tensor, mask: Tensor, *, is_geometric: bool = False) -> Tensor:
    """Product over a sequence of its tokens' rho, or their geometric mean, shape [S]."""
    total = ((old - behaviour) * mask).sum(1)
    if is_geometric:
        total = total / mask.sum(1).clamp_min(1)
    return total.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().detach()


def effective_sample_share(weights: Tensor, mask: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) over masked tokens, in (0, 1]; 1 when all weights are equal, 0 without tokens."""
    total, squares, n = (weights * mask).sum(), (weights.square() * mask).sum(), mask.sum()
    return float(total.square() / (squares * n)) if float(squares) > 0 else 0.0


def kl_estimate(new: Tensor, reference: Tensor, mask: Tensor, kind: KlEstimator) -> Tensor:
    """Per-token KL(new || reference) estimate from sampled tokens, d = log new - log reference.

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d (Schulman 2020), d clamped to +-20.
    """
    d = log_ratio(new, reference, mask)
    match kind:
        case "k1":
            return d
        case "k2":
            return d.square() / 2
        case "k3":
            return torch.expm1(-d) + d


def token_weights(mask: Tensor, mode: Aggregation, *, max_tokens: int | None = None) -> Tensor:
    """Weight of each token in the aggregated loss, shape [S, T]; all zeros where nothing is masked in.

    S' is the number of sequences with any masked token.

    | mode | weight of a masked token |
    |---|---|
    | token-mean | 1 / number of masked tokens |
    | token-sum | 1 |
    | seq-mean-token-sum | 1 / S' |
    | seq-mean-token-mean | 1 / (S' x masked tokens of its sequence) |
    | seq-mean-token-sum-norm | 1 / (S' x max_tokens), a constant whatever the padding (Dr. GRPO) |

    Raises:
        ValueError: ``seq-mean-token-sum-norm`` without ``max_tokens``.
    """
    lengths = mask.sum(1, keepdim=True)
    n_sequences = (lengths > 0).sum().clamp_min(1)
    match mode:
        case "token-mean":
            return mask / mask.sum().clamp_min(1)
        case "token-sum":
            return mask
        case "seq-mean-token-sum":
            return mask / n_sequences
        case "seq-mean-token-mean":
            return mask / (n_sequences * lengths.clamp_min(1))
        case "seq-mean-token-sum-norm":
            if not max_tokens:
                raise ValueError("loss_reduction seq-mean-token-sum-norm needs max_tokens, the fixed divisor")
            return mask / (n_sequences * max_tokens)


def aggregate(losses: Tensor, mask: Tensor, mode: Aggregation, *, max_tokens: int | None = None) -> Tensor:
    """The scalar loss of per-token ``losses``; what stands at masked-out places does not matter."""
    return (torch.where(mask > 0, losses, 0.0) * token_weights(mask, mode, max_tokens=max_tokens)).sum()


def _clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float, dual_clip: float | None) -> Tensor:
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    if dual_clip is None:
        return losses
    return torch.where(advantages < 0, torch.minimum(losses, -advantages * dual_clip), losses)
