"""A training step: invariant under its cuts, silent where nothing trains, and going the right way."""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from testkit.tiny_models import row, tiny_model
from transformers import GPT2Config, GPT2LMHeadModel

from trainer_svc.batch import Row, pad_rows
from trainer_svc.logprobs import token_logprobs
from trainer_svc.results import StepResult
from trainer_svc.step import StepHooks, StepSettings, train_step

MIXED = [
    row(9, 3, 1.0, seed=1),
    row(30, 5, -1.0, seed=2),
    row(4, 2, 0.5, seed=3, task="b"),
    row(17, 9, -0.5, seed=4, task="b"),
    row(6, 3, 0.0, seed=5, task="b"),
]
GROUPS = [[0, 1], [2, 3, 4]]


def step(
    rows: Sequence[Row],
    settings: StepSettings,
    *,
    groups: Sequence[Sequence[int]] = GROUPS,
    hooks: StepHooks | None = None,
) -> tuple[torch.nn.Module, StepResult]:
    """One step of plain SGD, so that the change is the gradient."""
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, train_step(model, optimizer, rows, groups, settings, hooks or StepHooks())


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def logprob(model: torch.nn.Module, entry: Row) -> float:
    with torch.no_grad():
        return float(token_logprobs(model, pad_rows([entry], [0])).sum())  # type: ignore[arg-type]


@pytest.mark.parametrize("task_balance", ["none", "per_task"])
@pytest.mark.parametrize(
    "reduction", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
)
def test_micro_batches_do_not_change_the_result(reduction: str, task_balance: str) -> None:
    settings = StepSettings(
        loss_reduction=reduction, max_tokens=64, task_balance=task_balance, grad_clip=1e9, updates_per_step=1
    )  # type: ignore[arg-type]
    whole, _ = step(MIXED, settings)
    for budget in (1, 40, 60):
        cut, _ = step(MIXED, replace(settings, max_tokens_per_microbatch=budget))
        assert torch.allclose(flat(whole), flat(cut), atol=1e-6)
    assert not torch.equal(flat(whole), flat(tiny_model()))


def test_a_row_without_advantage_counts_in_the_denominator() -> None:
    settings = StepSettings(grad_clip=1e9)
    with_zero, _ = step(MIXED, settings)
    without, _ = step(MIXED[:4], settings, groups=[[0, 1], [2, 3]])
    n_tokens = sum(entry.n_loss_tokens for entry in MIXED)
    moved, moved_without = flat(with_zero) - flat(tiny_model()), flat(without) - flat(tiny_model())
    n_less = n_tokens - MIXED[4].n_loss_tokens
    assert torch.allclose(moved * n_tokens, moved_without * n_less, atol=1e-4)


@pytest.mark.parametrize(
    "rows",
    [
        [replace(entry, mask=[0] * len(entry.ids)) for entry in MIXED],
        [replace(entry, advantage=0.0) for entry in MIXED],
        [],
    ],
    ids=["all masked", "all zero variance", "empty"],
)
def test_a_step_without_trainable_tokens_changes_no_bit(rows: list[Row]) -> None:
    model = tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    before = copy.deepcopy(optimizer.state_dict())
    result = train_step(model, optimizer, rows, GROUPS if rows else [], StepSettings())
    assert result.skip_reason == "no trainable tokens"
    assert torch.equal(flat(model), flat(tiny_model()))
    assert optimizer.state_dict() == before


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_advantages_push_the_right_way(advantage: float) -> None:
    entry = row(8, 3, advantage, seed=6)
    model = tiny_model()
    before = logprob(model, entry)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train_step(model, optimizer, [entry], [[0]], StepSettings(correction="none"))
    assert (logprob(model, entry) - before) * advantage > 1e-4


@pytest.mark.parametrize("budget", [8192, 40])
def test_learning_rate_zero_changes_nothing(budget: int) -> None:
    settings = StepSettings(updates_per_step=2, max_tokens_per_microbatch=budget)
    model, result = step(MIXED, settings, hooks=StepHooks(learning_rate=lambda done: 0.0))
    assert result.n_updates == 2
    assert torch.equal(flat(model), flat(tiny_model()))
    assert result.metrics["ratio_deviation"] == pytest.approx(0, abs=1e-6), "r is 1 while the parameters stand still"
    assert result.metrics["clip_fraction"] == 0
    assert result.metrics["kl_from_old"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("budget", [8192, 40])
def test_the_first_ratio_is_exactly_1_in_bfloat16_too(budget: int) -> None:
    """pi_old is the trainer's own; what the engine's logprobs are off by is the correction's and the gap's."""
    model = tiny_model().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = train_step(model, optimizer, MIXED, GROUPS, StepSettings(max_tokens_per_microbatch=budget))
    assert (result.metrics["ratio_deviation"], result.metrics["clip_fraction"]) == (0, 0)
    assert result.metrics["lag/0/rho_deviation"] > 0


def test_dropout_of_the_model_does_not_move_the_ratio() -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=29, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.5, embd_pdrop=0.5)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    result = train_step(model, optimizer, MIXED, GROUPS, StepSettings(updates_per_step=2))
    assert result.metrics["ratio_deviation"] == pytest.approx(0, abs=1e-6)
    assert result.metrics["clip_fraction"] == 0


class OneLogprob(torch.nn.Module):
    """Two words, and a log-probability of word 1 that is the same everywhere."""

    def __init__(self, logprob: float) -> None:
        super().__init__()
        self.odds = torch.nn.Parameter(torch.tensor(logprob - math.log1p(-math.exp(logprob))))
        self.device = torch.device("cpu")

    def get_decoder(self) -> object:
        return lambda input_ids, **_: type("Out", (), {"last_hidden_state": torch.ones(*input_ids.shape, 1)})

    def get_output_embeddings(self) -> object:
        return lambda hidden: torch.stack([torch.zeros(()), self.odds]).expand(hidden.shape[0], -1)


@pytest.mark.parametrize(("kind", "value"), [("k1", -0.2), ("k2", 0.02), ("k3", 0.021403)])
def test_the_penalty_is_added_and_pulls_towards_the_reference(kind: str, value: float) -> None:
    model, entry = OneLogprob(-1.2), Row([0, 1], [0, 1], [0.0, -1.2], 0.0, "a")
    settings = StepSettings(kl_coefficient=0.1, kl_estimator=kind)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = train_step(model, optimizer, [entry], [[0]], settings, StepHooks(reference=OneLogprob(-1.0)))  # type: ignore[arg-type]
    assert result.metrics["loss"] == pytest.approx(0.1 * value, abs=1e-7)
    if kind != "k1":  # the expectation of its gradient is 0: it pulls nowhere
        assert -1.2 < logprob(model, entry) < -1.0


def test_truncated_correction_scales_the_gradient_of_stale_tokens() -> None:
    entry = row(8, 3, 1.0, seed=8)
    model = tiny_model()
    with torch.no_grad():
        own = token_logprobs(model, pad_rows([entry], [0]))[0].tolist()
    fresh = replace(entry, behaviour=own)
    stale = replace(entry, behaviour=[value - 5.0 * bit for value, bit in zip(own, entry.mask, strict=True)], lag=1)
    settings = StepSettings(grad_clip=1e9)
    moved = [flat(step([made], settings, groups=[[0]])[0]) - flat(model) for made in (fresh, stale)]
    assert torch.allclose(moved[1], 2.0 * moved[0], atol=1e-5)
    _, result = step([fresh, stale], settings, groups=[[0, 1]])
    assert result.metrics["lag/0/rho_deviation"] == pytest.approx(0, abs=1e-5)
    assert result.metrics["lag/0/effective_sample_share"] == pytest.approx(1, abs=1e-5)
    assert result.metrics["lag/1/capped_fraction"] == 1.0


def test_tasks_weigh_alike_when_balanced() -> None:
    small, big = row(6, 3, 1.0, seed=9, task="small"), row(60, 3, 1.0, seed=10, task="big")
    apart = [
        flat(step([one], StepSettings(grad_clip=1e9), groups=[[0]])[0]) - flat(tiny_model()) for one in (small, big)
    ]
    balanced = StepSettings(grad_clip=1e9, task_balance="per_task")
    moved = flat(step([small, big], balanced, groups=[[0], [1]])[0]) - flat(tiny_model())
    assert torch.allclose(moved, (apart[0] + apart[1]) / 2, atol=1e-6)


def test_counts_are_of_generated_tokens() -> None:
    _, result = step(MIXED, StepSettings())
    assert result.metrics["n_loss_tokens"] == sum(entry.n_loss_tokens for entry in MIXED) == 44
    assert result.metrics["n_active_rows"] == 4


def test_several_updates_deal_whole_groups() -> None:
    seen: list[tuple[str, int, int]] = []
    hooks = StepHooks(progress=lambda *event: seen.append(event))
    _, result = step(MIXED, StepSettings(updates_per_step=2), hooks=hooks)
    assert result.n_updates == 2
    assert seen[-1] == ("update", 2, 2)


def test_a_gradient_that_is_not_finite_is_not_applied() -> None:
    broken = replace(MIXED[0], advantage=float("inf"))
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(FloatingPointError, match="not applied"):
        train_step(model, optimizer, [broken, MIXED[1]], [[0, 1]], StepSettings())
    assert torch.equal(flat(model), flat(tiny_model()))
