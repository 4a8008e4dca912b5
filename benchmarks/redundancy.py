"""Redundant rollouts: what starting more environments than needed saves, and whom it prefers.

    python benchmarks/redundancy.py [--quick] [--json]

Environments are slow (lognormal latencies) and fail; answers have heavy-tailed lengths, so that long ones finish late.
A group is complete with its first `group_size` scorable siblings; the rest leave as surplus. Preset `sync_plus`, the
same prompts at every redundancy, repetitions interleaved, the first step left out. Against redundancy 1.0 the table
shows the speed-up of a step's rollout and the shift of what was trained; the job's own report of it is in `censoring`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import Report, arguments, median, say, show, sized, spread
from scripted_model import Timing as ModelTiming
from scripted_model import save
from stack import Outcome, Stack, spec, synthetic

SKIP = 1


@dataclass(frozen=True, slots=True)
class Size:
    """A batch, its steps, and how often it is run."""

    groups: int
    group_size: int
    steps: int
    repeats: int
    levels: tuple[float, ...] = (1.0, 1.25, 1.5)


FULL = Size(groups=8, group_size=8, steps=5, repeats=2)
QUICK = Size(groups=4, group_size=4, steps=3, repeats=1, levels=(1.0, 1.5))
CONFIG: dict[str, Any] = {
    "unit_s": 1.0,
    "latency": {"kind": "lognormal", "median": 0.12, "sigma": 1.0, "most": 5.0},
    "turns": {"kind": "constant", "value": 3},
    "tokens": {"kind": "lognormal", "median": 20, "sigma": 0.8, "most": 200},
    "fail_step": 0.02,
    "noise": 0.05,
}


@dataclass(slots=True)
class Seen:
    """What runs of one redundancy showed."""

    rollout_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    trained: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    generated: int = 0
    censoring: Any = None


def job(size: Size, model: Path, level: float, repeat: int) -> dict[str, Any]:
    """The job of one run."""
    label = f"redundancy {level} {repeat}"
    return spec(
        label,
        model,
        [synthetic(**CONFIG, run=label)],
        seed=repeat + 1,
        max_steps=size.steps,
        batch={"groups": size.groups, "group_size": size.group_size, "redundancy": level},
        **{"async": {"preset": "sync_plus"}},
    )


def note(seen: Seen, outcome: Outcome, attempts: Sequence[dict[str, Any]]) -> None:
    """Add a run."""
    seen.rollout_s += outcome.seconds("buffer_wait", skip=SKIP)
    seen.step_s += outcome.step_s(skip=SKIP)
    seen.trained += [a for a in attempts if a["state"] == "trained"]
    seen.killed += [a for a in attempts if a["state"] == "surplus"]
    seen.generated += sum(a["n_generated_tokens"] for a in attempts)
    seen.censoring = outcome.job["progress"].get("censoring")


def measure(size: Size) -> dict[float, Seen]:
    """What was seen by redundancy."""
    seen = {level: Seen() for level in size.levels}
    with Stack() as stack:
        model = save(stack.root / "model", ModelTiming(t0_s=0.006, per_running_s=0.0001, train_s=0.2))
        for repeat in range(size.repeats):
            for level in size.levels:
                outcome = stack.run(job(size, model, level, repeat))
                note(seen[level], outcome, stack.attempts(outcome.job["id"]))
                say(f"redundancy {level} repeat {repeat}: {median(outcome.step_s(skip=SKIP)):.2f} s a step")
    return seen


def row(level: float, seen: Seen, control: Seen) -> dict[str, Any]:
    """Means over trained attempts, and their difference from the control's."""
    tokens, base_tokens = _mean(seen.trained, "n_generated_tokens"), _mean(control.trained, "n_generated_tokens")
    reward, base_reward = _mean(seen.trained, "reward"), _mean(control.trained, "reward")
    return {
        "redundancy": level,
        "rollout_s": median(seen.rollout_s),
        "spread": spread(seen.rollout_s),
        "speed_up": median(control.rollout_s) / median(seen.rollout_s),
        "step_speed_up": median(control.step_s) / median(seen.step_s),
        "trained": len(seen.trained),
        "killed": len(seen.killed),
        "tokens_generated_per_trained": seen.generated / max(1, sum(a["n_generated_tokens"] for a in seen.trained)),
        "trained_tokens": tokens,
        "tokens_shift": tokens / base_tokens - 1.0,
        "trained_reward": reward,
        "reward_shift": reward - base_reward,
        "censoring": seen.censoring,
    }


def _mean(attempts: Sequence[dict[str, Any]], name: str) -> float:
    values = [float(attempt[name]) for attempt in attempts if attempt[name] is not None]
    return sum(values) / len(values) if values else float("nan")


def main() -> None:
    options = arguments(__doc__).parse_args()
    size = sized(QUICK if options.quick else FULL, options)
    seen = measure(size)
    rows = [row(level, seen[level], seen[size.levels[0]]) for level in size.levels]
    report = Report(
        name="redundancy",
        claim="starting more environments than needed shortens a rollout, and prefers short episodes",
        ratio=rows[-1]["speed_up"],
        against=f"the paper: up to 1.62x; ratio is the rollout's speed-up at redundancy {rows[-1]['redundancy']}",
        rows=rows,
        notes=[f"{size.groups} groups of {size.group_size}, 3 turns, 2 % of steps fail; bias by stratum in --json"],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
