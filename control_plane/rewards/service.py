"""Reports of reward workers: what is stored, what is refused, and who is told.

| report | answer |
|---|---|
| first outcome of a reward that somebody waits for | stored, accepted |
| a later try, where the stored one is a fault worth retrying | stored, accepted |
| any other outcome of the same reward | counted as a duplicate |
| unknown attempt, another job's, one that is not being scored, a name its task does not have | refused |
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from prometheus_client import Counter as Metric

from control_plane.context import Context
from control_plane.rewards import repository
from control_plane.rewards.repository import Key
from control_plane.text_safety import safe_numbers, safe_text

REPORTS = Metric("headrace_reward_reports_total", "Reward reports by what became of them", ["outcome"])


@dataclass(frozen=True, slots=True)
class Report:
    """One outcome. `score` None: abstained, or unscorable where `fault` is not empty."""

    trajectory_id: str
    attempt: int
    job_id: str
    reward_name: str
    try_number: int
    score: float | None
    components: dict[str, float]
    fault: dict[str, Any]
    grader_s: float
    queue_s: float
    worker_id: str

    @property
    def key(self) -> Key:
        return self.trajectory_id, self.attempt, self.reward_name

    def row(self) -> dict[str, Any]:
        """The row of the table `rewards`; a score without an end is a fault, never a number."""
        score, fault = self.score, self.fault
        if score is not None and not isfinite(score):
            detail = f"the grader returned {score}, which is no finite number"
            score, fault = None, {"code": "score_not_finite", "kind": "grader", "detail": detail, "retryable": False}
        if fault:
            score = None
        return {
            "trajectory_id": self.trajectory_id,
            "attempt": self.attempt,
            "reward_name": self.reward_name,
            "job_id": self.job_id,
            "state": "scored" if score is not None else "unscorable" if fault else "abstained",
            "score": score,
            "components": safe_numbers(self.components),
            "fault": fault,
            "try": self.try_number,
            "grader_s": self.grader_s if isfinite(self.grader_s) else 0.0,
            "queue_s": self.queue_s if isfinite(self.queue_s) else 0.0,
            "worker_id": safe_text(self.worker_id, limit=300),
        }


async def report(context: Context, reports: Sequence[Report]) -> list[bool]:
    """Store what is new, in one transaction; in the order of the reports, whether each was."""
    if not reports:
        return []
    async with context.database.begin() as connection:
        attempts = await repository.waiting_attempts(connection, [(r.trajectory_id, r.attempt) for r in reports])
        tasks = await repository.job_tasks(connection, sorted({job_id for job_id, _ in attempts.values()}))
        chosen: dict[Key, int] = {}
        for position, item in enumerate(reports):
            if item.key not in chosen and _is_wanted(item, attempts, tasks):
                chosen[item.key] = position
        # By key: reporters with the same rewards then take the rows in one order.
        written = await repository.add(connection, [reports[chosen[key]].row() for key in sorted(chosen)])
        accepted = {chosen[key] for key in written}
        rest = Counter(item.key for position, item in enumerate(reports) if position not in accepted)
        await repository.count_duplicates(connection, rest)
    REPORTS.labels("accepted").inc(len(accepted))
    REPORTS.labels("refused_or_duplicate").inc(len(reports) - len(accepted))
    for job_id in {reports[position].job_id for position in accepted}:
        context.hub.notify(f"rewards:{job_id}")
    return [position in accepted for position in range(len(reports))]


def _is_wanted(item: Report, attempts: dict[tuple[str, int], Any], tasks: dict[str, list[dict[str, Any]]]) -> bool:
    job_id, task_name = attempts.get((item.trajectory_id, item.attempt), (None, None))
    if job_id != item.job_id:
        return False
    task = next((task for task in tasks.get(item.job_id, []) if task.get("name") == task_name), {})
    return any(reward.get("name") == item.reward_name for reward in task.get("rewards", []))
