"""Steps of the trainer: publish, train, commit, replay after a restore, end.

Committing version n + 1 is committing step s. A trainer that comes back with a checkpoint publishes its state under the
next number and replays the steps after it from their stored batches; what was made under the versions between is lost.
"""

from headrace.core.job import evaluation, swaps, taking
from headrace.core.job.actions import (
    Action,
    Announce,
    CloseTraining,
    EndJob,
    PublishState,
)
from headrace.core.job.events import (
    StatePublished,
    StepFinished,
    TrainerLost,
    TrainerOpened,
    TrainingClosed,
    TrainingFailed,
)
from headrace.core.job.groups import lose
from headrace.core.job.rows import Group, GroupState, Step, StepState
from headrace.core.job.state import TERMINAL, JobState, Phase
from headrace.core.ledger import AttemptState

MAX_RETRIES = 5


class StepMismatch(Exception):
    """The trainer answered for a step or a batch that is not the one that is out."""


def trainer_opened(state: JobState, event: TrainerOpened, now: float) -> list[Action]:
    state.trainer_id = event.worker_id
    state.publishing = None
    state.training = None
    state.marks.pop("closing", None)
    if state.lineage.current is None:
        state.next_version = 0
        return _publish(state, None, 0)
    current_step = state.lineage.versions[state.lineage.current].step
    state.to_replay = [step for step in state.to_replay if step > current_step]
    if event.step == current_step or (event.is_attached and event.step == current_step + 1):
        # It stands at n, or has trained the step that is out and will answer from memory.
        if not event.is_attached:
            _renumber_step_out(state)
        # What the node had lost may have been asked of a trainer whose stream was down.
        return continue_training(state, now) + swaps.fetch_missing(state)
    parent = state.lineage.live_version_of_step(event.step)
    if event.step > current_step or parent is None:
        detail = f"the trainer came back at step {event.step}, but {state.step} is the newest committed one"
        return fail(state, "checkpoint_unknown", detail, now)
    state.to_replay = list(range(event.step + 1, state.step + 1))
    missing = [step for step in state.to_replay if step not in state.steps]
    if missing:
        return fail(state, "batch_missing", f"stored batches of steps {missing} are gone, cannot replay", now)
    data = {"checkpoint_step": event.step, "replayed": len(state.to_replay)}
    return [Announce("trainer.restored", data), *_publish(state, parent, event.step)]


def trainer_lost(state: JobState, event: TrainerLost) -> list[Action]:
    if event.worker_id != state.trainer_id:
        return []
    state.trainer_id = ""
    state.publishing = None
    state.training = None
    return [Announce("trainer.lost", {"worker": event.worker_id})]


def _publish(state: JobState, parent: int | None, step: int) -> list[Action]:
    version = state.next_version
    state.next_version += 1
    state.publishing = version
    return [PublishState(version, parent, step)]


def continue_training(state: JobState, now: float) -> list[Action]:
    """Sends the step that is out again, or the next one to replay; doing so twice is harmless."""
    if not state.trainer_id or state.publishing is not None or state.phase in TERMINAL:
        return []
    if state.to_replay:
        return _replayed(state, state.steps[state.to_replay[0]])
    if (out := state.step_out) is not None:
        state.training = out.step
        return [*taking.parts_of(state, out)]
    return _end_if_done(state, now)


def _replayed(state: JobState, step: Step) -> list[Action]:
    if step.publish_version <= max(state.lineage.versions):  # the number of its earlier life
        _renumber(state, step)
    state.training = step.step
    return [*taking.parts_of(state, step)]


def state_published(state: JobState, event: StatePublished, now: float) -> list[Action]:
    if event.policy_version != state.publishing:
        # Where it is the current one, the weight node had lost its bytes and has them again.
        return swaps.prefetch_again(state) if event.policy_version == state.lineage.current else []
    state.publishing = None
    current = state.lineage.current
    parent = state.lineage.live_version_of_step(state.to_replay[0] - 1) if state.to_replay else current
    step = 0 if parent is None else state.lineage.versions[parent].step
    _renumber_step_out(state)
    return _committed(state, event.policy_version, parent, step, event.manifest_digest, event.total_bytes, now) + (
        continue_training(state, now)
    )


def _renumber_step_out(state: JobState) -> None:
    """A number that a lost trainer may have pushed bytes under is not used again."""
    for step in state.steps.values():
        if step.state is StepState.SAMPLED or step.step in state.to_replay:
            _renumber(state, step)


def _renumber(state: JobState, step: Step) -> None:
    step.publish_version = state.next_version
    state.next_version += 1
    state.store_step(step)


def _committed(
    state: JobState, version: int, parent: int | None, step: int, digest: str, total_bytes: int, now: float
) -> list[Action]:
    changed = state.lineage.commit(version, parent=parent, step=step, digest=digest, total_bytes=total_bytes)
    state.store_versions(changed)
    if not changed:
        return []
    if state.phase is Phase.STARTING:
        state.set_phase(Phase.RUNNING)
    state.marks["progress"] = now
    actions = swaps.begin(state, now)
    state.marks["progress"] = now
    data = {"policy_version": version, "step": step, "parent": parent}
    return [*actions, Announce("version.committed", data), *taking.evict(state, now)]


def step_finished(state: JobState, event: StepFinished, now: float) -> list[Action]:
    """The commit point of a step: the version, the step and its attempts change together."""
    step = state.steps.get(event.step)
    if step is None or state.training != event.step:
        return []  # a repeated answer, or one to a request from before the trainer was lost
    if not step.is_full(state.plan.groups) or event.batch_digest != step.batch_digest:
        raise StepMismatch(f"step {event.step}: trained {event.batch_digest}, sampled {step.batch_digest}")
    if event.publish_version != step.publish_version:
        return []
    is_replay = step.state is StepState.COMMITTED
    if is_replay:
        state.to_replay.remove(event.step)
        step.replays += 1
    parent, previous = state.lineage.current, state.marks.get("committed", now)
    state.training = None
    state.training_retries = 0
    step.published_version = event.publish_version
    step.metrics.update(event.metrics)
    step.seconds.update(event.seconds)
    if not is_replay:
        _end_step(state, step, now, previous)
    state.store_step(step)
    actions = _committed(state, event.publish_version, parent, step.step, event.manifest_digest, event.total_bytes, now)
    _forget_steps(state, event.checkpoint_step)
    return actions + evaluation.after_step(state, step.step, now) + continue_training(state, now)


def _end_step(state: JobState, step: Step, now: float, previous: float) -> None:
    step.state = StepState.COMMITTED
    step.committed_at = now
    step.seconds["train_wall"] = now - step.sampled_at
    step.seconds["step"] = now - previous
    state.step = step.step
    state.totals["last_commit"] = now
    for batch_group in step.groups:
        group = state.groups[batch_group.group_id]
        _close_taken(state, group, now)


def _close_taken(state: JobState, group: Group, now: float) -> None:
    for member in group.in_state(AttemptState.SAMPLED):
        state.move(member, AttemptState.TRAINED, now)
    state.forget_group(group, now)


def _forget_steps(state: JobState, checkpoint_step: int) -> None:
    """Batches are pinned from the last checkpoint on; older ones are never replayed."""
    state.checkpoint_step = max(state.checkpoint_step, checkpoint_step)
    for number in [n for n, s in state.steps.items() if n <= state.checkpoint_step and s.state is StepState.COMMITTED]:
        del state.steps[number]


def is_over(state: JobState) -> bool:
    """No further batch will be taken."""
    return state.step >= state.plan.max_steps or taking.has_ended(state)


def _end_if_done(state: JobState, now: float) -> list[Action]:
    """Past the last step, with evaluation over: release what still runs and close the trainer."""
    if state.phase is not Phase.RUNNING or not is_over(state) or state.evaluation or state.eval_due:
        return []
    if state.step == 0:
        return fail(state, "no_steps", f"no batch was ever filled; last loss: {state.last_error or 'none'}", now)
    if evaluation.final_is_due(state):
        state.eval_due.append(state.step)
        return []
    if "closing" in state.marks:
        return []
    state.marks["closing"] = now
    return [*release_all(state, now, "the job has ended"), CloseTraining(state.plan.export_path)]


def end_if_done(state: JobState, now: float) -> list[Action]:
    return _end_if_done(state, now) if state.trainer_id and not state.is_batch_out else []


def training_failed(state: JobState, event: TrainingFailed, now: float) -> list[Action]:
    """What may succeed later is asked for again, so many times without a commit between; anything else ends the job."""
    if not event.is_retryable or state.training_retries >= MAX_RETRIES or state.publishing is not None:
        return fail(state, event.code, event.detail, now)
    state.training_retries += 1
    data = {"code": event.code, "detail": event.detail, "retry": state.training_retries}
    return [Announce("trainer.retried", data), *continue_training(state, now)]


def training_closed(state: JobState, event: TrainingClosed) -> list[Action]:
    if state.phase is not Phase.RUNNING or "closing" not in state.marks:
        return []  # nobody asked: a trainer that stops by itself has not finished the job
    state.set_phase(Phase.SUCCEEDED, "all steps trained" if state.step >= state.plan.max_steps else "prompts ran out")
    return [_end(state)]


def release_all(state: JobState, now: float, reason: str) -> list[Action]:
    """Everything still in flight leaves as aborted."""
    actions: list[Action] = []
    for group in list(state.groups.values()):
        for member in group.live:
            actions += lose(state, member, AttemptState.ABORTED, now, reason)
        state.move_group(group, GroupState.DROPPED, now, f"aborted: {reason}")
    state.evaluation = None
    state.eval_due.clear()
    return actions


def fail(state: JobState, code: str, detail: str, now: float) -> list[Action]:
    """The job ends here, loudly, with its counts; the last checkpoint stays."""
    if state.phase in TERMINAL:
        return []
    actions = release_all(state, now, code)
    state.set_phase(Phase.FAILED, f"{code}: {detail}")
    return [*actions, _end(state)]


def cancel(state: JobState, reason: str, now: float) -> list[Action]:
    if state.phase in TERMINAL:
        return []
    if state.phase is not Phase.CANCELLING:
        state.set_phase(Phase.CANCELLING, reason)
    actions = release_all(state, now, reason)
    state.set_phase(Phase.CANCELLED, reason)
    return [*actions, _end(state)]


def _end(state: JobState) -> EndJob:
    state.is_ended = True
    return EndJob(state.phase.value, state.reason)
