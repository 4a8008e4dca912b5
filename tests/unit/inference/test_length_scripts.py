"""Answers of the scripted engine that are as long as their prompts say."""

import asyncio
import json

import pytest

from benchmarks.scripted_model import VOCABULARY, Timing, save
from inference_svc.engine.engine import EngineRequest, FinishReason, SamplingSpec
from inference_svc.engine.scripted import LengthScript, ScriptedEngine, ScriptedSettings
from inference_svc.worker.build import CannotBuild, build_engine
from inference_svc.worker.options import EngineOptions

MARK, STOP = VOCABULARY.index("#"), VOCABULARY.index("<|end|>")
DIGITS = tuple(VOCABULARY.index(digit) for digit in "0123456789")
LETTERS = tuple(VOCABULARY.index(letter) for letter in "abc")
SCRIPT = LengthScript(MARK, DIGITS, STOP, LETTERS)


def prompt(length: int) -> tuple[int, ...]:
    return (LETTERS[0], MARK, *(DIGITS[int(digit)] for digit in f"{length:03d}"))


@pytest.mark.parametrize("length", [1, 2, 17, 120])
def test_what_is_left_counts_down_to_nothing(length: int) -> None:
    ids = list(prompt(length))
    for left in range(length, 0, -1):
        assert SCRIPT.left(ids) == left
        ids.append(LETTERS[0])
    assert SCRIPT.left(ids) == 0


def test_the_last_mark_counts_and_half_a_mark_does_not() -> None:
    assert SCRIPT.left([*prompt(5), *[LETTERS[0]] * 4, STOP, *prompt(2)]) == 2
    assert SCRIPT.left([LETTERS[0], MARK, DIGITS[1]]) is None
    assert SCRIPT.left([MARK, DIGITS[1], LETTERS[0], DIGITS[1]]) is None
    assert SCRIPT.left([LETTERS[0]]) is None


async def answers(engine: ScriptedEngine, lengths: list[int], *, kept: int = 0) -> dict[str, list[int]]:
    """Token ids by request, of one request for each length."""
    await engine.start()
    await engine.load(0, "digest", {})
    sampling = SamplingSpec(max_new_tokens=999, stop_token_ids=(STOP,), seed=3)
    for length in lengths:
        ids = (*prompt(length), *[LETTERS[0]] * kept)
        engine.add(EngineRequest(str(length), ids, sampling, n_generated_before=kept))
    made: dict[str, list[int]] = {str(length): [] for length in lengths}
    open_ids = set(made)
    async with asyncio.timeout(20):
        async for chunks in engine.outputs():
            for chunk in chunks:
                made[chunk.request_id] += chunk.ids
                if chunk.finish_reason is not None:
                    assert chunk.finish_reason is FinishReason.STOP
                    open_ids.discard(chunk.request_id)
            if not open_ids:
                break
    await engine.stop()
    return made


def built(tmp_path_factory: pytest.TempPathFactory, **options: int) -> ScriptedEngine:
    folder = save(tmp_path_factory.mktemp("model"), Timing(t0_s=0.0))
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    engine, _ = build_engine("scripted", EngineOptions(**options), files)
    assert isinstance(engine, ScriptedEngine)
    return engine


async def test_answers_are_letters_and_end_when_they_should(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = await answers(built(tmp_path_factory), [1, 2, 9, 40])
    for length, ids in made.items():
        assert len(ids) == int(length)
        assert ids[-1] == STOP
        assert set(ids[:-1]) <= set(LETTERS)


async def test_an_answer_that_moved_is_as_long_as_one_that_did_not(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = await answers(built(tmp_path_factory), [9, 40], kept=5)
    assert {length: len(ids) for length, ids in made.items()} == {"9": 4, "40": 35}


def test_timing_comes_with_the_model_and_the_cache_with_the_job(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = built(tmp_path_factory, kv_tokens=640, max_running=4)
    assert engine.settings == ScriptedSettings(vocab_size=16, max_running=4, t0_s=0.0, kv_tokens=640)
    assert engine.stats().kv_tokens_total == 640


async def test_what_does_not_fit_the_cache_waits(tmp_path_factory: pytest.TempPathFactory) -> None:
    engine = built(tmp_path_factory, kv_tokens=16, max_running=8)
    made = await answers(engine, [3, 4, 5, 6, 7])
    assert {length: len(ids) for length, ids in made.items()} == {str(n): n for n in (3, 4, 5, 6, 7)}
    assert engine.stats().steps > 7  # not all of them at once


@pytest.mark.parametrize(
    "scripted", [{"lengths": {"mark": 1}}, {"engine": {"speed": 1}}, {"engine": {"t0_s": "fast"}}, 7]
)
def test_a_config_that_cannot_be_read_is_refused(scripted: object) -> None:
    files = {"config.json": json.dumps({"vocab_size": 16, "scripted": scripted}).encode()}
    with pytest.raises(CannotBuild, match="scripted engine"):
        build_engine("scripted", EngineOptions(), files)
