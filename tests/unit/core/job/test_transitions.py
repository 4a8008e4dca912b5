"""The tables of attempts, groups and phases: what is not in them is an error that tells the story."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.jobs import Job, make_plan, opened, running

from headrace.core.job.rows import GROUP_TRANSITIONS, Group, GroupState
from headrace.core.job.state import PHASE_TRANSITIONS, TERMINAL, IllegalTransition, JobState, Phase
from headrace.core.ledger import EXITS, IN_FLIGHT, TRANSITIONS, USED, AttemptState


@pytest.mark.parametrize("before", AttemptState)
def test_attempts_move_along_the_table_only(before: AttemptState) -> None:
    for after in AttemptState:
        job = running(groups=1)
        attempt = job.generating[0]
        attempt.state = before
        if after in TRANSITIONS.get(before, frozenset()):
            job.state.move(attempt, after, 5.0, "why")
            assert (attempt.state, attempt.reason) == (after, "why")
            assert attempt.closed_at == (5.0 if after in USED | EXITS else None)
        else:
            with pytest.raises(IllegalTransition, match=f"cannot go from {before} to {after}"):
                job.state.move(attempt, after, 5.0)
            assert attempt.state is before


@pytest.mark.parametrize("before", GroupState)
def test_groups_move_along_the_table_only(before: GroupState) -> None:
    for after in GroupState:
        job = running(groups=1)
        group = job.groups[0]
        group.state = before
        if after in GROUP_TRANSITIONS.get(before, frozenset()):
            job.state.move_group(group, after, 5.0, "why")
            assert (group.state, group.reason) == (after, "why")
            assert (group.id in job.state.groups) is (after not in (GroupState.DROPPED, GroupState.EVALUATED))
        else:
            with pytest.raises(IllegalTransition, match=f"group {group.id} cannot go from {before} to {after}"):
                job.state.move_group(group, after, 5.0)
            assert group.state is before


@pytest.mark.parametrize("before", Phase)
def test_phases_move_along_the_table_only(before: Phase) -> None:
    for after in set(Phase) - {before}:
        state = JobState(make_plan(), phase=before)
        if after in PHASE_TRANSITIONS[before]:
            state.set_phase(after, "why")
            assert (state.phase, state.reason) == (after, "why")
        else:
            with pytest.raises(IllegalTransition, match=f"job job_t cannot go from {before} to {after}"):
                state.set_phase(after, "why")
            assert state.phase is before


def test_a_phase_may_be_set_again() -> None:
    state = JobState(make_plan(), phase=Phase.RUNNING, reason="first")
    state.set_phase(Phase.RUNNING, "second")
    assert state.reason == "first"


def test_the_last_phases_lead_nowhere_and_are_reached() -> None:
    assert {phase for phase, targets in PHASE_TRANSITIONS.items() if not targets} == TERMINAL
    for phase in Phase:
        assert phase in TERMINAL or PHASE_TRANSITIONS[phase] & (TERMINAL | {Phase.CANCELLING})


def test_the_error_of_an_attempt_tells_its_story() -> None:
    job = running()
    attempt = job.generating[0]
    job.now = 3.0
    job.start(attempt)
    with pytest.raises(IllegalTransition) as told:
        job.state.move(attempt, AttemptState.TRAINED, 4.0)
    story = str(told.value)
    for part in (attempt.key.trajectory_id, attempt.group_id, "lake", "issued 0.0", "started 3.0 under 0"):
        assert part in story


def test_the_error_of_a_group_names_its_members() -> None:
    job = running()
    group = job.groups[0]
    with pytest.raises(IllegalTransition, match=r"members .*'queued'"):
        job.state.move_group(group, GroupState.TAKEN, 1.0)


def test_a_closed_attempt_is_counted_with_its_tokens() -> None:
    job = running()
    attempt = job.generating[0]
    attempt.n_generated_tokens = 11
    job.state.move(attempt, AttemptState.ABORTED, 1.0)
    assert job.state.ledger.closed["train", "lake", "aborted"] == 1
    assert job.state.ledger.tokens["train", "lake", "aborted"] == 11


def test_ready_groups_are_numbered_in_the_order_of_their_arrival() -> None:
    job = running()
    first, second = job.groups[:2]
    job.finish_group(second)
    job.finish_group(first)
    assert (second.ready_order, first.ready_order) == (0, 1)


class TestChanges:
    """Rows to be written are named once, by the turn that changed them."""

    def test_a_second_call_has_nothing(self) -> None:
        job = Job(make_plan())
        state = job.machine.state
        state.add_group(Group("grp_1", 0, "train", "lake", 1, 0, 0.0))
        assert [group.id for group in state.changes().groups] == ["grp_1"]
        again = state.changes()
        assert not (again.groups or again.attempts or again.versions or again.steps or again.finished)

    def test_a_finished_episode_brings_its_segments(self) -> None:
        job = running()
        attempt = job.generating[0]
        job.machine.handle(job.finished(attempt), job.now)
        changes = job.state.changes()
        assert changes.finished == [attempt]
        assert attempt in changes.attempts

    def test_a_closed_group_is_still_written(self) -> None:
        job = running(limits={"max_attempts": 1})
        group = job.groups[0]
        job.fail(group.live[0])
        assert group.id not in job.state.groups
        assert job.store.groups[group.id].state is GroupState.DROPPED
        assert job.store.groups[group.id].closed_at == 0.0

    def test_abandoned_versions_are_written(self) -> None:
        job = running()
        job.finish_all()
        job.commit()
        job.lose_trainer(restored_at=0)
        job.publish()
        assert {n: v.state.value for n, v in job.store.versions.items()}[1] == "abandoned"


class TestCheck:
    """`check()` finds a machine that has gone wrong."""

    def broken(self) -> Job:
        return running(n_workers=1)

    def test_two_live_attempts_of_one_sibling(self) -> None:
        job = self.broken()
        first, second = job.groups[0].live[:2]
        second.sibling = first.sibling
        with pytest.raises(AssertionError, match="two live attempts"):
            job.machine.check()

    def test_a_ready_group_with_a_running_member(self) -> None:
        job = self.broken()
        group = job.groups[0]
        job.finish_group(group)
        group.live[0].state = AttemptState.RUNNING
        with pytest.raises(AssertionError):
            job.machine.check()

    def test_an_open_group_without_members(self) -> None:
        job = self.broken()
        for attempt in job.groups[0].live:
            job.state.move(attempt, AttemptState.ABORTED, 0.0)
        with pytest.raises(AssertionError, match="no live member"):
            job.machine.check()

    def test_an_attempt_that_left_without_a_name(self) -> None:
        job = self.broken()
        del job.state.attempts[job.generating[0].key]
        with pytest.raises(AssertionError, match="issued"):
            job.machine.check()

    def test_a_lag_past_alpha(self) -> None:
        job = self.broken()
        job.state.counters["max_trained_lag"] = 2
        with pytest.raises(AssertionError):
            job.machine.check()

    def test_more_episodes_than_slots(self) -> None:
        job = self.broken()
        next(iter(job.state.envs.values())).slots = 1
        with pytest.raises(AssertionError):
            job.machine.check()


@given(st.sampled_from(sorted(IN_FLIGHT)), st.lists(st.sampled_from(list(AttemptState)), max_size=8))
def test_an_attempt_is_closed_at_most_once(first: AttemptState, wanted: list[AttemptState]) -> None:
    """Whatever is tried after its end, the ledger has it once."""
    job = opened()
    job.publish()
    job.load()
    attempt = job.generating[0]
    attempt.state = first
    for state in wanted:
        if state in TRANSITIONS.get(attempt.state, frozenset()):
            job.state.move(attempt, state, 1.0)
    closings = sum(n for (_, _, name), n in job.state.ledger.closed.items() if name != "rolled_back")
    assert closings == (0 if attempt.is_in_flight else 1)
