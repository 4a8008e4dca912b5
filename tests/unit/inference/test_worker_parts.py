"""The worker's small parts: merging chunks, engine options, the shelf of weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.weight_source import MemorySource

from headrace.core.weights.errors import PeerLost, VersionConflict
from headrace.core.weights.manifest import Manifest
from inference_svc.engine.engine import FinishReason, TokenChunk
from inference_svc.worker.build import CannotBuild, build_engine
from inference_svc.worker.merge import ChunkMerger
from inference_svc.worker.messages import Prefetch
from inference_svc.worker.options import BadOptions, EngineOptions
from inference_svc.worker.settings import WorkerSettings
from inference_svc.worker.shelf import WeightShelf

# ---- merging ---------------------------------------------------------------------------------------------------------

events = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["token", "token", "version", "stop", "flush"])))


@given(events)
def test_merging_keeps_every_token_in_order_with_its_version(script: Sequence[tuple[str, str]]) -> None:
    merger = ChunkMerger()
    versions = dict.fromkeys("abc", 1)
    sent: dict[str, list[tuple[int, int]]] = {name: [] for name in "abc"}
    got: dict[str, list[tuple[int, int]]] = {name: [] for name in "abc"}
    ended: set[str] = set()

    def receive(chunks: list[TokenChunk]) -> None:
        for chunk in chunks:
            assert chunk.request_id not in ended
            assert chunk.offset == len(got[chunk.request_id])
            got[chunk.request_id].extend((token, chunk.policy_version) for token in chunk.ids)
            if chunk.finish_reason is not None:
                ended.add(chunk.request_id)

    stopped: set[str] = set()
    for name, kind in script:
        if kind == "flush":
            receive(merger.flush())
        elif kind == "version":
            versions[name] += 1
        elif name not in stopped:
            offset = len(sent[name])
            sent[name].append((offset, versions[name]))
            reason = FinishReason.STOP if kind == "stop" else None
            receive(merger.add([TokenChunk(name, offset, (offset,), (-0.5,), versions[name], "d", reason)]))
            if kind == "stop":
                stopped.add(name)
                assert name in ended, "a finished request must not wait"
    receive(merger.flush())
    assert got == sent
    assert len(merger) == 0


def test_tokens_of_one_request_become_one_chunk() -> None:
    merger = ChunkMerger()
    for offset in range(3):
        assert merger.add([TokenChunk("r", offset, (offset,), (-offset / 2,), 4, "d")]) == []
    last = TokenChunk("r", 3, (3,), (-1.5,), 4, "d", FinishReason.LENGTH)
    assert merger.add([last]) == [
        TokenChunk("r", 0, (0, 1, 2, 3), (0.0, -0.5, -1.0, -1.5), 4, "d", FinishReason.LENGTH)
    ]


# ---- options ---------------------------------------------------------------------------------------------------------


def test_a_job_overrides_the_workers_options_and_unknown_keys_are_named() -> None:
    defaults = EngineOptions.from_settings(WorkerSettings(max_running=16, scripted_t0_s=0.01))
    options, unknown = defaults.overridden('{"max_running": 8, "max_len": 256, "kv_tokens": null, "lanes": 3}')
    assert (options.max_running, options.max_len, options.kv_tokens, options.t0_s) == (8, 256, 32768, 0.01)
    assert unknown == ["lanes"]
    assert defaults.overridden("") == (defaults, [])


@pytest.mark.parametrize(
    "engine_json",
    [
        "[]",
        "{",
        '{"max_running": 0}',
        '{"max_running": -1}',
        '{"max_running": 1.5}',
        '{"t0_s": "fast"}',
        '{"seed": true}',
    ],
)
def test_options_that_make_no_sense_are_refused(engine_json: str) -> None:
    with pytest.raises(BadOptions):
        EngineOptions().overridden(engine_json)


def test_a_scripted_engine_takes_its_vocabulary_from_the_config() -> None:
    _, limits = build_engine("scripted", EngineOptions(max_len=99), {"config.json": b'{"vocab_size": 40}'})
    assert (limits.vocab_size, limits.max_length) == (40, 99)
    with pytest.raises(CannotBuild, match="vocab_size"):
        build_engine("scripted", EngineOptions(), {"config.json": b"{}"})


def test_an_hf_engine_needs_a_config() -> None:
    with pytest.raises(CannotBuild, match=r"config\.json"):
        build_engine("hf", EngineOptions(), {})


# ---- the shelf -------------------------------------------------------------------------------------------------------


def put(source: MemorySource, policy_version: int, value: float = 0.0) -> Prefetch:
    tensors = {"w": np.full(4, value or policy_version, np.float32)}
    manifest: Manifest = source.put(policy_version, tensors, {"vocab_size": 8})
    return Prefetch(policy_version, "node:1", manifest, 5.0)


async def test_a_version_is_pulled_once_however_often_it_is_asked_for() -> None:
    source = MemorySource()
    source.gate = asyncio.Event()
    shelf = WeightShelf(source, 3)
    wanted = put(source, 1)
    first, second = (asyncio.create_task(shelf.fetch(wanted)) for _ in range(2))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(shelf.get(1))
    source.gate.set()
    assert await first is await second is await waiting is await shelf.fetch(wanted)
    assert source.pulled == [(1, "node:1")]
    assert shelf.resident == (1,)
    await shelf.close()
    assert source.unreleased == []
    assert source.is_closed


async def test_a_pull_that_failed_can_be_tried_again() -> None:
    source = MemorySource()
    shelf = WeightShelf(source, 3)
    wanted = put(source, 1)
    source.fail_once(1, PeerLost("the node went away"))
    with pytest.raises(PeerLost):
        await shelf.fetch(wanted)
    assert shelf.resident == ()
    assert (await shelf.fetch(wanted)).policy_version == 1


async def test_other_bytes_under_the_same_number_are_an_error() -> None:
    source = MemorySource()
    shelf = WeightShelf(source, 3)
    await shelf.fetch(put(source, 1))
    with pytest.raises(VersionConflict):
        await shelf.fetch(put(source, 1, value=9.0))


async def test_the_oldest_that_is_not_pinned_makes_room() -> None:
    source = MemorySource()
    shelf = WeightShelf(source, 3)
    await shelf.fetch(put(source, 1))
    shelf.pin(1)
    for policy_version in (2, 3, 4, 5):
        await shelf.fetch(put(source, policy_version))
    assert shelf.resident == (1, 4, 5)
    shelf.drop(1)
    assert shelf.resident == (1, 4, 5)
    shelf.pin(5)
    shelf.drop(1)
    assert shelf.resident == (4, 5)
    assert source.unreleased == [4, 5]


async def test_an_abandoned_wait_does_not_stop_the_pull() -> None:
    source = MemorySource()
    source.gate = asyncio.Event()
    shelf = WeightShelf(source, 3)
    wanted = put(source, 1)
    impatient = asyncio.create_task(shelf.fetch(wanted))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    source.gate.set()
    assert (await shelf.fetch(wanted)).policy_version == 1
    assert len(source.pulled) == 1
