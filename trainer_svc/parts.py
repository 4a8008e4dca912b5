"""A step that comes in parts, as its groups complete: what was made of it, and one result in the end."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc.errors import StepConflict
from trainer_svc.results import StepResult

_SUMMED = (
    "n_rows",
    "n_loss_tokens",
    "n_active_rows",
    "n_zero_variance_groups",
    "n_unscorable",
    "n_empty",
    "n_truncated",
)
_GAP = ("logprob_gap/mean", "logprob_gap/max", "logprob_gap/n_tokens", "logprob_gap/is_probe")


@dataclass(frozen=True, slots=True)
class PartResult:
    """One part, identified by its place and by the digest of the batch up to it."""

    part: int
    batch_digest: str
    result: StepResult
    seconds: dict[str, float]


def has_part(made: Sequence[PartResult], command: pb.TrainStep) -> bool:
    """Whether the part was made already; it is the next one otherwise.

    Raises:
        StepConflict: it was made of another batch, or one before it is missing.
    """
    if command.part < len(made):
        if made[command.part].batch_digest != command.batch_digest:
            raise StepConflict(f"part {command.part} of step {command.step} was made from another batch")
        return True
    if command.part > len(made):
        raise StepConflict(f"part {command.part} of step {command.step} came before part {len(made)}")
    return False


def merged(made: Sequence[PartResult]) -> tuple[StepResult, dict[str, float]]:
    """One result and one set of seconds: counts and seconds add up, rates are means weighted by loss tokens.

    The engine-trainer gap is the first part's, which alone is measured under the parameters of version n.
    """
    if len(made) == 1:
        return made[0].result, made[0].seconds
    whole = StepResult()
    for part in made:
        share = part.result.metrics.get("n_loss_tokens", 0.0)
        total = sum(other.result.metrics.get("n_loss_tokens", 0.0) for other in made)
        for name, value in part.result.metrics.items():
            is_summed = name in _SUMMED or name.endswith("/n_tokens")
            weight = 1.0 if is_summed else share / total if total else 1.0 / len(made)
            whole.metrics[name] = whole.metrics.get(name, 0.0) + weight * value
        whole.n_updates += part.result.n_updates
    whole.metrics |= {name: made[0].result.metrics[name] for name in _GAP if name in made[0].result.metrics}
    if all(part.result.skip_reason for part in made):
        whole.skip_reason = made[0].result.skip_reason
    seconds: dict[str, float] = {}
    for part in made:
        for name, value in part.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
    return whole, seconds
