"""Where the time went and what the job looks like: numbers for the step rows, the metric series and the progress block.

Wall seconds of a step are consecutive parts from one commit to the next, so they add up to it:

    exposed_pull | load | buffer_wait | train (fetch, old_logprobs, update, push …) | overhead

Busy seconds are how long each resource worked for the job in that time; they overlap with the wall and each other.
`reward_queue` is how long a reward waited for its grader, on average over those graded in that time.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from control_plane.runner.turn import MetricPoint
from headrace.core.job import accounting
from headrace.core.job.groups import ZERO_VARIANCE
from headrace.core.job.rows import Attempt, BatchGroup, GroupState, Step
from headrace.core.job.state import Changes, JobState
from headrace.core.ledger import AttemptState
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

WALL_PARTS = ("exposed_pull", "load", "buffer_wait", "train_wall")


class Reporter:
    """Collects between turns; `close_step` puts the sums into a step as it commits."""

    def __init__(self) -> None:
        self._engine_busy: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._moved: dict[int, defaultdict[str, float]] = {}
        self.routing: dict[str, Any] = {}
        self._trainer: trn_pb.StepProgress | None = None
        self._recent: dict[str, float] = {}
        self._last_step: dict[str, float] = {}
        self._step_s: deque[float] = deque(maxlen=10)
        self.grader_s = 0.0  # what one grading takes, lately; 0 before the first
        self.version_seconds: dict[int, dict[str, float]] = {}  # of versions whose time is over, until they are stored

    def meter(self) -> dict[str, Any]:
        """What was counted since the last step, and from which counts of the engines on; stored with the job."""
        engines = {worker_id: [self._engine_busy[worker_id], tokens] for worker_id, tokens in self._tokens.items()}
        return {"engines": engines, "busy": dict(self._busy)}

    def resume(self, meter: Mapping[str, Any]) -> None:
        """Count on from where another runner stopped, so that what engines did meanwhile is not lost."""
        for worker_id, (busy_s, tokens) in meter.get("engines", {}).items():
            self._engine_busy[worker_id], self._tokens[worker_id] = busy_s, tokens
        self._busy.update(meter.get("busy", {}))

    # -- what the links hear -------------------------------------------------------------------------------------------

    def worker_reported(self, status: inf_pb.WorkerStatus) -> None:
        if status.worker_id in self._tokens and not status.generated_tokens:
            return  # a proxy that has only just met its workers knows no counts yet
        before = self._engine_busy.get(status.worker_id, status.busy_s)
        self._busy["generation"] += max(0.0, status.busy_s - before)
        self._engine_busy[status.worker_id] = status.busy_s
        tokens = self._tokens.get(status.worker_id, status.generated_tokens)
        self._busy["generated_tokens"] += max(0, status.generated_tokens - tokens)
        self._tokens[status.worker_id] = status.generated_tokens

    def weights_moved(self, moved: inf_pb.WeightsPrefetched | inf_pb.WeightsUpdated) -> None:
        sums = self._moved.setdefault(moved.policy_version, defaultdict(float))
        if isinstance(moved, inf_pb.WeightsPrefetched):
            sums["accumulated_pull"] += moved.pull_s
            sums["verify"] += moved.verify_s
        else:
            sums["pause"] += moved.pause_s
            sums["load"] += moved.load_s
            sums["kv_rebuild"] += moved.kv_rebuild_s
            sums["exposed_pull"] += moved.exposed_pull_s
            sums["n_workers"] += 1

    def routing_reported(self, stats: inf_pb.RoutingStats) -> None:
        self.routing = {
            field.name: dict(value) if isinstance(value, Mapping) else value for field, value in stats.ListFields()
        }

    def trainer_progressed(self, progress: trn_pb.StepProgress) -> None:
        self._trainer = progress

    def graded(self, seconds: float, *, queue_s: float) -> None:
        self._busy["reward"] += seconds
        self._busy["reward_queue"] += queue_s
        self._busy["n_graded"] += 1
        self.grader_s = 0.9 * self.grader_s + 0.1 * seconds if self.grader_s else seconds

    def ended(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._busy["environment"] += attempt.phases.get("step", 0.0) + attempt.phases.get("reset", 0.0)

    # -- a step commits ------------------------------------------------------------------------------------------------

    def close_step(self, state: JobState, step: Step, changes: Changes) -> list[MetricPoint]:
        """Completes the step's seconds and metrics; returns its points of the metric series."""
        gap_tokens = step.metrics.get("logprob_gap/n_tokens", 0.0)
        for name, value in (
            ("gap_tokens", gap_tokens),
            ("gap_sum", gap_tokens * step.metrics.get("logprob_gap/mean", 0.0)),
        ):
            state.totals[name] = state.totals.get(name, 0.0) + value
        trained = [a for a in changes.attempts if a.state is AttemptState.TRAINED and a.step == step.step]
        self._add_seconds(step)
        step.metrics.update(_batch_metrics(step, trained))
        step.ledger = {"is_balanced": True, "losses": _losses(state)}
        self._recent = {name: value for name, value in step.metrics.items() if name.startswith("reward/")}
        self._last_step = dict(step.seconds)
        self._step_s.append(step.seconds.get("step", 0.0))
        points = [MetricPoint(name, step.step, value) for name, value in step.metrics.items() if isfinite(value)]
        return points + [MetricPoint(f"seconds/{name}", step.step, value) for name, value in step.seconds.items()]

    def _add_seconds(self, step: Step) -> None:
        for name in ("generation", "environment", "reward"):
            step.seconds[f"busy/{name}"] = self._busy[name]
        step.seconds["reward_queue"] = self._busy["reward_queue"] / max(1.0, self._busy["n_graded"])
        step.metrics["generated_tokens"] = float(self._busy["generated_tokens"])
        self._busy.clear()
        moved = self._moved.pop(step.policy_version, defaultdict(float))
        self.version_seconds[step.policy_version] = dict(moved)
        workers = max(1.0, moved.pop("n_workers", 0.0))
        step.seconds["accumulated_pull"] = moved["accumulated_pull"]
        for name in ("pause", "kv_rebuild", "verify"):
            step.seconds[name] = moved[name] / workers
        step.seconds["worker_exposed_pull"] = moved["exposed_pull"] / workers
        whole = step.seconds.get("step", 0.0)
        step.seconds["overhead"] = max(0.0, whole - sum(step.seconds.get(part, 0.0) for part in WALL_PARTS))

    # -- the progress block --------------------------------------------------------------------------------------------

    def progress(self, state: JobState, now: float) -> dict[str, Any]:
        """What `submit --follow` and the console show."""
        recent = self._step_s
        per_step = sum(recent) / len(recent) if recent else None
        left = state.plan.max_steps - state.step
        waiting = Counter(
            {s.value: len(state.train_groups(s)) for s in (GroupState.OPEN, GroupState.COMPLETE, GroupState.READY)}
        )
        ready_at = [group.ready_at for group in state.train_groups(GroupState.READY) if group.ready_at is not None]
        return {
            "step": state.step,
            "max_steps": state.plan.max_steps,
            "percent": round(100.0 * state.step / state.plan.max_steps, 1),
            "eta_s": None if per_step is None else round(per_step * left, 1),
            "updated_at": now,
            "policy_version": state.lineage.current,
            "training": self._training(state),
            "train_reward": {name.removeprefix("reward/"): value for name, value in self._recent.items()},
            "evaluated": state.evaluated,
            "evaluating": _evaluating(state),
            "buffer": dict(waiting),
            "in_flight": len(state.in_flight),
            "max_trained_lag": state.counters["max_trained_lag"],
            "seconds": self._last_step,
            "counters": dict(state.counters),
            "routing": self.routing,
            "staleness": accounting.staleness(state),
            "censoring": state.censoring.report(),
            "flow": state.buffer.summary(now, ready_at),
        }

    def _training(self, state: JobState) -> dict[str, Any] | None:
        """What the trainer is at; None between steps."""
        if state.training is None:
            return None
        told = self._trainer
        if told is None or told.step != state.training:
            return {"step": state.training, "phase": "sent", "done": 0, "of": 0}
        return {"step": told.step, "phase": told.phase, "done": told.done, "of": told.total}


def _evaluating(state: JobState) -> dict[str, int] | None:
    running = state.evaluation
    if running is None:
        return None
    done = sum(len(scores) for scores in running.scores.values())
    wanted = len(state.plan.tasks) * state.plan.evaluation.episodes * len(state.plan.evaluation.modes)
    return {"policy_version": running.policy_version, "done": done, "of": wanted}


def _losses(state: JobState) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for (purpose, _, name), count in state.ledger.closed.items():
        if purpose == "train":
            counted[name] += count
    return dict(counted)


def _batch_metrics(step: Step, trained: Sequence[Attempt]) -> dict[str, float]:
    """Rewards by task, lags and their three parts over what this step trained."""
    metrics: dict[str, float] = {}
    by_task: dict[str, list[float]] = {}
    for group in step.groups:
        by_task.setdefault(group.task, []).extend(m.reward for m in group.members if m.reward is not None)
    for task, rewards in by_task.items():
        metrics[f"reward/{task}"] = sum(rewards) / len(rewards)
    metrics["zero_variance_share"] = sum(_is_flat(group) for group in step.groups) / len(step.groups)
    lags = [member.lag for group in step.groups for member in group.members]
    metrics["staleness/s_train_mean"] = sum(lags) / len(lags)
    metrics["staleness/s_train_max"] = float(max(lags))
    for lag, count in Counter(lags).items():
        metrics[f"staleness/s_train_{lag}"] = float(count)
    spans = [len({s.policy_version for s in attempt.segments}) for attempt in trained]
    if spans:
        metrics["staleness/mixed_version_share"] = sum(span > 1 for span in spans) / len(spans)
        metrics["turns_mean"] = sum(attempt.n_turns for attempt in trained) / len(trained)
        metrics |= _episode_metrics(trained)
    return metrics


def _is_flat(group: BatchGroup) -> bool:
    """Equal rewards: the group has no advantage and trains nothing."""
    rewards = [member.reward for member in group.members if member.reward is not None]
    return not rewards or max(rewards) - min(rewards) <= ZERO_VARIANCE


def _episode_metrics(trained: Sequence[Attempt]) -> dict[str, float]:
    """Lengths are those that were generated, whatever the loss leaves out; valid actions by task, of all turns."""
    lengths = [attempt.n_generated_tokens for attempt in trained]
    metrics = {
        "generated_tokens_min": float(min(lengths)),
        "generated_tokens_mean": sum(lengths) / len(lengths),
        "generated_tokens_max": float(max(lengths)),
        "truncated_share": sum(attempt.is_truncated for attempt in trained) / len(trained),
    }
    for task in sorted({attempt.task for attempt in trained}):
        episodes = [attempt for attempt in trained if attempt.task == task]
        n_turns = sum(attempt.n_turns for attempt in episodes)
        if n_turns:
            metrics[f"valid_actions/{task}"] = 1 - sum(a.invalid_actions for a in episodes) / n_turns
    return metrics


def result(state: JobState, *, now: float, is_balanced: bool, model: str) -> dict[str, Any]:
    """The job's outcome, in the shape of the demo's last line. `model`: where the trained model lies."""
    totals = state.totals
    train_s = totals.get("last_commit", now) - totals.get("rollouts_began", now)
    gap = totals["gap_sum"] / totals["gap_tokens"] if totals.get("gap_tokens") else None
    first = state.evaluated.get("0", {})
    last = state.evaluated.get(str(state.step), {}) if state.step else {}
    tasks: dict[str, Any] = {}
    for task in state.plan.tasks:
        tasks[task.name] = {
            mode: {"before": first.get(f"{task.name}/{mode}"), "after": last.get(f"{task.name}/{mode}")}
            for mode in state.plan.evaluation.modes
        }
    return {
        "job": state.plan.job_id,
        "tasks": tasks,
        "steps": state.step,
        "train_s": round(train_s, 2),
        "wall_s": round(now - totals.get("started", now), 2),
        "ledger_balanced": is_balanced and not state.in_flight,
        "max_trained_lag": state.counters["max_trained_lag"],
        "engine_trainer_logprob_gap": gap,
        "model": model,
    }
