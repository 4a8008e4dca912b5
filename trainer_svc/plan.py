"""A job's spec as the trainer reads it."""

from dataclasses import dataclass
from pathlib import Path

from headrace.client.jobspec import JobSpec, parse_json
from headrace.core.advantages import Estimator, dr_grpo, grpo
from trainer_svc.errors import SpecUnusable
from trainer_svc.step import StepSettings


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """What training a job needs of its spec; paths are resolved."""

    model_path: str
    dtype: str
    max_len: int
    seed: int
    spec: JobSpec
    step: StepSettings
    estimate: Estimator
    checkpoint_dir: Path

    @property
    def bucket_bytes(self) -> int:
        """Size of a weight bucket."""
        return int(self.spec.weights.bucket_mb * (1 << 20))


def read_plan(spec_json: str, job_id: str, data_dir: Path) -> TrainingPlan:
    """Raises SpecUnusable."""
    try:
        spec = parse_json(spec_json).resolve()
    except ValueError as error:
        raise SpecUnusable(f"spec_json does not parse: {error}") from error
    path = spec.checkpoint.path
    if path is not None and "://" in path:
        raise SpecUnusable(f"checkpoint.path {path!r} is a URL; this trainer writes to directories")
    return TrainingPlan(
        model_path=spec.model.path,
        dtype=spec.model.dtype,
        max_len=spec.model.max_len,
        seed=spec.seed,
        spec=spec,
        step=_step_settings(spec),
        estimate=grpo if spec.algorithm.advantage.normalize == "std" else dr_grpo,
        checkpoint_dir=Path(path) / job_id if path else data_dir / job_id / "checkpoints",
    )


def _step_settings(spec: JobSpec) -> StepSettings:
    algorithm = spec.algorithm
    cap = algorithm.correction.cap or 1.0
    return StepSettings(
        clip_low=algorithm.clip.low,
        clip_high=algorithm.clip.high,
        dual_clip=algorithm.dual_clip,
        correction=algorithm.correction.type,
        correction_cap=cap,
        correction_floor=1 / cap,
        loss_reduction=algorithm.loss_reduction,
        max_tokens=spec.model.max_len,
        task_balance=algorithm.task_balance,
        updates_per_step=algorithm.updates_per_step,
        kl_coefficient=algorithm.kl.coef,
        kl_estimator=algorithm.kl.estimator or "k3",
        max_tokens_per_microbatch=algorithm.max_tokens_per_microbatch,
        grad_clip=spec.optimizer.grad_clip or float("inf"),
    )
