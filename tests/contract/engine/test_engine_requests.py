"""Requests: refusals that touch nobody else, aborts, stops, limits, pauses, loads under load."""

from __future__ import annotations

import asyncio
import math
import time

import pytest
from testkit.engines import MAX_LENGTH, VOCAB_SIZE, Collector, Harness, prompt_of, request_of

from inference_svc.engine.engine import EngineRequest, FinishReason, RequestRefused, SamplingSpec

PROMPT = tuple(prompt_of(12, salt=20))

BAD_REQUESTS = {
    "empty_prompt": EngineRequest("bad", (), SamplingSpec(4)),
    "token_out_of_range": EngineRequest("bad", (*PROMPT, VOCAB_SIZE), SamplingSpec(4)),
    "bad_temperature": EngineRequest("bad", PROMPT, SamplingSpec(4, temperature=-1.0)),
    "bad_top_p": EngineRequest("bad", PROMPT, SamplingSpec(4, top_p=0.0)),
    "bad_top_k": EngineRequest("bad", PROMPT, SamplingSpec(4, top_k=-1)),
    "bad_max_new_tokens": EngineRequest("bad", PROMPT, SamplingSpec(3), n_generated_before=3),
    "bad_offset": EngineRequest("bad", PROMPT, SamplingSpec(20), n_generated_before=len(PROMPT)),
    "bad_stop_token": EngineRequest("bad", PROMPT, SamplingSpec(4, stop_token_ids=(VOCAB_SIZE,))),
    "bad_seed": EngineRequest("bad", PROMPT, SamplingSpec(4, seed=-1)),
    "too_long": EngineRequest("bad", PROMPT, SamplingSpec(MAX_LENGTH)),
    "duplicate_request": EngineRequest("neighbour", PROMPT, SamplingSpec(4)),
}


@pytest.mark.parametrize("code", sorted(BAD_REQUESTS))
async def test_a_bad_request_is_refused_alone(loaded: Harness, collector: Collector, code: str) -> None:
    loaded.engine.add(request_of("before", PROMPT, max_new_tokens=30))
    undisturbed = (await collector.finished("before")).ids
    loaded.engine.add(request_of("neighbour", PROMPT, max_new_tokens=30))
    with pytest.raises(RequestRefused) as refusal:
        loaded.engine.add(BAD_REQUESTS[code])
    assert refusal.value.code == code
    assert (await collector.finished("neighbour")).ids == undisturbed


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 1e-9])
async def test_temperatures_that_would_break_the_batch_are_refused(loaded: Harness, temperature: float) -> None:
    with pytest.raises(RequestRefused) as refusal:
        loaded.engine.add(request_of("bad", PROMPT, temperature=temperature))
    assert refusal.value.code == "bad_temperature"


async def test_an_engine_without_weights_serves_nothing(harness: Harness) -> None:
    with pytest.raises(RequestRefused) as refusal:
        harness.engine.add(request_of("early", PROMPT))
    assert refusal.value.code == "no_weights"
    assert harness.engine.stats().policy_version is None


async def test_a_stopped_engine_refuses_and_its_stream_ends(loaded: Harness, collector: Collector) -> None:
    await loaded.engine.stop()
    assert await collector.ended() is None
    with pytest.raises(RequestRefused) as refusal:
        loaded.engine.add(request_of("late", PROMPT))
    assert refusal.value.code == "engine_stopped"


async def test_a_request_of_the_whole_window_runs(loaded: Harness, collector: Collector) -> None:
    loaded.engine.add(request_of("full", PROMPT, max_new_tokens=MAX_LENGTH - len(PROMPT)))
    received = await collector.finished("full", timeout_s=30)
    assert len(received.ids) == MAX_LENGTH - len(PROMPT)
    assert received.finish_reason is FinishReason.LENGTH


async def test_aborts_keep_what_was_sampled_and_free_the_lanes(loaded: Harness, collector: Collector) -> None:
    names = [f"r{n}" for n in range(8)]
    for n, name in enumerate(names):
        loaded.engine.add(request_of(name, prompt_of(20, salt=n), seed=n, max_new_tokens=200))
    loaded.engine.add(request_of("short", PROMPT, max_new_tokens=2))
    for name in names:
        await collector.tokens(name, 5)
    assert (await collector.finished("short")).finish_reason is FinishReason.LENGTH
    aborted_at = time.perf_counter()
    for name in names:
        loaded.engine.abort(name)
    loaded.engine.abort("nobody")
    loaded.engine.abort("short")
    for name in names:
        received = await collector.finished(name)
        assert received.finish_reason is FinishReason.ABORT
        assert 5 <= len(received.ids) == len(received.logprobs)
    assert time.perf_counter() - aborted_at < 1.0
    stats = loaded.engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


async def test_an_aborted_id_can_be_added_again(loaded: Harness, collector: Collector) -> None:
    await loaded.engine.pause()
    loaded.engine.add(request_of("again", PROMPT))
    loaded.engine.abort("again")
    assert (await collector.finished("again")).finish_reason is FinishReason.ABORT
    collector.forget("again")
    loaded.engine.add(request_of("again", PROMPT))
    await loaded.engine.resume()
    assert len((await collector.finished("again")).ids) == 8


async def test_only_the_stop_tokens_of_the_request_stop_it(loaded: Harness, collector: Collector) -> None:
    loaded.engine.add(request_of("free", PROMPT, max_new_tokens=30))
    free = (await collector.finished("free")).ids
    assert len(free) == 30
    stop = free[10]
    loaded.engine.add(request_of("stopped", PROMPT, max_new_tokens=30, stop_token_ids=(stop,)))
    stopped = await collector.finished("stopped")
    assert stopped.ids == free[: free.index(stop) + 1]
    assert stopped.finish_reason is FinishReason.STOP


async def test_max_new_tokens_counts_the_whole_logical_request(loaded: Harness, collector: Collector) -> None:
    loaded.engine.add(request_of("rest", [*PROMPT, 1, 2, 3], kept=3, max_new_tokens=8))
    received = await collector.finished("rest")
    assert (received.first_offset, len(received.ids)) == (3, 5)


async def test_more_requests_than_lanes_all_finish(loaded: Harness, collector: Collector) -> None:
    names = [f"r{n}" for n in range(150)]
    for n, name in enumerate(names):
        loaded.engine.add(request_of(name, prompt_of(10 + n % 40, salt=n), seed=n, max_new_tokens=3))
    received = [await collector.finished(name, timeout_s=30) for name in names]
    assert all(len(item.ids) == 3 for item in received)
    assert loaded.engine.stats().generated_tokens == 450


async def test_a_pause_stops_the_tokens_and_changes_none(loaded: Harness, collector: Collector) -> None:
    loaded.engine.add(request_of("plain", PROMPT, max_new_tokens=60))
    expected = (await collector.finished("plain")).ids
    loaded.engine.add(request_of("paused", PROMPT, max_new_tokens=60))
    await collector.tokens("paused", 3)
    await loaded.engine.pause()
    before = loaded.engine.stats().generated_tokens
    loaded.engine.add(request_of("queued", PROMPT))
    await asyncio.sleep(0.05)
    assert loaded.engine.stats().generated_tokens == before
    assert loaded.engine.stats().is_paused
    await loaded.engine.resume()
    assert (await collector.finished("paused")).ids == expected
    assert len((await collector.finished("queued")).ids) == 8


async def test_a_load_ends_running_and_waiting_requests(loaded: Harness, collector: Collector) -> None:
    names = [f"r{n}" for n in range(100)]
    for n, name in enumerate(names):
        loaded.engine.add(request_of(name, prompt_of(20, salt=n), seed=n, max_new_tokens=100))
    await collector.tokens("r0", 2)
    report = await loaded.engine.load(2, "digest-2", loaded.tensors(2))
    assert report.requests_cancelled == 100
    assert report.kv_tokens_freed > 0
    for name in names:
        received = await collector.finished(name)
        assert received.finish_reason is FinishReason.LOAD
        assert set(received.versions) <= {1}
    stats = loaded.engine.stats()
    assert (stats.running, stats.waiting, stats.kv_tokens_used) == (0, 0, 0)
    assert (stats.policy_version, stats.weight_digest) == (2, "digest-2")


async def test_a_load_during_a_pause_stays_paused(loaded: Harness, collector: Collector) -> None:
    await loaded.engine.pause()
    await loaded.engine.load(2, "digest-2", loaded.tensors(2))
    loaded.engine.add(request_of("later", PROMPT))
    await asyncio.sleep(0.05)
    assert collector.so_far("later").ids == []
    await loaded.engine.resume()
    assert set((await collector.finished("later")).versions) == {2}


async def test_one_logical_request_over_three_versions(loaded: Harness, collector: Collector) -> None:
    # 2, 2 and 8 tokens under versions 2, 4 and 6: offsets join up and every token names its version.
    spans: list[tuple[int, int]] = []
    kept: list[int] = []
    for policy_version, n_tokens in ((2, 2), (4, 2), (6, 8)):
        await loaded.engine.load(policy_version, f"digest-{policy_version}", loaded.tensors(policy_version))
        name = f"part{policy_version}"
        last = len(kept) + n_tokens
        loaded.engine.add(request_of(name, [*PROMPT, *kept], kept=len(kept), max_new_tokens=last))
        received = await collector.finished(name)
        assert received.first_offset == len(kept)
        kept.extend(received.ids)
        spans.extend((version, len(kept)) for version in sorted(set(received.versions)))
    assert spans == [(2, 2), (4, 4), (6, 12)]
