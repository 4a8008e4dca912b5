"""Episodes that step on their own against a batch that steps in lockstep, under noisy environments (RollArt, R2).

    python benchmarks/r2_interaction.py [--quick] [--json]

Environment latency is gaussian with a mean of 10 units and a deviation of 1 … 10 units; values below 0 are drawn again,
so that the realised mean grows with the deviation and is shown. Real services and real sleeps; the engine is scripted
and an answer is one token, so environments are all that takes time. `best` is the speed-up that the same draws allow.
Preset `sync_plus` against `sync`, one batch a job, repetitions interleaved; rollout is first issue to last finish.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import offline
from report import Report, arguments, median, say, show, sized, spread
from scripted_model import Timing as ModelTiming
from scripted_model import save
from stack import Stack, spec, synthetic

from env_svc.environments.synthetic import Timing

MEAN_UNITS = 10.0
TASK = "synthetic"
MODES = {"trajectory": "sync_plus", "lockstep": "sync"}


@dataclass(frozen=True, slots=True)
class Size:
    """A batch and how often it is run."""

    groups: int
    group_size: int
    n_turns: int
    sigmas: tuple[float, ...]
    unit_s: float
    repeats: int


FULL = Size(groups=16, group_size=8, n_turns=8, sigmas=(1, 4, 7, 10), unit_s=0.05, repeats=2)
QUICK = Size(groups=4, group_size=4, n_turns=3, sigmas=(10,), unit_s=0.05, repeats=1)


def config(size: Size, sigma: float) -> dict[str, Any]:
    """The environment's draws."""
    return {
        "unit_s": size.unit_s,
        "latency": {"kind": "gaussian", "mean": MEAN_UNITS, "sigma": sigma},
        "turns": {"kind": "constant", "value": size.n_turns},
        "reset": {"kind": "constant", "value": 0},
        "tokens": {"kind": "constant", "value": 1},
    }


def batch(size: Size, sigma: float, seed: int) -> list[offline.Script]:
    """Every episode of the run, as it will be."""
    timing = Timing(**config(size, sigma))
    return offline.scripts(timing, job_seed=seed, task=TASK, groups=range(size.groups), group_size=size.group_size)


def rollout_s(stack: Stack, model: Any, size: Size, sigma: float, mode: str, seed: int) -> float:
    """Seconds of one batch, from the first attempt issued to the last one finished."""
    name = f"r2 sigma {sigma:g} {mode} seed {seed}"
    job = spec(
        name,
        model,
        [synthetic(TASK, max_turns=size.n_turns, **config(size, sigma), run=name)],
        seed=seed,
        max_steps=1,
        batch={"groups": size.groups, "group_size": size.group_size},
        **{"async": {"preset": MODES[mode]}},
    )
    outcome = stack.run(job)
    trained = [attempt for attempt in stack.attempts(outcome.job["id"]) if attempt["purpose"] == "train"]
    begin = min(datetime.fromisoformat(attempt["issued_at"]) for attempt in trained)
    end = max(datetime.fromisoformat(attempt["finished_at"]) for attempt in trained)
    return (end - begin).total_seconds()


def measure(size: Size) -> list[dict[str, Any]]:
    """One row for each deviation."""
    seen: dict[tuple[float, str], list[float]] = {}
    with Stack() as stack:
        model = save(stack.root / "model", ModelTiming(t0_s=0.002))
        for repeat in range(size.repeats):
            for sigma in size.sigmas:
                for mode in MODES:
                    seconds = rollout_s(stack, model, size, sigma, mode, seed=repeat + 1)
                    seen.setdefault((sigma, mode), []).append(seconds)
                    say(f"sigma {sigma:g} {mode} repeat {repeat}: {seconds:.2f} s")
    return [row(size, sigma, seen[sigma, "trajectory"], seen[sigma, "lockstep"]) for sigma in size.sigmas]


def row(size: Size, sigma: float, trajectory: list[float], lockstep: list[float]) -> dict[str, Any]:
    """Medians over the repetitions; each repetition has draws of its own."""
    batches = [batch(size, sigma, repeat + 1) for repeat in range(size.repeats)]
    ratios = [slow / fast for slow, fast in zip(lockstep, trajectory, strict=True)]
    best = [offline.lockstep_s(b) / offline.trajectory_s(b) for b in batches]
    return {
        "sigma": sigma,
        "realised_mean": median([offline.mean_step_s(b) / size.unit_s for b in batches]),
        "lockstep_s": median(lockstep),
        "trajectory_s": median(trajectory),
        "speed_up": median(ratios),
        "spread": spread(ratios),
        "best": median(best),
        "trajectory_over_best": median(
            [took / offline.trajectory_s(b) for took, b in zip(trajectory, batches, strict=True)]
        ),
    }


def main() -> None:
    parser = arguments(__doc__)
    options = parser.parse_args()
    size = sized(QUICK if options.quick else FULL, options)
    rows = measure(size)
    report = Report(
        name="r2_interaction",
        claim="episodes that step on their own finish a batch sooner than one in lockstep, the more so the noisier",
        ratio=rows[-1]["speed_up"],
        against=f"the paper reports 1.23-2.27x over sigma 1-10; ratio is the speed-up at sigma {rows[-1]['sigma']:g}",
        rows=rows,
        notes=[f"{size.groups} groups of {size.group_size}, {size.n_turns} turns, unit {size.unit_s * 1000:g} ms"],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
