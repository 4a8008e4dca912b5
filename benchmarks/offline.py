"""What a run should take at best, computed from the draws that its environments will make."""

from collections.abc import Sequence

from env_svc.environments.synthetic import Script, Timing, script_of
from headrace.core.seeds import derive


def scripts(timing: Timing, *, job_seed: int, task: str, groups: range, group_size: int) -> list[Script]:
    """Scripts of the job's groups (0, 1, … in order of admission), each with ``group_size`` siblings."""
    seeds = [derive("prompt", job_seed, task, cursor) for cursor in groups]
    return [script_of(timing, seed, place) for seed in seeds for place in range(group_size)]


def trajectory_s(batch: Sequence[Script]) -> float:
    """Seconds of environment time when every episode steps on its own: the slowest episode."""
    return max(script.environment_s for script in batch)


def lockstep_s(batch: Sequence[Script]) -> float:
    """Seconds of environment time when a cohort takes its turns together: the slowest of every turn."""
    n_turns = max(len(script.turns) for script in batch)
    slowest = (max(s.turns[turn].step_s for s in batch if len(s.turns) > turn) for turn in range(n_turns))
    return max(script.reset_s for script in batch) + sum(slowest)


def mean_step_s(batch: Sequence[Script]) -> float:
    """The realised mean of one step's latency."""
    steps = [turn.step_s for script in batch for turn in script.turns]
    return sum(steps) / len(steps)
