"""What only the hf engine can get wrong: weights that do not fit, a cache that shrinks, a loop that dies."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from testkit.engines import MAX_LENGTH, TINY_CONFIG, Collector, HfHarness, prompt_of, request_of, tiny_weights

from inference_svc.engine.engine import EngineDied, LoadRefused, RequestRefused
from inference_svc.engine.hf import HfEngine
from inference_svc.engine.hf_batching import BatchingSettings, UnsupportedModel
from inference_svc.engine.hf_model import build_model, config_from_files, read_directory


@pytest.fixture
async def harness() -> AsyncIterator[HfHarness]:
    made = HfHarness(BatchingSettings(n_blocks=128, max_running=4))
    await made.engine.start()
    await made.engine.load(1, "digest-1", made.tensors(1))
    yield made
    await made.engine.stop()


def spoiled(kind: str) -> dict[str, np.ndarray]:
    weights = tiny_weights(2)
    name = "model.layers.1.mlp.up_proj.weight"
    match kind:
        case "missing":
            del weights[name]
        case "unknown":
            weights["model.layers.7.mlp.up_proj.weight"] = weights[name]
        case "misshapen":
            weights[name] = weights[name].T.copy()
    return weights


@pytest.mark.parametrize("kind", ["missing", "unknown", "misshapen"])
async def test_weights_that_do_not_fit_leave_the_old_ones_serving(harness: HfHarness, kind: str) -> None:
    collector = Collector(harness.engine)
    harness.engine.add(request_of("running", prompt_of(20), max_new_tokens=60))
    await collector.tokens("running", 2)
    with pytest.raises(LoadRefused, match="up_proj"):
        await harness.engine.load(2, "digest-2", spoiled(kind))
    received = await collector.finished("running")
    assert len(received.ids) == 60
    assert set(received.versions) == {1}


async def test_a_tied_name_may_be_given_twice(harness: HfHarness) -> None:
    weights = tiny_weights(3)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    report = await harness.engine.load(3, "digest-3", weights)
    assert report.n_bytes == sum(array.nbytes for array in tiny_weights(3).values())


async def test_loads_do_not_shrink_the_cache(harness: HfHarness) -> None:
    collector = Collector(harness.engine)
    for version in range(2, 14):
        for lane in range(4):
            request = request_of(f"v{version}-{lane}", prompt_of(100, salt=lane), seed=lane, max_new_tokens=40)
            harness.engine.add(request)
        await collector.tokens(f"v{version}-3", 20)
        await harness.engine.load(version, f"digest-{version}", harness.tensors(version))
        assert harness.engine.stats().kv_tokens_used == 0
    for lane in range(4):
        harness.engine.add(request_of(f"end-{lane}", prompt_of(200, salt=lane), max_new_tokens=40))
    for lane in range(4):
        assert len((await collector.finished(f"end-{lane}")).ids) == 40


async def test_siblings_compute_their_prompt_once(harness: HfHarness) -> None:
    collector = Collector(harness.engine)
    prompt = prompt_of(97)
    for seed in range(4):
        harness.engine.add(request_of(f"alone-{seed}", prompt, seed=seed))
        await collector.finished(f"alone-{seed}")
    await harness.engine.load(2, "digest-2", harness.tensors(1))
    await harness.engine.pause()
    before = harness.engine.stats()
    for seed in range(4):
        harness.engine.add(request_of(f"sibling-{seed}", prompt, seed=seed))
    await harness.engine.resume()
    for seed in range(4):
        received = await collector.finished(f"sibling-{seed}")
        assert received.ids == collector.so_far(f"alone-{seed}").ids
    after = harness.engine.stats()
    assert after.prefill_tokens - before.prefill_tokens == 97 + 3 * 1
    assert after.prefix_hit_tokens - before.prefix_hit_tokens == 3 * 96


async def test_a_small_cache_serves_more_than_it_can_hold_at_once(harness: HfHarness) -> None:
    collector = Collector(harness.engine)
    for n in range(40):
        harness.engine.add(request_of(f"r{n}", prompt_of(150, salt=n), seed=n, max_new_tokens=10))
    for n in range(40):
        assert len((await collector.finished(f"r{n}", timeout_s=30)).ids) == 10
    stats = harness.engine.stats()
    assert stats.kv_tokens_used <= stats.kv_tokens_total


async def test_broken_weights_end_the_loop_and_the_stream(harness: HfHarness) -> None:
    weights = tiny_weights(2)
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], np.nan)
    await harness.engine.load(2, "digest-2", weights)
    collector = Collector(harness.engine)
    harness.engine.add(request_of("doomed", prompt_of(10)))
    error = await collector.ended()
    assert isinstance(error, EngineDied)
    assert "not finite" in str(error)
    with pytest.raises(RequestRefused):
        harness.engine.add(request_of("late", prompt_of(10)))
    with pytest.raises(EngineDied):
        await harness.engine.load(3, "digest-3", tiny_weights(3))


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral", "gpt_neox"])
async def test_other_architectures_equal_their_plain_forward(model_type: str) -> None:
    config = {**copy.deepcopy(TINY_CONFIG), "model_type": model_type, "sliding_window": None}
    if model_type == "gpt_neox":
        del config["num_key_value_heads"], config["head_dim"]
    model = build_model(config)
    engine = HfEngine(build_model(config), BatchingSettings(n_blocks=64))
    await engine.start()
    try:
        await engine.load(0, "digest-0", model.state_dict())
        collector = Collector(engine)
        prompts = {f"r{n}": prompt_of(n, salt=n) for n in (1, 20, 50)}
        for request_id, prompt in prompts.items():
            engine.add(request_of(request_id, prompt))
        for request_id, prompt in prompts.items():
            received = await collector.finished(request_id)
            with torch.no_grad():
                tokens = torch.tensor([prompt + received.ids])
                logprobs = torch.log_softmax(model(tokens).logits[0], -1)
            for index, (token, logprob) in enumerate(zip(received.ids, received.logprobs, strict=True)):
                assert abs(logprobs[len(prompt) - 1 + index, token].item() - logprob) <= 1e-5
    finally:
        await engine.stop()


def test_a_request_is_bounded_by_the_cache_too() -> None:
    engine = HfEngine(build_model(copy.deepcopy(TINY_CONFIG)), BatchingSettings(n_blocks=10))
    assert engine.limits.max_length == 8 * 16 < MAX_LENGTH


def test_sliding_attention_is_refused_with_its_reason() -> None:
    config = {
        **copy.deepcopy(TINY_CONFIG),
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 32,
    }
    with pytest.raises(UnsupportedModel, match="sliding"):
        HfEngine(build_model({**config, "use_sliding_window": True}), BatchingSettings(n_blocks=64))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no config.json"),
        ({"config.json": b"{"}, "not JSON"),
        ({"config.json": b"{}"}, "model_type"),
    ],
)
def test_a_manifest_without_a_usable_config_is_named(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        config_from_files(files)


async def test_a_model_directory_gives_its_config_and_weights(tmp_path: Path) -> None:
    model = build_model(copy.deepcopy(TINY_CONFIG))
    model.save_pretrained(tmp_path)
    config, tensors = read_directory(tmp_path)
    engine = HfEngine(build_model(config), BatchingSettings(n_blocks=64))
    await engine.start()
    try:
        await engine.load(0, "from-directory", tensors)
        collector = Collector(engine)
        prompt = prompt_of(30)
        engine.add(request_of("turn", prompt))
        received = await collector.finished("turn")
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
        assert abs(logprobs[received.ids[0]].item() - received.logprobs[0]) <= 1e-5
    finally:
        await engine.stop()


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"no config\.json"):
        read_directory(tmp_path / "nowhere")


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(UnsupportedModel, match="no_such_model"):
        build_model({"model_type": "no_such_model"})
