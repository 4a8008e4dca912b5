"""The demo job as a plain loop in one process: same model, tasks, batch and step code, no services.

    python benchmarks/inprocess_loop.py --model .headrace/models/demo --seeds 0,1,2 --steps 60 --lag 1 --json out.json

Rollouts of a step use the weights of ``lag`` steps before it. Held-out success, sampled and greedy, is measured at the
start, every ``--eval-every`` steps and at the end; evaluation is outside ``train_s``.
"""

import argparse
import copy
import json
import platform
import sys
import time
from collections import deque
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.core.advantages import estimator
from headrace.core.seeds import derive
from trainer_svc.batch import Row
from trainer_svc.demo.episodes import Episode, Player, TaskSpec
from trainer_svc.demo.tasks import CALCULATOR, LAKE
from trainer_svc.step import StepSettings, train_step

TASKS = {task.name: task for task in (LAKE, CALCULATOR)}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model directory; {seed} is replaced by the run's seed")
    parser.add_argument("--seeds", default="0", help="comma-separated run seeds")
    parser.add_argument("--tasks", default="frozen_lake,calculator")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lag", type=int, default=1)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--warm-up", type=int, default=5, help="steps over which the learning rate rises")
    parser.add_argument("--groups", type=int, default=12, help="groups per task and step")
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--updates", type=int, default=2, help="optimizer updates per step")
    parser.add_argument("--task-balance", choices=("none", "per_task"), default="per_task")
    parser.add_argument("--correction", choices=("none", "tis", "icepop"), default="tis")
    parser.add_argument("--advantage", default="grpo")
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--eval-episodes", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the result document here")
    return parser.parse_args(argv)


class Loop:
    """One seed's run."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        path = options.model.format(seed=seed)
        self.options, self.seed = options, seed
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0
        )
        self.past = deque([copy.deepcopy(self.model)], maxlen=options.lag + 1)
        self.generator = torch.Generator().manual_seed(derive("rollout", seed))
        self.settings = StepSettings(
            correction=options.correction, updates_per_step=options.updates, task_balance=options.task_balance
        )
        self.tasks = [TASKS[name] for name in options.tasks.split(",")]

    def evaluate(self) -> dict[str, dict[str, float]]:
        """Held-out success per task on a fixed set of episodes."""
        player = Player(self.model, self.tokenizer, torch.Generator().manual_seed(derive("eval", self.seed)))
        rates: dict[str, dict[str, float]] = {}
        for task in self.tasks:
            seeds = [derive("eval", task.name, index) for index in range(self.options.eval_episodes)]
            rates[task.name] = {
                kind: mean(episode.reward for episode in player.play(task, "heldout", seeds, is_greedy=is_greedy))
                for kind, is_greedy in (("sampled", False), ("greedy", True))
            }
        return rates

    def step(self, number: int) -> dict[str, float]:
        """Roll out, train and publish one step; returns its metrics."""
        started = time.monotonic()
        behaviour = self.past[0]
        lag = len(self.past) - 1
        rows: list[Row] = []
        groups: list[list[int]] = []
        metrics: dict[str, float] = {}
        for task in self.tasks:
            episodes = self._rollouts(behaviour, task, number)
            metrics[f"reward/{task.name}"] = mean(episode.reward for episode in episodes)
            self._collect(task.name, episodes, lag, rows, groups)
        rolled_out = time.monotonic()
        rate = self.options.lr * min(1.0, number / max(1, self.options.warm_up))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        metrics |= train_step(self.model, self.optimizer, rows, groups, self.settings).metrics
        self.past.append(copy.deepcopy(self.model))
        return metrics | {"rollout_s": rolled_out - started, "update_s": time.monotonic() - rolled_out}

    def _rollouts(self, behaviour: Any, task: TaskSpec, number: int) -> list[Episode]:
        seeds = [
            derive("train", self.seed, task.name, number, group)
            for group in range(self.options.groups)
            for _ in range(self.options.group_size)
        ]
        return Player(behaviour, self.tokenizer, self.generator).play(task, "train", seeds)

    def _collect(self, task: str, episodes: list[Episode], lag: int, rows: list[Row], groups: list[list[int]]) -> None:
        estimate = estimator(self.options.advantage)
        for start in range(0, len(episodes), self.options.group_size):
            members = episodes[start : start + self.options.group_size]
            advantages = estimate([member.reward for member in members]).values
            groups.append(list(range(len(rows), len(rows) + len(members))))
            rows.extend(
                Row(member.ids, member.mask, member.logprobs, advantage, task, lag)
                for member, advantage in zip(members, advantages, strict=True)
            )


def run(options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Train with ``seed``; returns curves, timings and totals."""
    loop = Loop(options, seed)
    curve = [{"step": 0, "train_s": 0.0, "trained_tokens": 0, **loop.evaluate()}]
    _show(seed, curve[-1], {})
    train_s, n_tokens = 0.0, 0
    steps: list[dict[str, float]] = []
    totals: dict[str, float] = {"rollout_s": 0.0, "update_s": 0.0}
    for number in range(1, options.steps + 1):
        metrics = loop.step(number)
        for key in totals:
            totals[key] += metrics[key]
        train_s, n_tokens = sum(totals.values()), n_tokens + int(metrics["n_loss_tokens"])
        rewards = {key: value for key, value in metrics.items() if key.startswith("reward/")}
        steps.append({"step": number, "train_s": train_s, "trained_tokens": n_tokens, **rewards})
        if number % options.eval_every == 0 or number == options.steps:
            curve.append({"step": number, "train_s": train_s, "trained_tokens": n_tokens, **loop.evaluate()})
            _show(seed, curve[-1], metrics)
    return {"seed": seed, "train_s": train_s, **totals, "curve": curve, "steps": steps}


def _show(seed: int, point: dict[str, Any], metrics: dict[str, float]) -> None:
    rates = "  ".join(
        f"{name} {value['sampled']:.3f}/{value['greedy']:.3f}" for name, value in point.items() if name in TASKS
    )
    wanted = ("clip_fraction", "grad_norm", "surprise", "lag/1/rho_deviation", "lag/1/effective_sample_share")
    extra = "  ".join(f"{key} {metrics[key]:.4f}" for key in wanted if key in metrics)
    print(f"seed {seed} step {point['step']:3d} {point['train_s']:6.1f} s  {rates}  {extra}", flush=True)


def summarise(options: argparse.Namespace, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The result document: one row per task and kind of decoding, with mean, spread and every seed."""
    rows = []
    for task in options.tasks.split(","):
        for kind in ("sampled", "greedy"):
            before = [run["curve"][0][task][kind] for run in runs]
            after = [run["curve"][-1][task][kind] for run in runs]
            rows.append(
                {
                    "task": task,
                    "kind": kind,
                    "before": mean(before),
                    "after": mean(after),
                    "after_sd": pstdev(after),
                    "seeds": {run["seed"]: [b, a] for run, b, a in zip(runs, before, after, strict=True)},
                }
            )
    return {
        "name": "inprocess_loop",
        "claim": f"held-out success after {options.steps} steps at lag {options.lag}, one process",
        "ratio": None,
        "against": None,
        "rows": rows,
        "train_s": mean(run["train_s"] for run in runs),
        "runs": runs,
        "command": " ".join(["python", "benchmarks/inprocess_loop.py", *sys.argv[1:]]),
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} torch threads",
    }


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    torch.set_num_threads(1)
    document = summarise(options, [run(options, int(seed)) for seed in options.seeds.split(",")])
    for row in document["rows"]:
        print(
            f"{row['task']:12s} {row['kind']:8s} {row['before']:.3f} -> {row['after']:.3f} (sd {row['after_sd']:.3f})"
        )
    print(f"train_s {document['train_s']:.1f}")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
