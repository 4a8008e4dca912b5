"""The two demo tasks as plug-ins, and the demonstrators of each phase."""

from dataclasses import dataclass
from typing import Any

from trainer_svc.demo.demonstrators import Demonstrator, Navigator, Reckoner
from trainer_svc.demo.episodes import TaskSpec, load_plugin

_GRADER = "reward_svc.graders.calculator:grade"


def _calculator_score(answer: str, info: dict[str, Any]) -> float:
    return float(load_plugin(_GRADER)(completion=answer, answer=info["answer"]))


LAKE = TaskSpec("frozen_lake", "env_svc.environments.frozen_lake:FrozenLake", {"on_invalid": "end"}, 3)
CALCULATOR = TaskSpec("calculator", "env_svc.environments.calculator:Calculator", {}, 12, _calculator_score)


@dataclass(frozen=True, slots=True)
class Phase:
    """What a phase of the warm start shows: (task, demonstrator, demonstrations per update)."""

    lake: Demonstrator
    calculator: Demonstrator
    n_lake: int = 32
    n_calculator: int = 28


SKILLED = Phase(
    Navigator(sees_holes=True, random_share=0.2, imitates_slips=False), Reckoner(guess_share=0.2, stop_early_share=0.0)
)
UNSKILLED = Phase(
    Navigator(sees_holes=False, random_share=0.25, imitates_slips=True),
    Reckoner(guess_share=0.65, stop_early_share=0.3),
)
"""Three quarters of the unskilled calculator demonstrations end early: 0.65 + 0.35 x 0.3."""
