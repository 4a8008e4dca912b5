"""Checkpoints on disk: whole or not there."""

from pathlib import Path

import pytest
import torch

from trainer_svc import checkpoint
from trainer_svc.checkpoint import CheckpointInfo, TrainerState
from trainer_svc.errors import CheckpointUnusable


def state(step: int) -> TrainerState:
    tensors = {"w": torch.full((3,), float(step))}
    optimizer = {"state": {}, "param_groups": []}
    return TrainerState(CheckpointInfo("job", step, step + 1), tensors, optimizer, torch.get_rng_state(), step)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(4))
    loaded = checkpoint.load(tmp_path, at_or_before=9)
    assert loaded is not None
    assert (loaded.info, loaded.n_updates) == (CheckpointInfo("job", 4, 5), 4)
    assert torch.equal(loaded.tensors["w"], torch.full((3,), 4.0))
    assert torch.equal(loaded.rng, state(4).rng)


def test_the_newest_at_or_before_the_step_is_taken(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        checkpoint.save(tmp_path, state(step))
    found = checkpoint.load(tmp_path, at_or_before=5)
    assert found is not None
    assert found.info.step == 4
    assert checkpoint.load(tmp_path, at_or_before=1) is None
    assert checkpoint.load(tmp_path / "nowhere", at_or_before=5) is None


@pytest.mark.parametrize("lost", [checkpoint.MARKER, "state.pt", "model.safetensors"])
def test_a_damaged_checkpoint_gives_way_to_an_older_one(tmp_path: Path, lost: str) -> None:
    checkpoint.save(tmp_path, state(2))
    (checkpoint.save(tmp_path, state(4)) / lost).unlink()
    found = checkpoint.load(tmp_path, at_or_before=9)
    assert found is not None
    assert found.info.step == 2


def test_a_truncated_file_gives_way_to_an_older_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(2))
    newest = checkpoint.save(tmp_path, state(4))
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:20])
    found = checkpoint.load(tmp_path, at_or_before=9)
    assert found is not None
    assert found.info.step == 2


def test_pruning_keeps_the_newest_complete_ones(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        checkpoint.save(tmp_path, state(step))
    (tmp_path / "step-00000003").mkdir()
    (tmp_path / "step-00000007").mkdir()
    (tmp_path / "notes").mkdir()
    checkpoint.prune(tmp_path, keep_last=2)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "notes", "step-00000004", "step-00000006", "step-00000007",
    ]  # fmt: skip
    assert checkpoint.complete_steps(tmp_path) == [4, 6]


def test_saving_again_replaces(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, state(2))
    checkpoint.save(tmp_path, state(2))
    assert checkpoint.complete_steps(tmp_path) == [2]


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointUnusable, match="cannot be written"):
        checkpoint.save(tmp_path / "file", state(2))
