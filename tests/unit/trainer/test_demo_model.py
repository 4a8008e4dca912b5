"""The demo model's parts: tokenizer, demonstrators, in-process episodes, and a warm start that fails loudly."""

from pathlib import Path
from random import Random

import pytest
import torch
from testkit.tiny_models import tiny_model
from transformers import AutoTokenizer

from trainer_svc.batch import Row, pad_rows
from trainer_svc.demo.__main__ import READY, main
from trainer_svc.demo.demonstrators import Demonstrator
from trainer_svc.demo.episodes import Player, TaskSpec
from trainer_svc.demo.model import build_model
from trainer_svc.demo.tasks import CALCULATOR, LAKE, SKILLED, UNSKILLED
from trainer_svc.demo.tokenizer import build_tokenizer
from trainer_svc.demo.warm_start import Demonstrations, WarmStartFailed, WarmStartSettings, warm_start
from trainer_svc.logprobs import token_logprobs


def success(task: TaskSpec, demonstrator: Demonstrator, n: int = 200) -> float:
    random, total = Random(0), 0.0
    for seed in range(n):
        environment = task.make("train")
        observations, is_over = [environment.reset(seed)[0]], False
        while not is_over:
            answer, _ = demonstrator(observations, random)
            observation, reward, is_terminated, is_truncated, info = environment.step(answer)
            observations.append(observation)
            is_over = is_terminated or is_truncated
        total += task.score(answer, info) if task.score else reward or 0.0
    return total / n


def test_the_skilled_have_the_skill_and_the_unskilled_lack_it() -> None:
    assert success(LAKE, SKILLED.lake) > 0.75
    assert success(CALCULATOR, SKILLED.calculator) > 0.7
    assert success(LAKE, UNSKILLED.lake) < 0.5
    assert success(CALCULATOR, UNSKILLED.calculator) < 0.35


def test_every_word_of_both_tasks_is_one_known_id_and_survives_saving(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == len(tokenizer) == 29
    for text, n_ids in (("SFHG\n01 #FF#", 10), ("Left", 1), ("calc +046-56", 8), ("answer -010", 5), ("12+34-56", 8)):
        ids = loaded.encode(text, add_special_tokens=False)
        assert len(ids) == n_ids
        assert loaded.unk_token_id not in ids
        assert loaded.decode(ids) == "".join(text.split())
    turns = [{"role": "user", "content": "00 #FF#"}, {"role": "assistant", "content": "Down"}]
    rendered = loaded.apply_chat_template(turns, tokenize=False)
    assert rendered == "<|user|>00 #FF#<|assistant|>Down<|end|>"
    assert loaded.eos_token == "<|end|>"


def test_an_unknown_character_is_unknown_and_not_lost() -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.encode("価é", add_special_tokens=False) == [tokenizer.unk_token_id] * 2


@pytest.mark.parametrize("task", [LAKE, CALCULATOR], ids=lambda task: task.name)
def test_lanes_are_played_as_if_alone(task: TaskSpec) -> None:
    model, tokenizer = tiny_model(), build_tokenizer()
    episodes = Player(model, tokenizer, torch.Generator().manual_seed(1)).play(task, "train", range(12))
    rows = [Row(episode.ids, episode.mask, episode.logprobs, 0.0, task.name) for episode in episodes]
    for index, row in enumerate(rows):
        with torch.no_grad():
            fresh = token_logprobs(model, pad_rows(rows, [index]))[0]
        assert torch.allclose(fresh, torch.tensor(row.behaviour), atol=1e-4)
        assert row.n_loss_tokens > 0


def test_greedy_play_takes_no_chance() -> None:
    model, tokenizer = tiny_model(), build_tokenizer()
    played = [
        Player(model, tokenizer, torch.Generator().manual_seed(seed)).play(LAKE, "heldout", range(4), is_greedy=True)
        for seed in (1, 2)
    ]
    assert [episode.ids for episode in played[0]] == [episode.ids for episode in played[1]]


def test_demonstrations_weigh_answers_and_later_observations() -> None:
    tokenizer = build_tokenizer()
    player = Player(tiny_model(), tokenizer, torch.Generator())
    source = Demonstrations(player, LAKE, Random(1), 0.5)
    demonstration = source.draw(UNSKILLED.lake, 1)[0]
    first = demonstration.ids.index(tokenizer.convert_tokens_to_ids("<|assistant|>")) + 1
    assert set(demonstration.weights[:first]) == {0.0}
    assert demonstration.weights[first : first + 2] == [1.0, 1.0]
    assert set(demonstration.weights[first:]) <= {0.5, 1.0}


def test_a_warm_start_below_its_threshold_fails_with_the_figures() -> None:
    tokenizer = build_tokenizer()
    settings = WarmStartSettings(max_skilled_updates=2, check_every=1, check_episodes=4)
    lines: list[str] = []
    with pytest.raises(WarmStartFailed, match=r"frozen_lake.*below 0.9"):
        warm_start(build_model(tokenizer, 0), tokenizer, 0, lines.append, settings)
    assert len(lines) == 2


def test_a_complete_directory_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / READY).write_text("{}")
    assert main(["--out", str(tmp_path)]) == 0
    assert "complete" in capsys.readouterr().err
