"""What a step of training says of itself; no torch here."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class StepResult:
    """Numbers of one step; ``skip_reason`` is set when no update was made and the weights are bit-identical."""

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    skip_reason: str = ""
    n_updates: int = 0
