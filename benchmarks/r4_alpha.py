"""How much staleness is worth (RollArt, R4): alpha 0 to 6 on the demo job with slow environments.

    python benchmarks/r4_alpha.py --model .headrace/models/demo [--quick] [--json] [--alphas 0,1] [--seeds 3]

The demo job (FrozenLake and a calculator on the hf engine and the torch trainer, learning for real) with lognormal
waits before every step of its environments. At most 30 steps a run, seeds interleaved. Success is the mean reward of
the batches trained, over both tasks alike and the last three steps; a run that does not come to 0.75 is censored at
its end. Alpha 0 runs preset `sync_plus`, the others `bounded`: with alpha 0 nothing may overlap.
"""

import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from report import Report, arguments, median, say, show, spread
from stack import REPOSITORY, Outcome, Stack, StackOptions

GOAL = 0.75
WINDOW = 3
LATENCY = {"kind": "lognormal", "median": 0.03, "sigma": 1.2, "most": 1.5}
EXAMPLE = REPOSITORY / "examples" / "lake_and_tools.yaml"


@dataclass(slots=True)
class Seen:
    """What runs of one alpha showed; times to success in seconds, None where it was missed."""

    step_s: list[float] = field(default_factory=list)
    success_s: list[float | None] = field(default_factory=list)
    success_steps: list[int | None] = field(default_factory=list)
    best: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    evicted: int = 0


def job(model: Path, alpha: int, seed: int, steps: int) -> dict[str, Any]:
    """The demo job, its environments wrapped."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    name = f"r4 alpha {alpha} seed {seed}"
    for task in document["tasks"]:
        inner = {"inner": task["env"]["entry_point"], "config": task["env"].get("config", {})}
        task["env"]["entry_point"] = "env_svc.environments.synthetic:Delayed"
        task["env"]["config"] = {**inner, "run": f"{name} {task['name']}", "unit_s": 1.0, "latency": LATENCY}
    policy = {"preset": "bounded", "alpha": alpha} if alpha else {"preset": "sync_plus"}
    return {
        **document,
        "name": name,
        "seed": seed,
        "max_steps": steps,
        "model": {**document["model"], "path": str(model.resolve())},
        "async": policy,
        "checkpoint": {"every": 0},
        "eval": {"at_start": False, "at_end": False},
    }


def note(seen: Seen, outcome: Outcome) -> None:
    """Add a run."""
    seen.step_s += outcome.step_s()
    began = datetime.fromisoformat(outcome.steps[0]["sampled_at"]).timestamp()
    rewards = [success(step) for step in outcome.steps]
    averages = [sum(rewards[max(0, i - WINDOW + 1) : i + 1]) / min(WINDOW, i + 1) for i in range(len(rewards))]
    reached = next((i for i, value in enumerate(averages) if i + 1 >= WINDOW and value >= GOAL), None)
    times = [datetime.fromisoformat(step["committed_at"]).timestamp() - began for step in outcome.steps]
    seen.success_s.append(None if reached is None else times[reached])
    seen.success_steps.append(None if reached is None else reached + 1)
    seen.best.append(max(averages[WINDOW - 1 :], default=float("nan")))
    seen.end_s.append(times[-1])
    for step in outcome.steps:
        for name, count in step["metrics"].items():
            lag = name.removeprefix("staleness/s_train_")
            if lag != name and lag.isdigit():
                seen.lags[int(lag)] += int(count)
    exits = next(e["exits"] for e in outcome.ledger["equations"] if e["purpose"] == "train")
    seen.evicted += exits.get("evicted_stale", 0)


def success(step: dict[str, Any]) -> float:
    """Mean reward of the step's batch, every task counting alike."""
    rewards = [value for name, value in step["metrics"].items() if name.startswith("reward/")]
    return sum(rewards) / len(rewards)


def row(alpha: int, seen: Seen) -> dict[str, Any]:
    """Medians over seeds; the median of times to success counts a miss as later than every success."""
    reached = [value for value in seen.success_s if value is not None]
    censored = sorted(value if value is not None else float("inf") for value in seen.success_s)
    middle = censored[len(censored) // 2]
    total = seen.lags.total() or 1
    return {
        "alpha": alpha,
        "step_s": median(seen.step_s),
        "spread": spread(seen.step_s),
        "reached": f"{len(reached)}/{len(seen.success_s)}",
        "success_s": middle if middle != float("inf") else None,
        "success_spread": spread(reached),
        "success_steps": [step for step in seen.success_steps if step is not None],
        "best_success": median(seen.best),
        "end_s": median(seen.end_s),
        "s_train": " ".join(f"{lag}:{count / total:.0%}" for lag, count in sorted(seen.lags.items())),
        "evicted": seen.evicted,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="demo model directory; headrace model init-demo")
    parser.add_argument("--alphas", default="0,1,2,3,4,5,6")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    alphas = [0, 1] if options.quick else [int(word) for word in options.alphas.split(",")]
    seeds, steps = (1, 3) if options.quick else (options.seeds, options.steps)
    if not (options.model / "config.json").exists():
        sys.exit(f"--model {options.model} is no model directory; make one: headrace model init-demo {options.model}")
    seen = {alpha: Seen() for alpha in alphas}
    with Stack(StackOptions(engine="hf", trainer_backend="torch")) as stack:
        for seed in range(seeds):
            for alpha in alphas:
                outcome = stack.run(job(options.model, alpha, seed, steps), deadline_s=60 + 20 * steps)
                note(seen[alpha], outcome)
                step_s, best = median(outcome.step_s()), seen[alpha].best[-1]
                say(f"alpha {alpha} seed {seed}: {step_s:.2f} s a step, best {best:.2f}")
    rows = [row(alpha, seen[alpha]) for alpha in alphas]
    base = next((r["step_s"] for r in rows if r["alpha"] == 1), None)
    fastest = min(r["step_s"] for r in rows if r["alpha"] >= 1) if base else None
    report = Report(
        name="r4_alpha",
        claim="alpha 1 has most of what staleness can give, and more of it costs learning",
        ratio=base / fastest if base and fastest else None,
        against="ratio is the step time at alpha 1 over the shortest of any alpha; the paper: at most 1.22x",
        rows=rows,
        notes=[f"{seeds} seeds of at most {steps} steps; success {GOAL} over {WINDOW} steps"],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
