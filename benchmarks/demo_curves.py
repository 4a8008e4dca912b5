"""The demo job three ways: `bounded` and `sync` through the services, and as a plain loop in one process.

    python benchmarks/demo_curves.py --model .headrace/models/demo --seeds 0,1,2 --json > curves.json

Success is the mean reward of the batches that a step trained (training maps and operands, temperature 1), averaged over
five steps. Wall time of the services runs from the first admission to the last commit; of the loop, rollouts and
updates without its evaluations. Runs are interleaved: each seed runs all three before the next seed.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import report, svg
from benchmarks.stack import Stack, StackOptions
from headrace.client.jobspec import read_document

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "lake_and_tools.yaml"
PARTS = ("exposed_pull", "load", "buffer_wait", "train_wall", "overhead")
BUSY = ("busy/generation", "busy/environment", "busy/reward", "old_logprobs", "update", "fetch", "push", "kv_rebuild")
PRESETS = {"bounded": {"preset": "bounded", "alpha": 1}, "sync": {"preset": "sync", "alpha": 0}}
GOALS = {"frozen_lake": 0.75, "calculator": 0.8}
WINDOW = 5

Point = dict[str, float]


def through_services(stack: Stack, model: Path, preset: str, seed: int, steps: int) -> dict[str, Any]:
    """One job; its points are one per step."""
    document = dict(read_document(EXAMPLE))
    document |= {"name": f"{preset} {seed}", "seed": seed, "max_steps": steps, "async": PRESETS[preset]}
    document["model"] = {**document["model"], "path": str(model.absolute())}
    document["eval"] = {"at_start": False, "at_end": False}
    before = cpu_s(stack)
    outcome = stack.run(document, deadline_s=900)
    spent = {name: (seconds - before.get(name, 0.0)) / steps for name, seconds in cpu_s(stack).items()}
    began = _seconds(outcome.steps[0]["committed_at"]) - outcome.steps[0]["seconds"]["step"]
    points: list[Point] = []
    n_tokens = 0
    for step in outcome.steps:
        n_tokens += step["n_tokens"]
        rewards = {name: value for name, value in step["metrics"].items() if name.startswith("reward/")}
        points.append({"wall_s": _seconds(step["committed_at"]) - began, "trained_tokens": n_tokens, **rewards})
    seconds = {part: median(outcome.seconds(part)) for part in (*PARTS, *BUSY, "step")}
    return {"how": preset, "seed": seed, "points": points, "seconds": seconds, "core_s": spent}


def cpu_s(stack: Stack) -> dict[str, float]:
    """Processor seconds of each service so far, its children included; workers of a kind together."""
    ticks = os.sysconf("SC_CLK_TCK")
    spent: dict[str, float] = {}
    for name, pid in stack.pids().items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        kind = name.rpartition("-")[0] or name
        spent[kind] = spent.get(kind, 0.0) + sum(int(fields[index]) for index in (11, 12, 13, 14)) / ticks
    return spent


def in_process(model: Path, seed: int, steps: int) -> dict[str, Any]:
    """The loop in a process of its own, with one torch thread as every service has."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "loop.json"
        script = Path(__file__).with_name("inprocess_loop.py")
        argv = [sys.executable, str(script), "--model", str(model), "--seeds", str(seed), "--steps", str(steps)]
        subprocess.run([*argv, "--lag", "1", "--eval-episodes", "1", "--json", str(out)], check=True, stdout=sys.stderr)
        run = json.loads(out.read_text())["runs"][0]
    points = [{"wall_s": step["train_s"], **step} for step in run["steps"]]
    return {"how": "in process", "seed": seed, "points": points, "seconds": {}, "core_s": {}}


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def reached(points: Sequence[Point]) -> Point | None:
    """The first point at which the averages of both tasks are at their goals."""
    for index in range(WINDOW - 1, len(points)):
        window = points[index - WINDOW + 1 : index + 1]
        if all(sum(p[f"reward/{task}"] for p in window) / WINDOW >= goal for task, goal in GOALS.items()):
            return points[index]
    return None


def summarise(runs: Sequence[dict[str, Any]]) -> report.Report:
    rows = []
    for how in dict.fromkeys(run["how"] for run in runs):
        mine = [run for run in runs if run["how"] == how]
        hits = [reached(run["points"]) for run in mine]
        rows.append(
            {
                "how": how,
                "seeds": len(mine),
                "s_per_step": median(run["points"][-1]["wall_s"] / len(run["points"]) for run in mine),
                "wall_s": median(run["points"][-1]["wall_s"] for run in mine),
                "goal_wall_s": median([hit["wall_s"] for hit in hits if hit] or [float("nan")]),
                "goal_tokens": median([hit["trained_tokens"] for hit in hits if hit] or [float("nan")]),
                "goal_missed": sum(hit is None for hit in hits),
                "each_goal_wall_s": [hit and round(hit["wall_s"], 1) for hit in hits],
                "parts_s": mine[len(mine) // 2]["seconds"],
                "core_s_per_step": mine[len(mine) // 2]["core_s"],
                "curves": [thin(run["points"]) for run in mine],
            }
        )
    by_name = {row["how"]: row for row in rows}
    ratio = by_name["bounded"]["goal_wall_s"] / by_name["in process"]["goal_wall_s"]
    return report.Report(
        "demo_curves",
        "the demo job to the same success (FrozenLake 0.75, calculator 0.8): services against one process",
        ratio,
        "wall time of `bounded` over that of the plain loop; below 1 the services are faster",
        rows,
    )


def drawing(runs: Sequence[dict[str, Any]]) -> str:
    """FrozenLake's success of `bounded` and `sync`, every seed, against seconds and against tokens."""
    names = [name for name in PRESETS if any(run["how"] == name for run in runs)]
    curves = {name: [thin(run["points"]) for run in runs if run["how"] == name] for name in names}
    by_wall = {name: [[(p[0], p[2]) for p in run] for run in mine] for name, mine in curves.items()}
    by_tokens = {name: [[(p[1] / 1000, p[2]) for p in run] for run in mine] for name, mine in curves.items()}
    return svg.document(
        [
            svg.panel("FrozenLake success against wall time", "s", by_wall),
            svg.panel("… against trained tokens", "thousand tokens", by_tokens, x0=svg.WIDTH),
        ]
    )


def thin(points: Sequence[Point]) -> list[list[float]]:
    """[wall_s, trained_tokens, frozen_lake, calculator] averaged over the window, every other step."""
    curve = []
    for index in range(WINDOW - 1, len(points), 2):
        window = points[index - WINDOW + 1 : index + 1]
        means = [sum(p[f"reward/{task}"] for p in window) / WINDOW for task in GOALS]
        curve.append(
            [round(points[index]["wall_s"], 2), points[index]["trained_tokens"], *[round(m, 3) for m in means]]
        )
    return curve


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="the demo model's directory")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--svg", type=Path, help="also draw success against wall time and trained tokens")
    options = parser.parse_args()
    steps = 8 if options.quick else options.steps
    seeds = [int(seed) for seed in options.seeds.split(",")][: 1 if options.quick else None]
    runs = []
    for seed in seeds:
        # The services stand still, and take no core, while the loop runs.
        with Stack(StackOptions(engine="hf", trainer_backend="torch")) as stack:
            for preset in PRESETS:
                report.say(f"seed {seed}: {preset}")
                runs.append(through_services(stack, options.model, preset, seed, steps))
        report.say(f"seed {seed}: in process")
        runs.append(in_process(options.model, seed, steps))
    if options.svg:
        options.svg.write_text(drawing(runs))
    report.show(summarise(runs), as_json=options.json)


if __name__ == "__main__":
    main()
