"""Groups: refill, drop or shrink, redundancy and surplus, filters. Siblings are consumed together or not at all."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.jobs import ENV, TOOLS, Job, make_policy, of, running

from headrace.core.job import actions as do
from headrace.core.job.plan import TaskPlan
from headrace.core.job.rows import Attempt, Group
from headrace.core.ledger import AttemptState


def one_group(**fields: object) -> tuple[Job, Group]:
    """A job whose batch is one group; its first group."""
    values = {"groups": 1, "group_size": 4, "max_steps": 9, "policy": make_policy(alpha=0), **fields}
    job = running(**values)
    return job, job.groups[0]


def states(group: Group) -> list[str]:
    """Of every attempt ever issued, by sibling and try."""
    ordered = sorted(group.members.values(), key=lambda a: (a.sibling, a.key.attempt))
    return [attempt.state.value for attempt in ordered]


def live(group: Group, sibling: int) -> Attempt:
    return next(attempt for attempt in group.live if attempt.sibling == sibling)


class TestLife:
    def test_ready_when_all_members_are_scorable(self) -> None:
        job, group = one_group(groups=2)
        for sibling in range(3):
            job.finish(live(group, sibling))
            assert group.state == "open"
        job.finish(live(group, 3))
        assert group.state == "ready"

    def test_complete_when_all_have_finished_and_some_wait_for_their_reward(self) -> None:
        job, group = one_group(groups=2, tasks=(TOOLS,))
        for member in list(group.live):
            job.finish(member)
        assert group.state == "complete"
        for member in list(group.live):
            job.grade(member, 0.5)
        assert group.state == "ready"

    def test_a_refill_opens_a_complete_group_again(self) -> None:
        job, group = one_group(groups=2, tasks=(TOOLS,))
        for member in list(group.live):
            job.finish(member)
        job.grade(live(group, 0), None, fault="judge: no number in its reply")
        assert group.state == "open"
        assert states(group) == ["unscorable", "queued", "scoring", "scoring", "scoring"]
        job.finish(live(group, 0))
        assert group.state == "complete"

    def test_siblings_finish_in_any_order(self) -> None:
        job, group = one_group(groups=2)
        for sibling in (3, 1, 0, 2):
            job.finish(live(group, sibling))
        assert group.state == "ready"


class TestRefill:
    @pytest.mark.parametrize("kind", ["env", "infra"])
    def test_a_lost_member_is_issued_again_with_the_same_environment_seed(self, kind: str) -> None:
        job, group = one_group()
        lost = live(group, 2)
        first = next(a for a in of(job.log, do.AssignAttempt) if a.key == lost.key)
        (again,) = of(job.fail(lost, kind), do.AssignAttempt)
        assert again.key == (lost.key.trajectory_id, 2)
        assert (again.env_seed, again.sibling, again.group_id) == (first.env_seed, 2, group.id)
        assert again.sampling_seed != first.sampling_seed
        assert lost.state.value == f"failed_{kind}"
        assert live(group, 2).kind == "refill"
        assert job.state.counters["refills"] == 1

    def test_the_loss_keeps_its_cause(self) -> None:
        job, group = one_group()
        lost = live(group, 0)
        job.fail(lost, "env", "reset_failed", detail="image missing", n_generated_tokens=5, discarded_tokens=3)
        assert lost.reason == "reset_failed: image missing"
        assert lost.fault == {"kind": "env", "code": "reset_failed", "detail": "image missing"}
        assert job.state.ledger.tokens["train", "lake", "failed_env"] == 5
        assert job.state.ledger.discarded_tokens == 3
        (line,) = job.announced("attempt.lost")
        assert line.data["state"] == "failed_env"
        assert line.data["reason"] == "reset_failed: image missing"

    def test_a_failed_process_is_not_told_to_stop(self) -> None:
        job, group = one_group()
        assert not of(job.fail(live(group, 0)), do.AbortAttempt)

    def test_a_flake_costs_one_attempt_and_no_sibling(self) -> None:
        job, group = one_group()
        job.fail(live(group, 2), code="reset_failed")
        job.finish_group(group, [1, 0, 1, 0])
        assert job.counts() == {"failed_env": 1, "sampled": 4}
        assert len(job.train_step.groups[0].members) == 4

    def test_three_tries_then_the_group_is_dropped_with_the_cause(self) -> None:
        job, group = one_group()
        for _ in range(3):
            job.fail(live(group, 2), code="reset_failed")
        assert group.state == "dropped"
        assert group.reason == "group_dropped: failed_env: reset_failed: scripted"
        assert states(group) == ["group_dropped"] * 2 + ["failed_env"] * 3 + ["group_dropped"]

    def test_no_reward_is_invented_for_a_lost_member(self) -> None:
        job, group = one_group()
        for _ in range(3):
            job.fail(live(group, 2))
        assert [a.reward for a in job.rows.values() if a.state.value == "failed_env"] == [None] * 3

    def test_healthy_members_of_a_dropped_group_are_stopped_and_named(self) -> None:
        job, group = one_group(limits={"max_attempts": 1})
        healthy = live(group, 1)
        finished = live(group, 3)
        job.finish(finished)
        actions = job.fail(live(group, 0))
        assert {a.key.trajectory_id[-3:] for a in of(actions, do.AbortAttempt)} == {"001", "002"}
        assert {a.reason for a in of(actions, do.AbortAttempt)} == {"group_dropped"}
        assert healthy.state.value == finished.state.value == "group_dropped"
        assert finished.reward == 1.0  # the row keeps what it had
        assert job.announced("group.dropped")[-1].data["detail"] == "failed_env: step_timeout: scripted"

    def test_a_dropped_group_frees_its_slots(self) -> None:
        job, group = one_group(limits={"max_attempts": 1}, slots=4)
        actions = job.fail(live(group, 0))
        assert len(of(actions, do.AssignAttempt)) == 4
        assert len(job.state.envs[ENV].assigned) == 4

    def test_a_prompt_that_always_fails_is_not_issued_again(self) -> None:
        job, group = one_group(limits={"max_attempts": 2}, tasks=(TaskPlan("lake", n_prompts=3),))
        for _ in range(2):
            job.fail(live(group, 0))
        assert job.state.requeues == []
        assert job.groups[0].env_seed != group.env_seed

    def test_late_refills_of_several_siblings(self) -> None:
        job, group = one_group()
        for sibling in (0, 1, 3):
            job.fail(live(group, sibling))
        assert sorted(a.sibling for a in group.live) == [0, 1, 2, 3]
        assert sorted(a.key.attempt for a in group.live) == [1, 2, 2, 2]

    def test_expected_attempts_per_group_at_p_0_1(self) -> None:
        """Refilling single members needs 4 / 0.9 attempts a group; 1 - 0.9^4 of the groups would else be made anew."""
        job, _ = one_group(max_steps=400, limits={"max_attempts": 9})
        n_failed = n_done = 0
        while job.state.step < 100:
            attempt = job.generating[0]
            n_done += 1
            if n_done % 10 == 0:
                n_failed += 1
                job.fail(attempt)
            else:
                job.finish(attempt)
            if job.state.training is not None:
                job.commit()
                job.load()
        assert job.counts()["trained"] == 400
        assert "group_dropped" not in job.counts()
        assert n_done / 100 == pytest.approx(4 / 0.9, rel=0.01)


class TestShrink:
    def test_a_group_short_of_members_goes_on_with_those_it_has(self) -> None:
        job, group = one_group(on_short="shrink", limits={"max_attempts": 1})
        job.fail(live(group, 0))
        assert group.state == "open"
        for sibling in (1, 2, 3):
            job.finish(live(group, sibling))
        assert [m.sibling for m in job.train_step.groups[0].members] == [1, 2, 3]

    def test_refills_come_before_shrinking(self) -> None:
        job, group = one_group(on_short="shrink", limits={"max_attempts": 2})
        job.fail(live(group, 0))
        assert len(group.live) == 4
        job.fail(live(group, 0))
        assert len(group.live) == 3

    def test_the_last_loss_can_make_the_group_ready(self) -> None:
        job, group = one_group(on_short="shrink", limits={"max_attempts": 1}, groups=2)
        for sibling in (1, 2, 3):
            job.finish(live(group, sibling))
        assert group.state == "open"
        job.fail(live(group, 0))
        assert group.state == "ready"

    def test_one_member_is_no_group(self) -> None:
        """A single scorable member has no baseline: the judge answered for one of four."""
        job, group = one_group(on_short="shrink", tasks=(TOOLS,), limits={"max_attempts": 1})
        for member in list(group.live):
            job.finish(member)
        job.grade(live(group, 0), 0.8)
        for sibling in (1, 2, 3):
            member = live(group, sibling) if group.live else None
            if member is not None and member.state is AttemptState.SCORING:
                job.grade(member, None, fault="judge: cannot say")
        assert group.state == "dropped"
        assert states(group) == ["group_dropped", "unscorable", "unscorable", "unscorable"]
        assert [job.rows[key].reward for key in group.members] == [0.8, None, None, None]
        assert job.state.training is None

    def test_two_members_are(self) -> None:
        job, group = one_group(on_short="shrink", limits={"max_attempts": 1})
        for sibling in (0, 1):
            job.fail(live(group, sibling))
        for sibling in (2, 3):
            job.finish(live(group, sibling))
        assert len(job.train_step.groups[0].members) == 2

    def test_drop_takes_the_whole_group_instead(self) -> None:
        job, group = one_group(on_short="drop", limits={"max_attempts": 1})
        job.fail(live(group, 0))
        assert group.state == "dropped"


class TestRedundancy:
    """k = 6 are issued for a group of 4."""

    def redundant(self, **fields: object) -> tuple[Job, Group]:
        return one_group(redundancy="1.5", **fields)

    def test_k_are_issued_and_named(self) -> None:
        _, group = self.redundant()
        assert [a.kind for a in sorted(group.live, key=lambda a: a.sibling)] == ["first"] * 4 + ["redundant"] * 2

    def test_the_rest_leave_as_surplus_when_four_are_scorable(self) -> None:
        job, group = self.redundant()
        for sibling in (5, 0, 2):
            job.finish(live(group, sibling))
        actions = job.finish(live(group, 4))
        assert {a.key.trajectory_id[-3:] for a in of(actions, do.AbortAttempt)} == {"001", "003"}
        assert {a.reason for a in of(actions, do.AbortAttempt)} == {"surplus"}
        assert job.counts() == {"sampled": 4, "surplus": 2}
        assert [m.sibling for m in job.train_step.groups[0].members] == [0, 2, 4, 5]

    def test_losses_within_the_redundancy_are_not_refilled(self) -> None:
        job, group = self.redundant()
        for sibling in (0, 1):
            job.fail(live(group, sibling))
        assert len(group.live) == 4
        assert job.state.counters["refills"] == 0
        job.fail(live(group, 2))
        assert len(group.live) == 4
        assert job.state.counters["refills"] == 1

    def test_ties_go_by_finish_time_then_index(self) -> None:
        job, group = self.redundant(tasks=(TOOLS,))
        for sibling in (4, 3, 5, 0, 1, 2):
            job.now += 1.0
            job.finish(live(group, sibling))
        for sibling in (2, 1, 0):
            job.grade(live(group, sibling))
        job.grade(live(group, 5))
        assert [m.sibling for m in job.train_step.groups[0].members] == [0, 1, 2, 5]

    def test_a_slow_judge_does_not_hold_the_step(self) -> None:
        job, group = self.redundant(tasks=(TOOLS,))
        for member in list(group.live):
            job.finish(member)
        slow = live(group, 0)
        for sibling in (1, 2, 3, 4):
            job.grade(live(group, sibling))
        assert job.state.training == 1
        assert slow.state is AttemptState.SURPLUS
        before = job.counts()
        assert job.grade(slow, 0.9) == []  # a minute later
        assert job.counts() == before

    def test_surplus_keeps_what_was_known_of_it(self) -> None:
        job, group = self.redundant(tasks=(TOOLS,))
        late = live(group, 5)
        job.start(late)
        for sibling in range(4):
            job.finish(live(group, sibling))
            job.grade(live(group, sibling))
        assert (late.state.value, late.start_version, late.finished_at) == ("surplus", 0, None)
        assert late.reason == "group had enough members"

    def test_surplus_is_not_a_failure_and_not_refilled(self) -> None:
        job, group = self.redundant()
        for sibling in range(4):
            job.finish(live(group, sibling))
        assert job.state.counters["refills"] == 0
        assert job.state.failed_in_a_row == 0


class TestFilter:
    def filtering(self, **fields: object) -> Job:
        values = {"groups": 2, "max_steps": 9, "filter": "zero_variance", "policy": make_policy(alpha=0), **fields}
        return running(**values)

    def test_equal_rewards_count_by_default(self) -> None:
        job = running(policy=make_policy(alpha=0))
        for group in job.groups:
            job.finish_group(group, (1.0, 1.0))
        assert job.state.training == 1

    def test_a_group_of_equal_rewards_leaves_as_filtered_and_is_replaced(self) -> None:
        job = self.filtering()
        group = job.groups[0]
        job.finish_group(group, (1.0, 1.0))
        assert (group.state.value, group.reason) == ("dropped", "filtered: zero variance")
        assert job.counts() == {"filtered": 2, "queued": 4}
        assert job.state.requeues == []

    def test_the_batch_is_full_size_after_the_filter(self) -> None:
        """Four groups of four, one without variance: sixteen informative members are trained."""
        job = self.filtering(groups=4, group_size=4)
        job.finish_group(job.groups[0], [1.0] * 4)
        for group in job.groups:
            job.finish_group(group, [1.0, 0.0, 0.0, 1.0])
        assert sum(len(group.members) for group in job.train_step.groups) == 16
        assert job.counts() == {"filtered": 4, "sampled": 16}

    def test_no_signal_at_all_does_not_generate_for_ever(self) -> None:
        """An environment that always pays 1: after max_filtered * B = 8 groups the step is filled with such groups."""
        job = self.filtering(limits={"max_filtered": 4})
        n_finished = 0
        while job.state.training is None:
            job.finish_group(job.groups[0] if job.groups[0].state == "open" else job.groups[1], (1.0, 1.0))
            n_finished += 1
            assert n_finished <= 10
        assert n_finished == 10
        assert job.counts() == {"filtered": 16, "sampled": 4}
        assert job.state.counters["groups_dropped/filtered"] == 8

    def test_the_count_starts_anew_with_each_step(self) -> None:
        job = self.filtering(limits={"max_filtered": 1})
        for _ in range(2):
            job.finish_group(job.groups[0], (0.0, 0.0))
        assert job.state.filtered_since_step == 2
        job.finish_group(job.groups[0], (0.0, 0.0))
        job.finish_group(job.groups[1], (0.0, 0.0))
        job.commit()
        job.load()
        job.finish_group(job.groups[0], (0.0, 0.0))
        assert job.counts()["filtered"] == 6

    @pytest.mark.parametrize(("rewards", "is_kept"), [((0.5, 0.5 + 1e-9), False), ((0.5, 0.5001), True)])
    def test_a_hair_is_no_variance(self, rewards: tuple[float, float], is_kept: bool) -> None:
        job = self.filtering()
        group = job.groups[0]
        job.finish_group(group, rewards)
        assert (group.state == "ready") is is_kept


class TestConservation:
    @settings(max_examples=40)
    @given(
        st.integers(2, 4),
        st.sampled_from(["1", "1.25", "1.5", "2"]),
        st.sampled_from(["drop", "shrink"]),
        st.lists(
            st.tuples(st.integers(0, 30), st.sampled_from(["ok", "ok", "ok", "env", "infra", "empty"])), max_size=60
        ),
    )
    def test_groups_are_taken_whole_or_leave_whole(
        self, size: int, redundancy: str, on_short: str, outcomes: list[tuple[int, str]]
    ) -> None:
        job, _ = one_group(group_size=size, redundancy=redundancy, on_short=on_short, max_steps=99)
        for index, outcome in outcomes:
            attempt = job.generating[index % len(job.generating)] if job.generating else None
            if attempt is None:
                break
            if outcome == "ok":
                job.finish(attempt)
            elif outcome == "empty":
                job.finish(attempt, n_generated_tokens=0)
            else:
                job.fail(attempt, outcome)
            if job.state.training is not None:
                n = len(job.train_step.groups[0].members)
                assert n == size or (on_short == "shrink" and 2 <= n < size)
                job.commit()
                job.load()
        for group in job.all_groups.values():
            tries = [a.key.attempt for a in sorted(group.members.values(), key=lambda a: (a.sibling, a.key.attempt))]
            assert max(tries) <= job.plan.limits.max_attempts
            assert all(b in (1, a + 1) for a, b in pairwise(tries))
            if group.closed_at is not None:
                assert not any(a.is_in_flight for a in group.members.values())
