"""The state of one job's training and what is done to it: blocking, torch inside, no I/O but the model directory.

One thread calls it. Everything that a step depends on lives here, so a checkpoint is this object's `state()`.
"""

import copy
import dataclasses
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from headrace.core.seeds import derive
from trainer_svc import gap, model_dir
from trainer_svc.batch import Row
from trainer_svc.checkpoint import CheckpointInfo, TrainerState
from trainer_svc.errors import CheckpointUnusable, Diverged
from trainer_svc.plan import TrainingPlan
from trainer_svc.results import StepResult
from trainer_svc.step import Progress, StepHooks, train_step


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters as numpy views for publication; bfloat16 as its bits, named in ``dtypes``."""

    tensors: dict[str, "np.ndarray[Any, Any]"]
    dtypes: dict[str, str]
    aliases: dict[str, str]


class Training:
    """Model, optimizer and counters of one job."""

    def __init__(self, plan: TrainingPlan, job_id: str, device: str) -> None:
        self.plan, self.job_id = plan, job_id
        self.facts = model_dir.inspect(plan.model_path)
        self.files = model_dir.small_files(plan.model_path)
        self.model: PreTrainedModel = model_dir.load(plan.model_path, plan.dtype, device)
        self.reference = copy.deepcopy(self.model) if plan.step.kl_coefficient else None
        optimizer = plan.spec.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=optimizer.lr,
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
        )
        self.step = 0
        self.policy_version = 0
        self.n_updates = 0
        self._old: PreTrainedModel | None = None
        torch.manual_seed(derive("trainer", plan.seed))

    @property
    def n_parameters(self) -> int:
        """Distinct parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def max_len(self) -> int:
        """Context limit: the job's, or the model's where that is lower."""
        return min(self.plan.max_len, self.facts.max_len or self.plan.max_len)

    def train(self, rows: Sequence[Row], groups: Sequence[Sequence[int]], progress: Progress) -> StepResult:
        """One step from the rows; the counters move even when it is skipped.

        Raises:
            Diverged: a gradient was not finite; parameters are those of the last good update.
        """
        hooks = StepHooks(progress, self._rate, self.reference)
        try:
            result = train_step(self.model, self.optimizer, rows, groups, self.plan.step, hooks)
        except FloatingPointError as error:
            raise Diverged(str(error)) from error
        self.n_updates += result.n_updates
        self.step += 1
        return result

    def train_part(
        self, rows: Sequence[Row], groups: Sequence[Sequence[int]], progress: Progress, *, part: int, n_parts: int
    ) -> StepResult:
        """One part of a step: one update, against the old logprobs of version n. The step ends with its last part.

        Raises:
            Diverged: as `train`.
        """
        if part == 0:
            self._old = copy.deepcopy(self.model)
        settings = dataclasses.replace(self.plan.step, updates_per_step=1)
        hooks = StepHooks(progress, self._rate, self.reference, self._old)
        try:
            result = train_step(self.model, self.optimizer, rows, groups, settings, hooks)
        except FloatingPointError as error:
            raise Diverged(str(error)) from error
        self.n_updates += result.n_updates
        if part == n_parts - 1:
            self._old = None
            self.step += 1
        return result

    def _rate(self, n_made: int) -> float:
        """Learning rate of the update after ``n_made`` more, with linear warm-up over the first updates of the job."""
        optimizer = self.plan.spec.optimizer
        return optimizer.lr * min(1.0, (self.n_updates + n_made + 1) / max(1, optimizer.warmup_steps))

    def logprob_gap(self, rows: Sequence[Row], probe: Sequence[Row]) -> dict[str, float]:
        """Engine against trainer over tokens of the version that the parameters are now, or over the probe."""
        own = gap.of_version(rows, self.policy_version)
        is_probe = sum(row.n_loss_tokens for row in own) < gap.MIN_TOKENS and bool(probe)
        budget = self.plan.step.max_tokens_per_microbatch
        return gap.measure(self.model, probe if is_probe else own, budget) | {"logprob_gap/is_probe": float(is_probe)}

    @torch.no_grad()
    def parameters(self) -> Parameters:
        """The state dict for publication; a name tied to an earlier one becomes an alias."""
        tensors: dict[str, np.ndarray[Any, Any]] = {}
        dtypes: dict[str, str] = {}
        aliases: dict[str, str] = {}
        first_of: dict[int, str] = {}
        for name, tensor in self.model.state_dict().items():
            held = tensor.detach()
            if held.data_ptr() in first_of and held.numel():
                aliases[name] = first_of[held.data_ptr()]
                continue
            first_of[held.data_ptr()] = name
            on_host = held.cpu().contiguous()
            if on_host.dtype == torch.bfloat16:
                dtypes[name] = "bfloat16"
                on_host = on_host.view(torch.uint16)
            tensors[name] = on_host.numpy()
        return Parameters(tensors, dtypes, aliases)

    def state(self) -> TrainerState:
        """What a checkpoint keeps."""
        aliases = self.parameters().aliases
        tensors = {name: tensor for name, tensor in self.model.state_dict().items() if name not in aliases}
        info = CheckpointInfo(self.job_id, self.step, self.policy_version)
        return TrainerState(info, tensors, self.optimizer.state_dict(), torch.get_rng_state(), self.n_updates)

    def restore(self, state: TrainerState) -> None:
        """Take over a checkpoint. Raises CheckpointUnusable when it is of another job or model."""
        if state.info.job_id != self.job_id:
            raise CheckpointUnusable(f"the checkpoint is of job {state.info.job_id}, not {self.job_id}")
        try:
            unexpected = self.model.load_state_dict(state.tensors, strict=False).unexpected_keys
            self.optimizer.load_state_dict(state.optimizer)
        except (RuntimeError, ValueError) as error:
            raise CheckpointUnusable(f"the checkpoint does not fit the model: {error}") from error
        if unexpected:
            raise CheckpointUnusable(f"the checkpoint has tensors that the model lacks: {', '.join(unexpected)}")
        self.model.tie_weights()
        torch.set_rng_state(state.rng)
        self.step, self.policy_version = state.info.step, state.info.policy_version
        self.n_updates = state.n_updates

    def export(self, path: Path) -> None:
        """Write a Hugging Face directory: parameters, config, and the tokenizer files as they came."""
        partial = path.with_name(f"{path.name}.partial-{time.time_ns()}")
        try:
            partial.mkdir(parents=True)
            self.model.save_pretrained(partial)
            for name, data in self.files.items():
                if not (partial / name).exists():
                    (partial / name).write_bytes(data)
            shutil.rmtree(path, ignore_errors=True)
            partial.rename(path)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointUnusable(f"the model cannot be exported to {path}: {error}") from error
