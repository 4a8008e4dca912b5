"""All presets on one long-tailed workload: step time and trained tokens per second, as ratios to `sync`.

    python benchmarks/presets.py [--quick] [--json] [--only sync,bounded]

Real services around the scripted engine and a scripted trainer. Latencies of environments are lognormal, answers have
heavy-tailed lengths, and the settings give `sync` the step shares of the paper: generation 54 %, training 23 %,
environment start 15 %. All presets see the same prompts and the same draws. The first steps, which fill the pipeline,
are left out. `bounded get_batch` is RollArt's own order (the batch is taken before workers load, so its alpha is one
less than ours: 2 here is what its figures at alpha 1 compare with). `independent` has no bound on lag; its work
is bounded instead, to one batch for each of the two workers under one version, and two running or ready; with repack.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import offline
from report import Report, arguments, median, say, show, sized, spread
from scripted_model import Timing as ModelTiming
from scripted_model import save
from stack import Outcome, Stack, spec, synthetic

from env_svc.environments.synthetic import Timing

TASK = "synthetic"
SKIP = 2
PRESETS: dict[str, dict[str, Any]] = {
    "sync": {"preset": "sync"},
    "sync_plus": {"preset": "sync_plus"},
    "one_off": {"preset": "one_off"},
    "stream": {"preset": "stream"},
    "partial": {"preset": "partial"},
    "bounded": {"preset": "bounded", "alpha": 1},
    "bounded get_batch": {"preset": "bounded", "load_at": "get_batch", "alpha": 2},
    "independent": {"preset": "independent", "repack": True, "local_batch": 32},
}


@dataclass(frozen=True, slots=True)
class Size:
    """A batch, its steps, and how often each preset runs."""

    groups: int
    group_size: int
    n_turns: int
    steps: int
    repeats: int


FULL = Size(groups=8, group_size=4, n_turns=4, steps=10, repeats=2)
QUICK = Size(groups=4, group_size=2, n_turns=2, steps=4, repeats=1)
QUICK_PRESETS = ("sync", "sync_plus", "bounded")
MODEL = ModelTiming(t0_s=0.004, per_running_s=0.00015, train_s=1.1)
UPDATES_PER_STEP = 2


def config(size: Size) -> dict[str, Any]:
    """The workload's draws, in seconds."""
    return {
        "unit_s": 1.0,
        "latency": {"kind": "lognormal", "median": 0.015, "sigma": 0.9, "most": 1.0},
        "reset": {"kind": "lognormal", "median": 0.26, "sigma": 0.6, "most": 2.0},
        "turns": {"kind": "constant", "value": size.n_turns},
        "tokens": {"kind": "lognormal", "median": 22, "sigma": 0.85, "most": 260},
    }


def job(size: Size, model: Path, name: str, preset: dict[str, Any], repeat: int) -> dict[str, Any]:
    """The job of one run."""
    label = f"presets {name} {repeat}"
    return spec(
        label,
        model,
        [synthetic(TASK, max_turns=size.n_turns, **config(size), run=label)],
        seed=repeat + 1,
        max_steps=size.steps,
        batch={"groups": size.groups, "group_size": size.group_size},
        algorithm={"updates_per_step": UPDATES_PER_STEP},
        **{"async": preset},
    )


def measure(size: Size, names: list[str]) -> dict[str, list[Outcome]]:
    """Runs by preset, repetitions interleaved."""
    seen: dict[str, list[Outcome]] = {name: [] for name in names}
    with Stack() as stack:
        model = save(stack.root / "model", MODEL)
        for repeat in range(size.repeats):
            for name in names:
                outcome = stack.run(job(size, model, name, PRESETS[name], repeat))
                seen[name].append(outcome)
                say(f"{name} repeat {repeat}: {median(outcome.step_s(skip=SKIP)):.2f} s a step")
    return seen


def figures(name: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """Over all steps of all runs but the first ones; a step's time is the mean, for batches may come in bursts."""
    steps = [step for outcome in outcomes for step in outcome.steps[SKIP:]]
    step_s = [float(step["seconds"]["step"]) for step in steps]
    exits: Counter[str] = Counter()
    for outcome in outcomes:
        exits.update(next(e["exits"] for e in outcome.ledger["equations"] if e["purpose"] == "train"))
    row: dict[str, Any] = {
        "preset": name,
        "step_s": mean(step_s),
        "median_s": median(step_s),
        "spread": spread(step_s),
        "tokens_per_s": sum(step["n_tokens"] for step in steps) / sum(step_s),
    }
    for part in ("buffer_wait", "load", "exposed_pull", "train_wall", "overhead"):
        row[part] = mean([float(step["seconds"].get(part, 0.0)) for step in steps])
    row["s_train_mean"] = sum(s["metrics"].get("staleness/s_train_mean", 0.0) for s in steps) / len(steps)
    row["lag_max"] = max(outcome.job["result"]["max_trained_lag"] for outcome in outcomes)
    lost = {reason: count for reason, count in exits.items() if count}
    return {**row, "lost": sum(lost.values()), "lost_by_reason": lost, "limit": limit_of(row)}


def limit_of(row: dict[str, Any]) -> str:
    """The largest part of the step, in words; `swap` has the wait for running work where that is finished first."""
    parts = {
        "rollouts": row["buffer_wait"],
        "trainer": row["train_wall"],
        "swap": row["load"] + row["exposed_pull"],
        "overhead": row["overhead"],
    }
    largest = max(parts, key=lambda name: parts[name])
    return f"{largest} {parts[largest] / row['step_s']:.0%}"


def sync_shares(size: Size) -> str:
    """What the draws give a synchronous step, apart from every overhead."""
    timing = Timing(**config(size))
    shares = []
    for step in range(SKIP, size.steps):
        groups = range(step * size.groups, (step + 1) * size.groups)
        batch = offline.scripts(timing, job_seed=1, task=TASK, groups=groups, group_size=size.group_size)
        lanes = len(batch) / 2  # two workers
        per_token = MODEL.t0_s + MODEL.per_running_s * lanes / 3  # most lanes are done before the longest is
        longest = [max(script.turns[turn].n_tokens for script in batch) for turn in range(size.n_turns)]
        reset_s = max(script.reset_s for script in batch)
        parts = [sum(longest) * per_token, MODEL.train_s, reset_s, offline.lockstep_s(batch) - reset_s]
        shares.append([part / sum(parts) for part in parts])
    generation, train, start, steps = (median(list(column)) for column in zip(*shares, strict=True))
    return (
        f"sync by the draws: generation {generation:.0%}, training {train:.0%}, environment start {start:.0%}, "
        f"environment steps {steps:.0%}"
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="comma-separated presets instead of all")
    options = parser.parse_args()
    size = sized(QUICK if options.quick else FULL, options)
    chosen = [name for name in options.only.split(",") if name]
    names = chosen or (list(QUICK_PRESETS) if options.quick else list(PRESETS))
    rows = [figures(name, outcomes) for name, outcomes in measure(size, names).items()]
    by_name = {row["preset"]: row for row in rows}
    if base := by_name.get("sync"):
        for row in rows:
            row["step_ratio"] = base["step_s"] / row["step_s"]
            row["tokens_ratio"] = row["tokens_per_s"] / base["tokens_per_s"]
    has_ratio = {"sync_plus", "bounded"} <= by_name.keys()
    ratio = by_name["sync_plus"]["step_s"] / by_name["bounded"]["step_s"] if has_ratio else None
    beside = ""
    if "sync_plus" in by_name and "bounded get_batch" in by_name:
        in_order = by_name["sync_plus"]["step_s"] / by_name["bounded get_batch"]["step_s"]
        beside = f"in RollArt's own order (get_batch, alpha 2): {in_order:.3g}"
    report = Report(
        name="presets",
        claim="what each preset's freedom is worth on one long-tailed workload, as ratios to sync",
        ratio=ratio,
        against=f"step time of sync_plus over bounded at alpha 1; {beside}; RollArt reports 2.05x in its own order",
        rows=rows,
        notes=[
            sync_shares(size),
            f"{size.groups} groups of {size.group_size}, {size.steps} steps, first {SKIP} left out",
        ],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
