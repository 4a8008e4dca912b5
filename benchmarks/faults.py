"""Kills of every process at random moments: what each costs, and whether the job finishes and its ledger balances.

    python benchmarks/faults.py [--quick] [--json] [--singles 20] [--doubles 10] [--seed 1]

One stack, a job for each fault: 20 jobs with one SIGKILL, spread evenly over the processes, then 10 with two (of two
different processes, up to a second apart), each at a random moment of a job that takes about 12 s undisturbed. Tokens
lost are those that engines generated and no step trained, without what was in hand when the job ended; probes of a
version (8 requests of 32 tokens) are among them, and the row `nothing` says what a job without a fault loses. Attempts
lost left under any name but `trained`. `recover_s` is by how much the step in which the kill fell and the one after it
took longer than two median steps; `extra_s` is by how much the job took longer than the median job without a fault.
"""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from report import Report, arguments, median, say, show
from scripted_model import Timing as ModelTiming
from scripted_model import save
from stack import Outcome, Stack, spec, synthetic

from headrace.client.rest import TERMINAL, ApiError, Unreachable

PROCESSES = (
    "inference-0", "inference-1", "proxy-0", "env-0", "trainer-0", "control_plane", "weightstore-0", "reward-", "redis",
)  # fmt: skip
CONFIG: dict[str, Any] = {
    "unit_s": 1.0,
    "latency": {"kind": "lognormal", "median": 0.06, "sigma": 0.8, "most": 0.8},
    "reset": {"kind": "constant", "value": 0.05},
    "turns": {"kind": "constant", "value": 4},
    "tokens": {"kind": "lognormal", "median": 16, "sigma": 0.7, "most": 120},
}
GRADED = {"fn": "benchmarks.workloads:share", "timeout_s": 10.0}
CONTROLS = 2
DEADLINE_S = 150.0
PROCESS_WAIT_S = 20.0


@dataclass(slots=True)
class Run:
    """One job, what was killed in it, and when (seconds of the wall clock)."""

    victims: tuple[str, ...]
    killed_at: list[float] = field(default_factory=list)
    outcome: Outcome | None = None
    lost_tokens: int = 0

    @property
    def is_good(self) -> bool:
        return self.outcome is not None and self.outcome.is_good


def job(model: Path, label: str, steps: int) -> dict[str, Any]:
    """Half of the prompts are scored by reward workers."""
    own = synthetic("own", **CONFIG, run=f"{label} own")
    graded = synthetic("graded", **CONFIG, run=f"{label} graded", has_reward=False)
    return spec(
        label,
        model,
        [own, {**graded, "rewards": [GRADED]}],
        max_steps=steps,
        batch={"groups": 6, "group_size": 4},
        checkpoint={"every": 3},
        limits={"step_s": 90.0, "version_wait_s": 15.0},
        **{"async": {"preset": "bounded", "alpha": 1}},
    )


def wait_for_step(stack: Stack, job_id: str, step: int) -> None:
    """Return once a step was committed, or the job ended. Raises TimeoutError."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with suppress(Unreachable, ApiError), stack.api() as api:
            found = api.job(job_id)
            if found["phase"] in TERMINAL or found["progress"].get("step", 0) >= step:
                return
        time.sleep(0.1)
    raise TimeoutError(f"job {job_id} did not come to step {step} within {DEADLINE_S:g} s")


def kill(stack: Stack, prefix: str) -> float:
    """SIGKILL to the process whose name starts so; when. One that is starting is waited for."""
    deadline = time.monotonic() + PROCESS_WAIT_S
    while time.monotonic() < deadline:
        for name, pid in stack.pids().items():
            if name.startswith(prefix):
                os.kill(pid, signal.SIGKILL)
                return time.time()
        time.sleep(0.05)
    raise TimeoutError(f"no process {prefix}* among {sorted(stack.pids())}")


def run(stack: Stack, model: Path, victims: tuple[str, ...], *, steps: int, dice: random.Random) -> Run:
    """Submit, kill at a random moment past the first step, wait for the end."""
    made = Run(victims)
    label = f"faults {'+'.join(victims) or 'none'} {dice.randrange(1 << 30)}"
    job_id = stack.submit(job(model, label, steps))
    if victims:
        wait_for_step(stack, job_id, 1)
        time.sleep(dice.random() * 0.6 * steps)
        for index, victim in enumerate(victims):
            if index:
                time.sleep(dice.random())
            made.killed_at.append(kill(stack, victim))
    with suppress(TimeoutError):
        made.outcome = stack.wait(job_id, deadline_s=DEADLINE_S)
    if made.outcome is not None:
        made.lost_tokens = lost_tokens(made.outcome)
    return made


def lost_tokens(outcome: Outcome) -> int:
    """Generated, as the engines count, and neither trained nor in hand at the end (`aborted`).

    What an engine made since it reported last is counted nowhere when it is killed: up to half a second of it.
    """
    generated = sum(int(step["metrics"].get("generated_tokens", 0)) for step in outcome.steps)
    by_task = outcome.ledger["recorded"]["tokens"].get("train", {})
    in_hand = sum(states.get("aborted", 0) for states in by_task.values())
    return generated - in_hand - sum(int(step["n_tokens"]) for step in outcome.steps)


def lost_attempts(outcome: Outcome) -> int:
    """Attempts that left without being trained."""
    train = next((e for e in outcome.ledger["equations"] if e["purpose"] == "train"), {"exits": {}})
    return sum(train["exits"].values())


def plan(names: Sequence[str], singles: int, doubles: int, dice: random.Random) -> list[tuple[str, ...]]:
    """Victims of each run: processes in turn, pairs of different ones at random."""
    one = [(names[index % len(names)],) for index in range(singles)]
    two = [tuple(dice.sample(names, 2)) for _ in range(doubles)]
    return [*one, *two]


def measure(victims: Sequence[tuple[str, ...]], *, steps: int, dice: random.Random) -> tuple[list[Run], list[Run]]:
    """Runs without and with faults."""
    with Stack() as stack:
        model = save(stack.root / "model", ModelTiming(t0_s=0.004, train_s=0.25))
        controls = [run(stack, model, (), steps=steps, dice=dice) for _ in range(CONTROLS)]
        runs = []
        for some in victims:
            runs.append(run(stack, model, some, steps=steps, dice=dice))
            phase = runs[-1].outcome.job["phase"] if runs[-1].outcome else "not ended"
            late = recovery_s(runs[-1]) if runs[-1].outcome else float("nan")
            say(f"{'+'.join(some)}: {phase}, good: {runs[-1].is_good}, {runs[-1].lost_tokens} tokens, {late:.1f} s")
    return controls, runs


def row(victims: str, runs: Sequence[Run], controls: Sequence[Run]) -> dict[str, Any]:
    """Runs with the same victims."""
    ended = [run for run in runs if run.outcome is not None]
    lost = [float(run.lost_tokens) for run in ended]
    return {
        "killed": victims,
        "runs": len(runs),
        "finished": sum(run.outcome is not None and run.outcome.job["phase"] == "succeeded" for run in runs),
        "balanced": sum(run.outcome is not None and bool(run.outcome.ledger["balanced"]) for run in runs),
        "attempts_lost": median([float(lost_attempts(run.outcome)) for run in ended if run.outcome]),
        "tokens_lost": median(lost),
        "tokens_lost_most": max(lost, default=float("nan")),
        "recover_s": median([recovery_s(run) for run in ended]),
        "recover_s_most": max((recovery_s(run) for run in ended), default=float("nan")),
        "extra_s": median([wall_s(run) for run in ended]) - median([wall_s(run) for run in controls]),
        "runs_s": [["+".join(run.victims), run.lost_tokens, round(recovery_s(run), 2)] for run in ended],
        "reasons": [run.outcome.job["reason"] if run.outcome else "did not end" for run in runs if not run.is_good],
    }


def recovery_s(run: Run) -> float:
    """How much longer the step in which the last kill fell, and the one after it, took than two median steps."""
    assert run.outcome is not None
    if not run.killed_at:
        return 0.0
    commits = sorted(
        datetime.fromisoformat(step["committed_at"]).timestamp() for step in run.outcome.steps if step["committed_at"]
    )
    after = next((index for index, at in enumerate(commits) if at > run.killed_at[-1]), None)
    if after is None or after == 0:
        return 0.0
    last = min(after + 1, len(commits) - 1)
    took = commits[last] - commits[after - 1]
    return max(0.0, took - (last - after + 1) * median(run.outcome.step_s()))


def wall_s(run: Run) -> float:
    assert run.outcome is not None
    return float(run.outcome.job["result"].get("wall_s", float("nan"))) if run.outcome.job["result"] else float("nan")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--singles", type=int, default=20)
    parser.add_argument("--doubles", type=int, default=10)
    parser.add_argument("--processes", default=",".join(PROCESSES), help="whom to kill; names or their beginnings")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    singles, doubles, steps = (2, 0, 4) if options.quick else (options.singles, options.doubles, 12)
    dice = random.Random(options.seed)
    victims = plan(options.processes.split(","), singles, doubles, dice)
    controls, runs = measure(victims, steps=steps, dice=dice)
    groups: dict[str, list[Run]] = {}
    for one in runs:
        groups.setdefault(one.victims[0] if len(one.victims) == 1 else "two at once", []).append(one)
    rows = [row(name, some, controls) for name, some in ({"nothing": controls} | groups).items()]
    report = Report(
        name="faults",
        claim="no kill loses a job or an attempt from the ledger, and each costs what it may",
        ratio=sum(one.is_good for one in [*controls, *runs]) / (len(controls) + len(runs)),
        against="ratio is the share of runs with a finished job and a balanced ledger; it must be 1",
        rows=rows,
        notes=[
            f"{singles} single and {doubles} double kills; without one a job takes "
            f"{median([wall_s(c) for c in controls]):.1f} s and loses "
            f"{median([float(c.lost_tokens) for c in controls]):.0f} tokens",
        ],
    )
    show(report, as_json=options.json)


if __name__ == "__main__":
    main()
