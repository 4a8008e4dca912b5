"""Logprobs equal a fresh forward under the version that the chunk names: new, shared-prefix and resumed requests."""

from __future__ import annotations

import pytest
from testkit.engines import VOCAB_SIZE, Collector, Harness, Received, prompt_of, request_of

from inference_svc.engine.engine import FinishReason
from inference_svc.engine.sampling import log_softmax

TOLERANCE = 1e-5


def worst_gap(harness: Harness, prompt: list[int], received: Received, temperature: float = 1.0) -> float:
    """Largest |engine - reference| over the tokens of one request, each under its own version."""
    gaps = []
    for index, (token, logprob) in enumerate(zip(received.ids, received.logprobs, strict=True)):
        logits = harness.next_logits(prompt + received.ids[:index], received.versions[index])
        gaps.append(abs(log_softmax(logits, temperature)[token] - logprob))
    return max(gaps)


async def test_a_new_request_equals_a_fresh_forward(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(40)
    loaded.engine.add(request_of("new", prompt, max_new_tokens=20))
    received = await collector.finished("new")
    assert len(received.ids) == 20
    assert worst_gap(loaded, prompt, received) <= TOLERANCE


async def test_after_a_load_new_shared_and_resumed_requests_are_the_new_weights(
    loaded: Harness, collector: Collector
) -> None:
    shared, fresh, resumed = prompt_of(48, salt=1), prompt_of(33, salt=2), prompt_of(37, salt=3)
    loaded.engine.add(request_of("warm", shared))
    await collector.finished("warm")
    loaded.engine.add(request_of("old", resumed, max_new_tokens=60))
    kept = list((await collector.tokens("old", 5)).ids)

    await loaded.engine.load(2, "digest-2", loaded.tensors(2))

    old = await collector.finished("old")
    assert old.finish_reason is FinishReason.LOAD
    assert set(old.versions) == {1}
    kept = list(old.ids)
    collector.forget("old")
    loaded.engine.add(request_of("old", resumed + kept, kept=len(kept), max_new_tokens=len(kept) + 20))
    loaded.engine.add(request_of("shared", shared))
    loaded.engine.add(request_of("fresh", fresh))
    for request_id, prompt in (("old", resumed + kept), ("shared", shared), ("fresh", fresh)):
        received = await collector.finished(request_id)
        assert received.versions and set(received.versions) == {2}
        assert set(received.digests) == {"digest-2"}
        assert worst_gap(loaded, prompt, received) <= TOLERANCE, request_id
    assert collector.so_far("old").first_offset == len(kept)


async def test_the_versions_differ_enough_for_the_test_above_to_mean_something(loaded: Harness) -> None:
    prompt = prompt_of(48, salt=1)
    old, new = (log_softmax(loaded.next_logits(prompt, version), 1.0) for version in (1, 2))
    assert max(abs(a - b) for a, b in zip(old, new, strict=True)) > 0.1


async def test_many_requests_of_unequal_length_in_one_batch(loaded: Harness, collector: Collector) -> None:
    prompts = {f"r{n}": prompt_of(n, salt=n) for n in (1, 2, 15, 16, 17, 31, 33, 64, 90, 120)}
    for n, (request_id, prompt) in enumerate(prompts.items()):
        loaded.engine.add(request_of(request_id, prompt, seed=n, max_new_tokens=3 + 2 * n))
    for request_id, prompt in prompts.items():
        assert worst_gap(loaded, prompt, await collector.finished(request_id)) <= TOLERANCE, request_id


async def test_a_prefix_hit_gives_the_same_tokens_as_the_first_time(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(50, salt=5)
    answers = []
    for turn in range(2):
        loaded.engine.add(request_of(f"turn{turn}", prompt, seed=9))
        answers.append(await collector.finished(f"turn{turn}"))
    assert answers[0].ids == answers[1].ids
    assert answers[0].logprobs == pytest.approx(answers[1].logprobs, abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [0.5, 0.9, 2.0])
async def test_logprobs_are_after_temperature(loaded: Harness, collector: Collector, temperature: float) -> None:
    prompt = prompt_of(20, salt=6)
    loaded.engine.add(request_of("hot", prompt, temperature=temperature, max_new_tokens=16))
    received = await collector.finished("hot")
    assert worst_gap(loaded, prompt, received, temperature) <= TOLERANCE
    assert worst_gap(loaded, prompt, received, 1.0) > 1e-3


async def test_temperatures_mix_in_one_batch(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(20, salt=7)
    temperatures = {"a": 1.0, "b": 0.3, "c": 0.0, "d": 1.7}
    for request_id, temperature in temperatures.items():
        loaded.engine.add(request_of(request_id, prompt, temperature=temperature))
    for request_id, temperature in temperatures.items():
        assert worst_gap(loaded, prompt, await collector.finished(request_id), temperature) <= TOLERANCE


async def test_truncation_changes_the_draw_and_not_the_logprob(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(20, salt=8)
    loaded.engine.add(request_of("k", prompt, top_k=2, temperature=2.0, max_new_tokens=20))
    loaded.engine.add(request_of("p", prompt, top_p=0.2, temperature=2.0, max_new_tokens=20))
    for request_id in ("k", "p"):
        received = await collector.finished(request_id)
        assert worst_gap(loaded, prompt, received, 2.0) <= TOLERANCE
    received = collector.so_far("k")
    for index, token in enumerate(received.ids):
        logits = loaded.next_logits(prompt + received.ids[:index], 1)
        assert token in sorted(range(VOCAB_SIZE), key=lambda i, row=logits: -row[i])[:2]


async def test_the_logprob_is_that_of_the_sampled_id(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(20, salt=9)
    loaded.engine.add(request_of("hot", prompt, temperature=3.0, max_new_tokens=40))
    received = await collector.finished("hot")
    ranks = []
    for index, token in enumerate(received.ids):
        logits = loaded.next_logits(prompt + received.ids[:index], 1)
        ranks.append(sum(value > logits[token] for value in logits))
    assert max(ranks) > 0, "every draw was the likeliest token: the check below could not tell them apart"
    assert worst_gap(loaded, prompt, received, 3.0) <= TOLERANCE


async def test_greedy_takes_the_likeliest_token(loaded: Harness, collector: Collector) -> None:
    prompt = prompt_of(30, salt=10)
    for seed in (1, 2):
        loaded.engine.add(request_of(f"greedy{seed}", prompt, seed=seed, temperature=0.0, max_new_tokens=12))
    received = await collector.finished("greedy1")
    for index, token in enumerate(received.ids):
        logits = loaded.next_logits(prompt + received.ids[:index], 1)
        assert logits[token] >= max(logits) - 1e-4
    assert (await collector.finished("greedy2")).ids == received.ids


async def test_the_engine_runs_on_the_ids_it_was_given(loaded: Harness, collector: Collector) -> None:
    # Two ids that a tokenizer would merge into one stay two: the answer is that of [1, 2].
    loaded.engine.add(request_of("pair", [1, 2], max_new_tokens=6))
    received = await collector.finished("pair")
    assert worst_gap(loaded, [1, 2], received) <= TOLERANCE
    assert worst_gap(loaded, [3], received) > 1e-3
