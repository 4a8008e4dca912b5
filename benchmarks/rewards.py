"""Where rewards are graded (RollArt, R3): in the environment's last step, or by reward workers that scale from zero.

    python benchmarks/rewards.py [--quick] [--json]

Three jobs at once, each with a scripted trainer, a worker and a proxy of its own; one grader takes 0.5 s. Inline, an
environment slot is held while its episode is graded, so a grader stands ready for every slot; serverless, the slot is
free for the next episode and the graders are shared by all jobs. A job has fewer slots than a batch has episodes.
Utilisation is the time graders graded over the time they were there: slots x wall inline, processes x wall serverless.
"""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from report import Report, arguments, median, say, show, sized, spread
from scripted_model import Timing as ModelTiming
from scripted_model import save
from stack import Outcome, Stack, StackOptions, spec, synthetic
from workloads import SLOW_S

JOBS = 3
GRADERS_PER_WORKER = 24
REWARD_WORKERS = 2
SKIP = 1
SAMPLE_S = 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """A batch of one job, its steps, and how often all three run."""

    groups: int
    group_size: int
    slots: int
    steps: int
    repeats: int


FULL = Size(groups=8, group_size=6, slots=16, steps=5, repeats=2)
QUICK = Size(groups=4, group_size=4, slots=8, steps=3, repeats=1)
CONFIG: dict[str, Any] = {
    "unit_s": 1.0,
    "latency": {"kind": "lognormal", "median": 0.1, "sigma": 0.5, "most": 1.0},
    "turns": {"kind": "constant", "value": 3},
    "tokens": {"kind": "lognormal", "median": 12, "sigma": 0.5, "most": 60},
}
REWARD = {"fn": "benchmarks.workloads:slow_share", "timeout_s": 20.0}


class Census:
    """Counts, beside the jobs, how long reward workers were there."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.worker_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join(timeout=5.0)

    def _look(self) -> None:
        seen_at = time.monotonic()
        while not self._is_over.wait(SAMPLE_S):
            now = time.monotonic()
            self.worker_s += (now - seen_at) * sum(name.startswith("reward-") for name in self._stack.pids())
            seen_at = now


def job(size: Size, model: Path, *, is_inline: bool, label: str) -> dict[str, Any]:
    """One of the three jobs; all have the same draws."""
    how = {"grader_s": SLOW_S} if is_inline else {"has_reward": False}
    task = synthetic(**CONFIG, **how, run=label)
    return spec(
        label,
        model,
        [task if is_inline else {**task, "rewards": [REWARD]}],
        max_steps=size.steps,
        batch={"groups": size.groups, "group_size": size.group_size},
        resources={"inference": {"min": 1, "max": 1, "engine": "scripted"}, "env_slots": size.slots},
        **{"async": {"preset": "sync_plus"}},
    )


def run(stack: Stack, size: Size, model: Path, where: str, repeat: int) -> dict[str, Any]:
    """Three jobs at once; their steps' rollouts and how busy graders were."""
    is_inline = where == "inline"
    started = time.monotonic()
    with Census(stack) as census:
        labels = [f"rewards {where} {repeat} {index}" for index in range(JOBS)]
        ids = [stack.submit(job(size, model, is_inline=is_inline, label=label)) for label in labels]
        outcomes = [stack.wait(job_id) for job_id in ids]
    wall_s = time.monotonic() - started
    if bad := [outcome.job["reason"] for outcome in outcomes if not outcome.is_good]:
        raise RuntimeError(f"{where}: {bad}")
    graded_s = SLOW_S * size.groups * size.group_size * size.steps * JOBS
    reserved_s = JOBS * size.slots * wall_s if is_inline else census.worker_s * GRADERS_PER_WORKER
    return {
        "rollout_s": [value for outcome in outcomes for value in rollouts(outcome)],
        "wall_s": wall_s,
        "utilisation": graded_s / reserved_s if reserved_s else float("nan"),
        "graders": reserved_s / wall_s,
    }


def rollouts(outcome: Outcome) -> list[float]:
    """Seconds from the swap to the take, grading included, of every step but the first."""
    return outcome.seconds("buffer_wait", skip=SKIP)


def measure(size: Size) -> dict[str, list[dict[str, Any]]]:
    """Runs by placement, repetitions interleaved."""
    seen: dict[str, list[dict[str, Any]]] = {"inline": [], "serverless": []}
    options = StackOptions(
        workers=JOBS,
        trainers=JOBS,
        proxies=JOBS,
        reward_workers=REWARD_WORKERS,
        env={"HEADRACE_CONCURRENCY": str(GRADERS_PER_WORKER), "HEADRACE_SLOTS": str(JOBS * size.slots)},
    )
    with Stack(options) as stack:
        model = save(stack.root / "model", ModelTiming(t0_s=0.005, train_s=0.3))
        for repeat in range(size.repeats):
            for where, runs in seen.items():
                runs.append(run(stack, size, model, where, repeat))
                say(f"{where} repeat {repeat}: {median(runs[-1]['rollout_s']):.2f} s a rollout")
    return seen


def row(where: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the runs."""
    rollout_s = [value for one in runs for value in one["rollout_s"]]
    return {
        "rewards": where,
        "rollout_s": median(rollout_s),
        "spread": spread(rollout_s),
        "wall_s": median([one["wall_s"] for one in runs]),
        "graders": median([one["graders"] for one in runs]),
        "utilisation": median([one["utilisation"] for one in runs]),
    }


def main() -> None:
    options = arguments(__doc__).parse_args()
    size = sized(QUICK if options.quick else FULL, options)
    rows = [row(where, runs) for where, runs in measure(size).items()]
    report = Report(
        name="rewards",
        claim="grading beside generation shortens rollouts and keeps fewer graders busier",
        ratio=rows[0]["rollout_s"] / rows[1]["rollout_s"],
        against="ratio is rollout time inline over serverless; the paper: 158 to 77 s, utilisation 6 to 88 %",
        rows=rows,
        notes=[
            f"{JOBS} jobs, {size.groups} groups of {size.group_size} in {size.slots} slots, a grader takes {SLOW_S} s"
        ],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
