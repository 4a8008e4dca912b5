"""Checkpoints on disk: a folder per step, complete only once its marker is there.

    <dir>/step-00000010/model.safetensors, state.pt, COMPLETE

The marker is written after everything else has been synced to disk, so a folder without it, whatever it holds, is a
write that did not finish.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headrace.service.logging import get_logger
from trainer_svc.errors import CheckpointUnusable

MARKER = "COMPLETE"
_NAME = re.compile(r"step-(\d{8})")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What the marker says."""

    job_id: str
    step: int
    policy_version: int


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Everything that a step depends on: tensors by name, optimizer state, random state, counters."""

    info: CheckpointInfo
    tensors: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    rng: torch.Tensor
    n_updates: int


def save(folder: Path, state: TrainerState) -> Path:
    """Write a checkpoint; returns its folder. Raises CheckpointUnusable with the reason of the system."""
    target = folder / f"step-{state.info.step:08d}"
    try:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        save_file({name: tensor.contiguous() for name, tensor in state.tensors.items()}, target / "model.safetensors")
        torch.save({"optimizer": state.optimizer, "rng": state.rng, "n_updates": state.n_updates}, target / "state.pt")
        for file in target.iterdir():
            _sync(file)
        _sync(target)
        (target / MARKER).write_text(json.dumps(asdict(state.info)))
        _sync(target / MARKER)
        _sync(target)
        _sync(folder)
    except OSError as error:
        raise CheckpointUnusable(f"checkpoint {target} cannot be written: {error}") from error
    return target


def complete_steps(folder: Path) -> list[int]:
    """Steps with a complete checkpoint, ascending; incomplete folders are skipped with a warning."""
    steps: list[int] = []
    for entry in sorted(folder.glob("step-*")):
        name = _NAME.fullmatch(entry.name)
        if name is None:
            continue
        if (entry / MARKER).exists():
            steps.append(int(name[1]))
        else:
            log.warning("checkpoint_incomplete", path=str(entry))
    return steps


def load(folder: Path, *, at_or_before: int) -> TrainerState | None:
    """The newest complete checkpoint at or before a step, or None when there is none.

    One that does not read back is skipped with a warning, for an older one that does is worth more than an error.
    """
    for step in reversed(complete_steps(folder)):
        if step > at_or_before:
            continue
        target = folder / f"step-{step:08d}"
        try:
            return _read(target)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            log.warning("checkpoint_unreadable", path=str(target), reason=str(error))
    return None


def prune(folder: Path, keep_last: int) -> None:
    """Remove all but the newest ``keep_last`` complete checkpoints, and incomplete ones older than those."""
    steps = complete_steps(folder)
    oldest_kept = steps[-keep_last] if len(steps) >= keep_last else 0
    for entry in folder.glob("step-*"):
        name = _NAME.fullmatch(entry.name)
        if name is not None and int(name[1]) < oldest_kept:
            shutil.rmtree(entry, ignore_errors=True)


def _read(target: Path) -> TrainerState:
    info = CheckpointInfo(**json.loads((target / MARKER).read_text()))
    state = torch.load(target / "state.pt", weights_only=True)
    return TrainerState(
        info, load_file(target / "model.safetensors"), state["optimizer"], state["rng"], state["n_updates"]
    )


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
