"""Losses, corrections, estimators and aggregation against hand-checked numbers."""

import pytest
import torch

from trainer_svc import losses

MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], dtype=torch.float32)
ROLLOUT = torch.tensor(
    [[-1.0, -0.5, 0, -2.0, -0.1], [-0.7, -1.2, -0.3, 0, 0], [-0.2, -0.4, -0.6, -0.8, -1.0], [-3.0, -0.05, 0, 0, 0]]
)
OLD = torch.tensor(
    [[-1.1, -0.45, 0, -1.2, -0.1], [-0.7, -1.0, -0.9, 0, 0], [-0.25, -0.4, -0.5, -0.8, -1.3], [-2.0, -0.06, 0, 0, 0]]
)
THETA = torch.tensor(
    [[-0.8, -0.6, 0, -1.25, -0.12], [-1.1, -1.0, -0.8, 0, 0], [-0.2, -0.7, -0.5, -0.5, -1.0], [-2.3, -0.03, 0, 0, 0]]
)
REF = torch.tensor(
    [[-1.0, -0.7, 0, -1.5, -0.2], [-0.9, -1.1, -0.5, 0, 0], [-0.3, -0.5, -0.55, -0.9, -1.1], [-2.5, -0.04, 0, 0, 0]]
)
ADVANTAGES = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]])


def ppo(high: float = 0.2) -> torch.Tensor:
    return losses.ppo(THETA, OLD, ADVANTAGES, MASK, low=0.2, high=high)


def near(value: float) -> object:
    return pytest.approx(value, abs=2e-6)


@pytest.mark.parametrize(
    ("mode", "value"),
    [
        ("token-mean", -0.001579),
        ("seq-mean-token-sum", -0.005525),
        ("seq-mean-token-mean", 0.320400),
        ("seq-mean-token-sum-norm", -0.001105),
    ],
)
def test_ppo_by_aggregation(mode: losses.Aggregation, value: float) -> None:
    assert float(losses.aggregate(ppo(), MASK, mode, max_tokens=5)) == near(value)


def test_clip_higher_and_clip_fraction() -> None:
    assert float(losses.aggregate(ppo(0.28), MASK, "token-mean")) == near(-0.013007)
    assert float(losses.clip_fraction(THETA, OLD, ADVANTAGES, MASK, low=0.2, high=0.2)) == near(0.357143)
    assert float(losses.aggregate(OLD - THETA, MASK, "token-mean")) == near(0.01)


@pytest.mark.parametrize(("low", "high", "value"), [(0.2, 0.2, 0.273953), (3e-4, 4e-4, 0.374625)])
def test_gspo(low: float, high: float, value: float) -> None:
    loss = losses.gspo(THETA, OLD, ADVANTAGES, MASK, low=low, high=high)
    assert float(losses.aggregate(loss, MASK, "seq-mean-token-mean")) == near(value)


def test_gspo_ignores_padding_and_weighs_sequences_alike() -> None:
    delta, mask = torch.tensor([[0.2, -0.1, 0.2], [0.4, 9.9, 9.9]]), torch.tensor([[1.0, 1, 1], [1, 0, 0]])
    loss = losses.gspo(delta, torch.zeros(2, 3), torch.tensor([[1.0], [-1.0]]), mask, low=0.2, high=0.2)
    assert float(losses.aggregate(loss, mask, "seq-mean-token-mean")) == near(0.193327)


def test_cispo() -> None:
    loss = losses.cispo(THETA, OLD, ADVANTAGES, MASK, low=0.2, high=0.2)
    assert float(losses.aggregate(loss, MASK, "token-mean")) == near(-0.156268)


@pytest.mark.parametrize(
    ("advantage", "ratio", "high", "dual_clip", "value"),
    [
        (-1, 5, 0.2, 3.0, 3.0),
        (-1, 5, 0.2, None, 5.0),
        (1, 1.25, 0.2, None, -1.2),
        (1, 1.25, 0.28, None, -1.25),
        (-1, 0.5, 0.2, None, 0.8),
    ],
)
def test_one_token(advantage: float, ratio: float, high: float, dual_clip: float | None, value: float) -> None:
    one = torch.ones(1, 1)
    loss = losses.ppo(torch.log(one * ratio), one * 0, one * advantage, one, low=0.2, high=high, dual_clip=dual_clip)
    assert float(loss) == near(value)


def test_rho_products_and_geometric_means() -> None:
    assert losses.sequence_ratios(OLD, ROLLOUT, MASK).tolist() == pytest.approx(
        [2.117000, 0.670320, 0.778801, 2.691234], abs=2e-6
    )
    assert losses.sequence_ratios(OLD, ROLLOUT, MASK, is_geometric=True).tolist() == pytest.approx(
        [1.206230, 0.875173, 0.951229, 1.640498], abs=2e-6
    )


@pytest.mark.parametrize(
    ("kind", "cap", "value"),
    [("tis", 2.0, 0.037682), ("tis", 1e9, 0.104447), ("icepop", 2.0, -0.054999), ("none", 2.0, -0.001579)],
)
def test_ppo_under_a_correction(kind: losses.Correction, cap: float, value: float) -> None:
    weights = losses.correction_weights(losses.importance_ratios(OLD, ROLLOUT, MASK), MASK, kind, cap=cap)
    assert float(losses.aggregate(ppo() * weights, MASK, "token-mean")) == near(value)


def test_icepop_over_the_kept_tokens_alone() -> None:
    weights = losses.correction_weights(losses.importance_ratios(OLD, ROLLOUT, MASK), MASK, "icepop", cap=2.0)
    kept = MASK * (weights > 0)
    assert float(losses.aggregate(ppo() * weights, kept, "token-mean")) == near(-0.064166)


def test_truncated_weights_as_statistics() -> None:
    rho = losses.importance_ratios(OLD, ROLLOUT, MASK)
    weights = losses.correction_weights(rho, MASK, "tis", cap=2.0)
    masked = weights[MASK.bool()]
    assert float(masked.mean()) == near(1.108114)
    assert (float(masked.min()), float(masked.max())) == (near(0.548812), near(2.0))
    assert losses.effective_sample_share(weights, MASK) == near(0.887398)
    assert losses.effective_sample_share(losses.log_ratio(THETA, OLD, MASK).exp(), MASK) == near(0.957043)
    assert not losses.correction_weights(rho, MASK, "tis", cap=2.0).requires_grad


def test_the_weight_is_old_over_behaviour_and_the_ratio_new_over_old() -> None:
    one = torch.ones(1, 1)
    new = one * -0.5
    assert float(losses.importance_ratios(one * -0.9, one * -1.0, one)) == near(1.105171)
    assert float(losses.log_ratio(new, one * -0.9, one).exp()) == near(1.491825)
    rho = losses.importance_ratios(torch.tensor([[-0.25, -1.0]]), torch.tensor([[-0.2, -2.0]]), torch.ones(1, 2))
    capped = losses.correction_weights(rho, torch.ones(1, 2), "tis", cap=2.0)
    assert capped.tolist() == [pytest.approx([0.951229, 2.0], abs=1e-6)]


@pytest.mark.parametrize(("kind", "value"), [("k1", 0.063571), ("k2", 0.018625), ("k3", 0.018071)])
def test_kl_against_the_reference(kind: losses.KlEstimator, value: float) -> None:
    estimate = losses.kl_estimate(THETA, REF, MASK, kind)
    assert float(losses.aggregate(estimate, MASK, "token-mean")) == near(value)


def test_kl_of_one_token() -> None:
    one = torch.ones(1, 1)
    values = [float(losses.kl_estimate(one * -1.2, one * -1.0, one, kind)) for kind in ("k1", "k2", "k3")]
    assert values == pytest.approx([-0.2, 0.02, 0.021403], abs=1e-6)


def test_extreme_ratios_stay_finite() -> None:
    one = torch.ones(1, 1)
    for new, old in ((0.0, -1e4), (-1e4, 0.0)):
        assert torch.isfinite(losses.ppo(one * new, one * old, one, one, low=0.2, high=0.2)).all()
        assert torch.isfinite(losses.kl_estimate(one * new, one * old, one, "k3")).all()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
def test_junk_at_masked_places_does_not_matter(mode: losses.Aggregation) -> None:
    junk = torch.where(MASK > 0, ppo(), torch.full_like(MASK, 0.3))
    assert torch.equal(
        losses.aggregate(junk, MASK, mode, max_tokens=5), losses.aggregate(ppo(), MASK, mode, max_tokens=5)
    )
    holes = torch.where(MASK > 0, ppo(), torch.full_like(MASK, float("nan")))
    assert torch.isfinite(losses.aggregate(holes, MASK, mode, max_tokens=5))


def test_token_mean_is_over_tokens_and_the_divisor_of_dr_grpo_is_constant() -> None:
    per_token = torch.tensor([[1.0] * 2 + [0] * 6, [0.25] * 8])
    mask = torch.tensor([[1.0] * 2 + [0] * 6, [1.0] * 8])
    assert float(losses.aggregate(per_token, mask, "token-mean")) == near(0.4)
    assert float(losses.aggregate(per_token, mask, "seq-mean-token-mean")) == near(0.625)
    # Two tokens with a loss of 1 each and eight without: one mean over all tokens, another over trajectories.
    uneven = torch.tensor([[1.0] * 2 + [0] * 6, [0.0] * 8])
    assert float(losses.aggregate(uneven, mask, "token-mean")) == near(0.2)
    assert float(losses.aggregate(uneven, mask, "seq-mean-token-mean")) == near(0.5)
    sums = torch.tensor([[3.0, 0, 0, 0, 0, 0], [1.0, 0, 0, 0, 0, 0]])
    full = torch.ones(2, 6)
    for padded in (0, 4):
        wide, wide_mask = (torch.nn.functional.pad(table, (0, padded)) for table in (sums, full))
        assert float(losses.aggregate(wide, wide_mask, "seq-mean-token-sum-norm", max_tokens=10)) == near(0.2)
    with pytest.raises(ValueError, match="max_tokens"):
        losses.aggregate(sums, full, "seq-mean-token-sum-norm")


def test_nothing_masked_in_is_a_loss_of_zero() -> None:
    nothing = torch.zeros(2, 3)
    for mode in ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean"):
        assert float(losses.aggregate(torch.full((2, 3), 7.0), nothing, mode)) == 0.0
    assert losses.effective_sample_share(torch.ones(2, 3), nothing) == 0.0
