"""The sampling rules by value, and the vectorised step against the plain one."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.draw import uniform
from inference_svc.engine.engine import SamplingSpec
from inference_svc.engine.hf_sampling import NonFiniteLogits, Row, sample
from inference_svc.engine.sampling import log_softmax, sample_one


def test_the_logprob_is_after_temperature() -> None:
    # logits [2, 1, 0] at T = 0.5: log p(1) = 2 - ln(e^4 + e^2 + 1)
    expected = 2 - math.log(math.exp(4) + math.exp(2) + 1)
    assert log_softmax([2.0, 1.0, 0.0], 0.5)[1] == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(-2.142932, abs=1e-6)
    seed = next(
        s for s in range(1000) if sample_one([2.0, 1.0, 0.0], SamplingSpec(1, temperature=0.5, seed=s), 7)[0] == 1
    )
    row = Row(SamplingSpec(1, temperature=0.5, seed=seed), 7)
    ids, logprobs = sample(torch.tensor([[2.0, 1.0, 0.0]]), [row])
    assert ids == [1]
    assert logprobs[0] == pytest.approx(-2.142932, abs=1e-6)


def test_the_reported_logprob_belongs_to_the_sampled_id() -> None:
    # An id of rank 3 is drawn by some seed; its own logprob comes back, not the first entry's.
    logits = [0.0, 3.0, 1.0, 2.0]
    own = log_softmax(logits, 1.0)
    drawn = {sample_one(logits, SamplingSpec(1, seed=seed), 0) for seed in range(300)}
    assert {token for token, _ in drawn} == {0, 1, 2, 3}
    assert all(logprob == own[token] for token, logprob in drawn)


def test_softmax_is_computed_in_float32() -> None:
    # In bfloat16 these two logits are equal and the logprob would be ln 2.
    logits = torch.tensor([[20.06, 20.0]])
    greedy = Row(SamplingSpec(1, temperature=0.0), 0)
    assert sample(logits, [greedy])[1][0] == pytest.approx(-math.log(1 + math.exp(-0.06)), abs=1e-5)


PINNED = [0.6524484863740322, 0.36818951565166946, 0.7012121095215252, 0.8442366324399446]

row_specs = st.builds(
    SamplingSpec,
    max_new_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.4, 0.05]),
    top_k=st.sampled_from([0, 1, 3, 100]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=200)
@given(st.lists(row_specs, min_size=1, max_size=6), st.integers(0, 10**6), st.integers(0, 5000))
def test_the_vectorised_step_draws_what_the_plain_one_draws(
    specs: list[SamplingSpec], logits_seed: int, position: int
) -> None:
    rng = random.Random(logits_seed)
    table = [[rng.uniform(-4, 4) for _ in range(12)] for _ in specs]
    rows = [Row(spec, position + n) for n, spec in enumerate(specs)]
    ids, logprobs = sample(torch.tensor(table), rows)
    for n, spec in enumerate(specs):
        single = torch.tensor(table[n]).tolist()
        token, logprob = sample_one(single, spec, position + n)
        assert ids[n] == token
        assert logprobs[n] == pytest.approx(logprob, abs=2e-6)


@settings(max_examples=50)
@given(st.permutations(range(5)), st.integers(0, 1000))
def test_rows_do_not_see_each_other(order: list[int], logits_seed: int) -> None:
    generator = torch.Generator().manual_seed(logits_seed)
    logits = torch.randn(5, 20, generator=generator)
    rows = [Row(SamplingSpec(1, temperature=0.5 + 0.3 * n, seed=n), 10 * n) for n in range(5)]
    ids, logprobs = sample(logits, rows)
    shuffled_ids, shuffled_logprobs = sample(logits[list(order)], [rows[n] for n in order])
    assert shuffled_ids == [ids[n] for n in order]
    assert shuffled_logprobs == [logprobs[n] for n in order]


def test_draws_follow_the_distribution() -> None:
    logits = [1.0, 0.0, -1.0, 2.0]
    expected = [math.exp(value) for value in log_softmax(logits, 1.0)]
    n_draws = 20_000
    counts = Counter(sample_one(logits, SamplingSpec(1, seed=seed), 3)[0] for seed in range(n_draws))
    for token, probability in enumerate(expected):
        spread = math.sqrt(probability * (1 - probability) / n_draws)
        assert abs(counts[token] / n_draws - probability) < 4 * spread


def test_uniform_is_flat_over_seeds_and_over_positions() -> None:
    for draws in ([uniform(seed, 5) for seed in range(10_000)], [uniform(5, position) for position in range(10_000)]):
        assert all(0.0 <= draw < 1.0 for draw in draws)
        tenths = Counter(int(draw * 10) for draw in draws)
        assert all(abs(tenths[tenth] - 1000) < 130 for tenth in range(10))


def test_uniform_is_pinned() -> None:
    # Re-runs on another build must draw the same: these values are part of the contract.
    assert [uniform(0, 0), uniform(1, 0), uniform(0, 1), uniform(2**64 - 1, 4096)] == pytest.approx(PINNED, abs=0)


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.tensor([[float("-inf"), 0.0, float("-inf"), 0.0]])
    rows = [Row(SamplingSpec(1, seed=seed), 0) for seed in range(200)]
    ids, _ = sample(logits.expand(200, -1), rows)
    assert set(ids) == {1, 3}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_refused(bad: float, temperature: float) -> None:
    with pytest.raises(NonFiniteLogits):
        sample(torch.tensor([[0.0, bad, 1.0]]), [Row(SamplingSpec(1, temperature=temperature), 0)])
