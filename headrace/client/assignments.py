"""Assignments and outcomes of environment processes: wire <-> core."""

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.rows import Key, SegmentRow
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2 as pb

_PURPOSE = {"train": common_pb2.PURPOSE_TRAIN, "eval": common_pb2.PURPOSE_EVAL}


def key_to_wire(key: Key) -> common_pb2.AttemptKey:
    return common_pb2.AttemptKey(trajectory_id=key.trajectory_id, attempt=key.attempt)


def key_from_wire(key: common_pb2.AttemptKey) -> Key:
    return Key(key.trajectory_id, key.attempt)


def assign_to_wire(action: do.AssignAttempt) -> pb.AssignmentCommand:
    return pb.AssignmentCommand(
        assign=pb.Assign(
            key=key_to_wire(action.key),
            purpose=_PURPOSE[action.purpose],
            group_id=action.group_id,
            sibling=action.sibling,
            task=action.task,
            env_seed=action.env_seed,
            sampling_seed=action.sampling_seed,
            greedy=action.is_greedy,
            pinned_version=action.pinned_version,
            cohort=action.cohort,
            cohort_size=action.cohort_size,
            split=action.split,
        )
    )


def abort_to_wire(action: do.AbortAttempt) -> pb.AssignmentCommand:
    return pb.AssignmentCommand(abort=pb.Abort(key=key_to_wire(action.key), reason=action.reason))


def acknowledge_to_wire(keys: list[Key]) -> pb.AssignmentCommand:
    return pb.AssignmentCommand(acknowledge=pb.Acknowledge(keys=[key_to_wire(key) for key in keys]))


def outcome_from_wire(outcome: pb.Outcome, env_worker_id: str) -> did.Event:
    """JobOpened becomes EnvOpened; the others keep their names. Raises ValueError for an empty outcome."""
    match outcome.WhichOneof("outcome"):
        case "opened":
            opened = outcome.opened
            in_hand = frozenset(key_from_wire(key) for key in opened.running)
            return did.EnvOpened(opened.worker_id, opened.slots, in_hand)
        case "started":
            return did.AttemptStarted(key_from_wire(outcome.started.key), outcome.started.start_version)
        case "finished":
            return _finished(outcome.finished)
        case "failed":
            return _failed(outcome.failed, env_worker_id)
        case other:
            raise ValueError(f"an outcome of kind {other}")


def _finished(finished: pb.AttemptFinished) -> did.AttemptFinished:
    return did.AttemptFinished(
        key=key_from_wire(finished.key),
        token_blob=finished.token_blob,
        grading_blob=finished.grading_blob,
        n_tokens=finished.n_tokens,
        n_generated_tokens=finished.n_generated_tokens,
        n_turns=finished.n_turns,
        segments=tuple(
            SegmentRow(s.policy_version, s.worker_id, s.weight_digest, s.n_tokens) for s in finished.segments
        ),
        env_reward=finished.env_reward if finished.HasField("env_reward") else None,
        finish_reason=finished.finish_reason,
        is_truncated=finished.is_truncated,
        env_worker_id=finished.env_worker_id,
        reward_components=dict(finished.reward_components),
        phases=_phases(finished.phases),
        discarded_tokens=finished.discarded_tokens,
        invalid_actions=finished.invalid_actions,
    )


def _failed(failed: pb.AttemptFailed, env_worker_id: str) -> did.AttemptFailed:
    return did.AttemptFailed(
        key=key_from_wire(failed.key),
        kind=failed.fault.kind or "infra",
        code=failed.fault.code,
        detail=failed.fault.detail,
        n_generated_tokens=failed.n_generated_tokens,
        env_worker_id=env_worker_id,
        discarded_tokens=failed.discarded_tokens,
        phases=_phases(failed.phases),
    )


def _phases(phases: pb.PhaseSeconds) -> dict[str, float]:
    return {
        "queue": phases.queue_s,
        "reset": phases.reset_s,
        "generate": phases.generate_s,
        "step": phases.step_s,
        "lockstep_wait": phases.lockstep_wait_s,
        "total": phases.total_s,
    }
