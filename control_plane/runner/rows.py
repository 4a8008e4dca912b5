"""Rows of the job machine <-> rows of the database."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import RowMapping

from control_plane.text_safety import safe_text
from headrace.core.job.rows import Attempt, BatchGroup, BatchMember, Group, GroupState, Key, SegmentRow, Step, StepState
from headrace.core.ledger import AttemptState
from headrace.core.versions import Lineage, Version, VersionState


def at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def attempt_to_row(job_id: str, attempt: Attempt) -> dict[str, Any]:
    return {
        "trajectory_id": attempt.key.trajectory_id,
        "attempt": attempt.key.attempt,
        "job_id": job_id,
        "group_id": attempt.group_id,
        "purpose": attempt.purpose,
        "task": attempt.task,
        "sibling": attempt.sibling,
        "kind": attempt.kind,
        "mode": attempt.mode,
        "state": attempt.state.value,
        "reason": safe_text(attempt.reason) or None,
        "start_version": attempt.start_version,
        "finish_version": attempt.finish_version,
        "sample_version": attempt.sample_version,
        "step": attempt.step,
        "reward": attempt.reward,
        "reward_components": attempt.reward_components,
        "weight": attempt.weight,
        "token_blob": attempt.token_blob or None,
        "grading_blob": attempt.grading_blob or None,
        "n_tokens": attempt.n_tokens,
        "n_generated_tokens": attempt.n_generated_tokens,
        "n_turns": attempt.n_turns,
        "discarded_tokens": attempt.discarded_tokens,
        "invalid_actions": attempt.invalid_actions,
        "finish_reason": attempt.finish_reason or None,
        "is_truncated": attempt.is_truncated,
        "env_worker_id": attempt.env_worker_id or None,
        "phases": dict(attempt.phases),
        "fault": {name: safe_text(text) for name, text in attempt.fault.items()},
        "issued_at": at(attempt.issued_at),
        "started_at": at(attempt.started_at),
        "finished_at": at(attempt.finished_at),
        "closed_at": at(attempt.closed_at),
    }


def attempt_from_row(row: RowMapping) -> Attempt:
    """Rewards that were pending are named by whoever knows the task; a reward sent before is sent again when due."""
    return Attempt(
        key=Key(row["trajectory_id"], row["attempt"]),
        group_id=row["group_id"],
        purpose=row["purpose"],
        task=row["task"],
        sibling=row["sibling"],
        kind=row["kind"],
        mode=row["mode"],
        issued_at=row["issued_at"].timestamp(),
        state=AttemptState(row["state"]),
        reason=row["reason"] or "",
        start_version=row["start_version"],
        finish_version=row["finish_version"],
        sample_version=row["sample_version"],
        step=row["step"],
        env_worker_id=row["env_worker_id"] or "",
        reward=row["reward"],
        reward_components=dict(row["reward_components"]),
        weight=row["weight"],
        token_blob=row["token_blob"] or "",
        grading_blob=row["grading_blob"] or "",
        n_tokens=row["n_tokens"],
        n_generated_tokens=row["n_generated_tokens"],
        n_turns=row["n_turns"],
        discarded_tokens=row["discarded_tokens"],
        invalid_actions=row["invalid_actions"],
        finish_reason=row["finish_reason"] or "",
        is_truncated=row["is_truncated"],
        phases=row["phases"],
        fault=row["fault"],
        started_at=seconds(row["started_at"]),
        finished_at=seconds(row["finished_at"]),
        closed_at=seconds(row["closed_at"]),
    )


def segment_rows(job_id: str, attempt: Attempt) -> list[dict[str, Any]]:
    return [
        {
            "trajectory_id": attempt.key.trajectory_id,
            "attempt": attempt.key.attempt,
            "position": position,
            "job_id": job_id,
            "policy_version": segment.policy_version,
            "worker_id": segment.worker_id,
            "weight_digest": segment.weight_digest,
            "n_tokens": segment.n_tokens,
        }
        for position, segment in enumerate(attempt.segments)
    ]


def segment_from_row(row: RowMapping) -> SegmentRow:
    return SegmentRow(row["policy_version"], row["worker_id"], row["weight_digest"], row["n_tokens"])


def group_to_row(job_id: str, group: Group) -> dict[str, Any]:
    return {
        "id": group.id,
        "job_id": job_id,
        "ordinal": group.ordinal,
        "purpose": group.purpose,
        "task": group.task,
        "env_seed": group.env_seed,
        "parent_group": group.parent_group or None,
        "requeues": group.requeues,
        "admitted_version": group.admitted_version,
        "cohort": group.cohort,
        "state": group.state.value,
        "reason": safe_text(group.reason) or None,
        "ready_order": group.ready_order,
        "step": group.step,
        "created_at": at(group.created_at),
        "ready_at": at(group.ready_at),
        "closed_at": at(group.closed_at),
    }


def group_from_row(row: RowMapping) -> Group:
    return Group(
        id=row["id"],
        ordinal=row["ordinal"],
        purpose=row["purpose"],
        task=row["task"],
        env_seed=row["env_seed"],
        admitted_version=row["admitted_version"],
        created_at=row["created_at"].timestamp(),
        parent_group=row["parent_group"] or "",
        requeues=row["requeues"],
        cohort=row["cohort"],
        state=GroupState(row["state"]),
        reason=row["reason"] or "",
        ready_order=row["ready_order"],
        step=row["step"],
        ready_at=seconds(row["ready_at"]),
        closed_at=seconds(row["closed_at"]),
    )


def version_from_row(row: RowMapping) -> Version:
    return Version(
        row["policy_version"],
        row["parent_version"],
        row["depth"],
        row["step"],
        row["manifest_digest"],
        row["total_bytes"],
        VersionState(row["state"]),
    )


def step_to_row(job_id: str, step: Step) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "step": step.step,
        "state": step.state.value,
        "batch_digest": step.batch_digest,
        "policy_version": step.policy_version,
        "published_version": step.published_version if step.state is StepState.COMMITTED else step.publish_version,
        "replays": step.replays,
        "n_groups": len(step.groups),
        "group_ids": [group.group_id for group in step.groups],
        "n_tokens": step.n_tokens,
        "metrics": step.metrics,
        "seconds": step.seconds,
        "ledger": step.ledger,
        "sampled_at": at(step.sampled_at),
        "committed_at": at(step.committed_at),
    }


def step_from_row(row: RowMapping, members: Mapping[str, list[Attempt]], lineage: Lineage) -> Step:
    """`members`: the attempts of each group that the step took."""
    is_committed = row["state"] == StepState.COMMITTED
    return Step(
        step=row["step"],
        batch_digest=row["batch_digest"],
        policy_version=row["policy_version"],
        publish_version=row["published_version"],
        groups=tuple(_batch_group(group_id, members[group_id], lineage) for group_id in row["group_ids"]),
        n_tokens=row["n_tokens"],
        sampled_at=row["sampled_at"].timestamp(),
        state=StepState(row["state"]),
        published_version=row["published_version"] if is_committed else None,
        replays=row["replays"],
        committed_at=seconds(row["committed_at"]),
        metrics=dict(row["metrics"]),
        seconds=dict(row["seconds"]),
        ledger=dict(row["ledger"]),
    )


def _batch_group(group_id: str, members: list[Attempt], lineage: Lineage) -> BatchGroup:
    ordered = sorted(members, key=lambda member: member.sibling)
    return BatchGroup(group_id, ordered[0].task, tuple(_batch_member(member, lineage) for member in ordered))


def _batch_member(member: Attempt, lineage: Lineage) -> BatchMember:
    lag = lineage.depth(member.sample_version or 0) - lineage.depth(member.start_version or 0)
    row = (member.key, member.sibling, member.token_blob, member.reward, member.is_truncated, lag, member.weight)
    return BatchMember(*row)
