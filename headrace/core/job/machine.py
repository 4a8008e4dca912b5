"""The job machine: `handle(event, now) -> actions`, then whatever the new state allows, then `check()` on demand."""

from collections.abc import Iterable

from headrace.core.job import admission, evaluation, events, outcomes, pausing, swaps, taking, training
from headrace.core.job.actions import AcknowledgeAttempt, Action
from headrace.core.job.plan import JobPlan
from headrace.core.job.rows import GroupState
from headrace.core.job.state import TERMINAL, JobState, Phase
from headrace.core.ledger import AttemptState


class JobMachine:
    """Decides everything about one job. The shell passes events with the time and performs the actions returned."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self._checked: int | None = None  # the current version when its lineage was checked last

    @classmethod
    def fresh(cls, plan: JobPlan) -> "JobMachine":
        machine = cls(JobState(plan))
        evaluation.schedule_first(machine.state)
        return machine

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """One event, and whatever it makes possible."""
        return self.handle_all([event], now)

    def handle_all(self, arrived: Iterable[events.Event], now: float) -> list[Action]:
        """All events that wait, in order, then once whatever the new state allows.

        A job that has ended answers only with acknowledgements, so that late reporters can forget.
        """
        actions: list[Action] = []
        for event in arrived:
            actions += self._handle_late(event) if self.state.is_ended else self._dispatch(event, now)
        if not self.state.is_ended:
            actions += self._proceed(now)
        return actions

    def _handle_late(self, event: events.Event) -> list[Action]:
        match event:
            case events.AttemptFinished() | events.AttemptFailed():
                return [AcknowledgeAttempt(event.key, event.env_worker_id)]
            case _:
                return []

    def _dispatch(self, event: events.Event, now: float) -> list[Action]:
        state = self.state
        match event:
            case events.AttemptStarted():
                return outcomes.started(state, event, now)
            case events.AttemptFinished():
                return outcomes.finished(state, event, now)
            case events.AttemptFailed():
                return outcomes.failed(state, event, now)
            case events.RewardReported():
                return outcomes.rewarded(state, event, now)
            case events.EnvOpened():
                return outcomes.env_opened(state, event)
            case events.EnvLost():
                return outcomes.env_lost(state, event, now)
            case events.TimePassed():
                return self._time_passed(now)
            case _:
                return self._dispatch_training(event, now)

    def _dispatch_training(self, event: events.Event, now: float) -> list[Action]:
        state = self.state
        match event:
            case events.TrainerOpened():
                return training.trainer_opened(state, event, now)
            case events.TrainerLost():
                return training.trainer_lost(state, event)
            case events.StatePublished():
                return training.state_published(state, event, now)
            case events.StepFinished():
                return training.step_finished(state, event, now)
            case events.TrainingFailed():
                return training.training_failed(state, event, now)
            case events.TrainingClosed():
                return training.training_closed(state, event)
            case _:
                return self._dispatch_rollout(event, now)

    def _dispatch_rollout(self, event: events.Event, now: float) -> list[Action]:
        state = self.state
        match event:
            case events.WorkersChanged():
                return swaps.workers_changed(state, event)
            case events.WorkerReported():
                return swaps.reported(state, event)
            case events.WeightsPrefetched():
                return swaps.prefetched(state, event)
            case events.WeightsUpdated():
                return swaps.updated(state, event, now)
            case events.ProxyOpened():
                return swaps.proxy_opened(state, event)
            case events.PauseRequested():
                return pausing.pause(state, now)
            case events.ResumeRequested():
                return pausing.resume(state, now)
            case events.CancelRequested(reason):
                return training.cancel(state, reason, now)
            case _:
                return []

    def _proceed(self, now: float) -> list[Action]:
        """Whatever the new state allows, in the order of a step: evict, swap, take, evaluate, admit, end."""
        state = self.state
        if state.phase in TERMINAL:
            return []
        actions = taking.evict(state, now)
        actions += swaps.advance(state, now, can_fill=self._can_fill(now))
        actions += taking.take(state, now)
        actions += outcomes.score_waiting(state, now)
        actions += evaluation.start(state, now)
        actions += admission.admit(state, now)
        actions += pausing.settle(state)
        actions += self._give_up(now)
        actions += training.end_if_done(state, now)
        return actions

    def _can_fill(self, now: float) -> bool:
        """Whether workers may load in RollArt's order; past the last batch they load for the evaluation at the end."""
        state = self.state
        if state.plan.policy.load_at != "get_batch":
            return False
        return training.is_over(state) or taking.can_fill(state, now)

    def _give_up(self, now: float) -> list[Action]:
        state = self.state
        if state.failed_in_a_row < state.plan.limits.max_failed_groups:
            return []
        detail = f"{state.failed_in_a_row} groups in a row were dropped, the last one with: {state.last_error}"
        return training.fail(state, "groups_failing", detail, now)

    def _time_passed(self, now: float) -> list[Action]:
        state = self.state
        actions = pausing.expire(state, now)
        actions += outcomes.expire(state, now)
        actions += evaluation.expire(state, now)
        return actions + (self._expire_job(now) or self._expire_step(now))

    def _expire_job(self, now: float) -> list[Action]:
        state, limit = self.state, self.state.plan.limits.job_s
        paused_s = state.totals.get("paused_s", 0.0) + pausing.paused_for(state, now)
        run_s = now - state.totals.setdefault("started", now) - paused_s
        if run_s <= limit:
            return []
        detail = f"ran for {run_s:.0f} s (limit {limit:.0f} s), step {state.step} of {state.plan.max_steps}"
        return training.fail(state, "job_timeout", detail, now)

    def _expire_step(self, now: float) -> list[Action]:
        state = self.state
        if state.phase in (Phase.PAUSED, Phase.PAUSING) or state.evaluation is not None:
            state.marks["progress"] = now
            return []
        is_starting = state.phase is Phase.STARTING
        limit = state.plan.limits.start_s if is_starting else state.plan.limits.step_s
        idle = now - state.marks.setdefault("progress", now)
        if idle <= limit:
            return []
        waiting = {s.value: len(state.train_groups(s)) for s in GroupState if state.train_groups(s)}
        detail = f"no step for {idle:.0f} s (limit {limit:.0f} s); groups {waiting}, losses {dict(state.counters)}"
        return training.fail(state, "start_timeout" if is_starting else "step_timeout", detail, now)

    # -- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError when an invariant is broken."""
        state = self.state
        if state.lineage.current != self._checked:  # it changes with that alone, and grows with the job
            state.lineage.check()
            self._checked = state.lineage.current
        state.ledger.check([(a.purpose, a.task) for a in state.in_flight])
        assert state.counters["max_trained_lag"] <= (
            state.plan.policy.alpha if state.plan.policy.alpha is not None else state.counters["max_trained_lag"]
        )
        for group in state.groups.values():
            self._check_group(group.id)
        for key in state.unassigned:
            assert state.attempts[key].state is AttemptState.QUEUED and not state.attempts[key].env_worker_id, key
        for env in state.envs.values():
            assert len(env.assigned) <= env.slots, env
        assert sum(len(env.assigned) for env in state.envs.values()) <= state.plan.env_slots
        assert sum(1 for step in state.steps.values() if step.state == "sampled") <= 1

    def _check_group(self, group_id: str) -> None:
        group = self.state.groups[group_id]
        for key, member in group.members.items():
            assert key == member.key and member.group_id == group.id
        siblings = [member.sibling for member in group.live]
        assert len(siblings) == len(set(siblings)), f"{group_id}: two live attempts of one sibling"
        if group.state is GroupState.READY:
            assert {m.state for m in group.live} == {AttemptState.READY}, group_id
        if group.state is GroupState.TAKEN:
            assert {m.state for m in group.live} == {AttemptState.SAMPLED}, group_id
        if group.state in (GroupState.OPEN, GroupState.COMPLETE):
            assert group.live, f"{group_id} is {group.state} with no live member"
