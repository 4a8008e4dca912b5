"""Turns of a job driven by hand, as its runner would write them."""

from typing import Any

from testkit.jobs import Job

from control_plane.runner.turn import StoredManifest, Turn
from headrace.core.job.snapshot import dump
from headrace.core.job.state import Changes


def manifest(version: int) -> StoredManifest:
    return StoredManifest(f"manifest {version}".encode(), f"digest-{version}")


def turn_of(job: Job, changes: Changes, **more: Any) -> Turn:
    """What the machine holds now, with these rows changed."""
    state = job.state
    live = ((a.purpose, a.task, a.state.value) for a in state.attempts.values() if a.is_in_flight)
    values: dict[str, Any] = {
        "now": job.now,
        "changes": changes,
        "phase": state.phase,
        "reason": state.reason,
        "state": dump(state),
        "ledger": state.ledger.to_json(live),
        "step": state.step,
        "current_version": state.lineage.current,
        "manifests": {version: manifest(version) for version in state.lineage.versions},
    }
    return Turn(**{**values, **more})


def everything(job: Job, **more: Any) -> Turn:
    """One turn with every row of the job."""
    attempts, groups = list(job.rows.values()), list(job.all_groups.values())
    finished = [attempt for attempt in attempts if attempt.segments]
    versions = list(job.state.lineage.versions.values())
    steps = list(job.state.steps.values())
    return turn_of(job, Changes(attempts, groups, versions, steps, finished), **more)
