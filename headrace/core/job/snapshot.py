"""What of the job machine is not in its rows, as JSON, and how a machine is rebuilt by whoever takes a job over.

Connections (trainer, proxy, workers, environment processes) are not restored: they report themselves again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.core.censoring import Censoring
from headrace.core.flow import Flow
from headrace.core.job.machine import JobMachine
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import Group, Step
from headrace.core.job.state import Evaluation, JobState, Phase, Requeue
from headrace.core.ledger import AttemptState, Ledger
from headrace.core.versions import Lineage, Version

_PLAIN = (
    "step",
    "checkpoint_step",
    "next_version",
    "to_replay",
    "ordinal",
    "ready_count",
    "marks",
    "totals",
    "last_error",
    "failed_in_a_row",
    "filtered_since_step",
    "evaluated",
    "eval_due",
    "is_ended",
    "paused_at",
)


def dump(state: JobState) -> dict[str, Any]:
    """JSON of everything beside the rows."""
    stored: dict[str, Any] = {name: getattr(state, name) for name in _PLAIN}
    stored["cursors"] = dict(state.cursors)
    stored["counters"] = dict(state.counters)
    stored["histograms"] = dict(state.histograms)
    stored["censoring"] = state.censoring.to_json()
    stored["buffer"] = state.buffer.to_json()
    stored["requeues"] = [asdict(requeue) for requeue in state.requeues]
    stored["evaluation"] = _dump_evaluation(state.evaluation)
    # The row of a committed step keeps the number that it published under; while it is replayed it has another one.
    replayed = [state.steps[step] for step in state.to_replay if step in state.steps]
    stored["replay_versions"] = [[step.step, step.publish_version] for step in replayed]
    return stored


def _dump_evaluation(running: Evaluation | None) -> dict[str, Any] | None:
    if running is None:
        return None
    return {
        "policy_version": running.policy_version,
        "step": running.step,
        "deadline": running.deadline,
        "open_groups": sorted(running.open_groups),
        "scores": [[task, mode, scores] for (task, mode), scores in sorted(running.scores.items())],
        "lost": running.lost,
    }


@dataclass(frozen=True, slots=True)
class StoredJob:
    """The rows of a job. `groups` are those not closed, with every attempt ever issued; `state` is from `dump`."""

    plan: JobPlan
    phase: Phase
    reason: str
    state: Mapping[str, Any]
    ledger: Mapping[str, Any]
    versions: Sequence[Version]
    groups: Sequence[Group]
    steps: Sequence[Step]


def restore(job: StoredJob) -> JobMachine:
    """Rebuilds a machine from its rows."""
    stored = job.state
    state = JobState(job.plan, phase=job.phase, reason=job.reason)
    for name in _PLAIN:
        setattr(state, name, stored[name])
    state.marks = dict(stored["marks"])
    state.cursors.update(stored["cursors"])
    state.counters.update(stored["counters"])
    state.histograms.update(stored["histograms"])
    state.censoring = Censoring.from_json(stored["censoring"])
    state.buffer = Flow.from_json(stored["buffer"])
    state.requeues = [Requeue(**requeue) for requeue in stored["requeues"]]
    state.evaluation = _load_evaluation(stored["evaluation"])
    state.ledger = Ledger.from_json(job.ledger)
    state.lineage = Lineage.of(job.versions)
    state.steps = {step.step: step for step in job.steps}
    for number, publish_version in stored.get("replay_versions", []):
        state.steps[number].publish_version = publish_version
    for group in job.groups:
        state.groups[group.id] = group
        for attempt in group.members.values():
            state.attempts[attempt.key] = attempt
            if attempt.state is AttemptState.QUEUED and not attempt.env_worker_id:
                state.unassigned[attempt.key] = attempt
    return JobMachine(state)


def _load_evaluation(stored: Mapping[str, Any] | None) -> Evaluation | None:
    if stored is None:
        return None
    return Evaluation(
        stored["policy_version"],
        stored["step"],
        stored["deadline"],
        set(stored["open_groups"]),
        {(task, mode): list(scores) for task, mode, scores in stored["scores"]},
        stored["lost"],
    )
