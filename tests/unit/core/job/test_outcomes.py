"""What is reported about attempts: stored once, acknowledged always, scored by whoever is to score."""

from math import inf, nan

import pytest
from testkit.jobs import ENV, LAKE, TOOLS, Job, make_policy, of, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import TaskPlan
from headrace.core.job.rows import Attempt, Key, SegmentRow
from headrace.core.ledger import AttemptState

TWO_GRADERS = TaskPlan("tools", reward_names=("exact", "style"), reward_weights=(1.0, 0.25), has_env_reward=False)
BOTH = TaskPlan("both", reward_names=("grade",), reward_weights=(2.0,), env_reward_weight=0.5)


def first(job: Job) -> Attempt:
    return job.members(job.groups[0])[0]


def lost(job: Job) -> list[tuple[str, str]]:
    return [(str(line.data["state"]), str(line.data["reason"])) for line in job.announced("attempt.lost")]


class TestStart:
    def test_a_started_attempt_has_its_version_and_time(self) -> None:
        job = running()
        attempt = first(job)
        job.now = 4.0
        job.start(attempt)
        assert (attempt.state, attempt.start_version, attempt.started_at) == (AttemptState.RUNNING, 0, 4.0)

    def test_it_starts_once(self) -> None:
        job = running()
        attempt = first(job)
        job.start(attempt)
        job.now = 9.0
        job.start(attempt, version=7)
        assert (attempt.start_version, attempt.started_at) == (0, 0.0)

    def test_unknown_attempts_do_not_start(self) -> None:
        job = running()
        assert job.tell(did.AttemptStarted(Key("trj_x", 1), 0)) == []


class TestFinish:
    def test_the_row_has_all_that_was_reported(self) -> None:
        job = running(groups=3)
        attempt = first(job)
        segments = (SegmentRow(0, "inference-0@a", "digest-0", 5), SegmentRow(1, "inference-1@a", "digest-1", 3))
        job.now = 6.0
        job.finish(
            attempt, 0.5, segments=segments, n_turns=3, finish_reason="max_turns", is_truncated=True,
            phases={"generate": 2.0}, discarded_tokens=4, reward_components={"goal": 0.5},
        )  # fmt: skip
        assert (attempt.token_blob, attempt.grading_blob) == (f"tokens-{attempt.key.trajectory_id}", "grading")
        assert (attempt.n_tokens, attempt.n_generated_tokens, attempt.n_turns) == (12, 8, 3)
        assert (attempt.finish_reason, attempt.is_truncated) == ("max_turns", True)
        assert (attempt.finished_at, attempt.finish_version, attempt.start_version) == (6.0, 0, 0)
        assert attempt.segments == segments
        assert attempt.reward_components == {"goal": 0.5}
        assert job.state.ledger.discarded_tokens == 4

    def test_the_start_is_the_version_of_the_first_kept_token(self) -> None:
        """A fragment that was discarded at a load does not count: the first segment that came back does."""
        job = running(policy=make_policy(alpha=2), max_steps=9)
        job.finish_all()
        job.commit()
        job.load()
        attempt = next(a for a in job.generating)
        job.start(attempt, version=0)
        job.finish(attempt, segments=(SegmentRow(1, "inference-0@a", "digest-1", 8),))
        assert attempt.start_version == 1

    def test_it_is_acknowledged_to_the_process_that_sent_it(self) -> None:
        job = running()
        attempt = first(job)
        assert of(job.finish(attempt), do.AcknowledgeAttempt) == [do.AcknowledgeAttempt(attempt.key, ENV)]

    def test_the_second_report_changes_nothing_and_is_acknowledged(self) -> None:
        job = running()
        attempt = first(job)
        job.finish(attempt, 1.0)
        assert job.finish(attempt, 0.0, n_tokens=99) == [do.AcknowledgeAttempt(attempt.key, ENV)]
        assert (attempt.reward, attempt.n_tokens) == (1.0, 12)

    def test_a_report_of_an_older_attempt_changes_nothing(self) -> None:
        job = running()
        attempt = first(job)
        job.fail(attempt, "infra")
        before = job.counts()
        assert of(job.finish(attempt), do.AcknowledgeAttempt)
        assert job.counts() == before

    def test_an_unknown_report_is_acknowledged_and_nothing_else(self) -> None:
        job = running()
        event = job.finished(first(job), 1.0)
        stranger = Key("trj_stranger", 1)
        ghost = did.AttemptFailed(stranger, "env", "x", "y", env_worker_id=ENV)
        assert job.tell(ghost) == [do.AcknowledgeAttempt(stranger, ENV)]
        assert event.key != stranger

    def test_completed_never_passes_issued(self) -> None:
        job = running()
        for attempt in list(job.state.attempts.values()):
            for _ in range(3):
                job.finish(attempt)
        assert sum(job.counts().values()) == sum(job.state.ledger.issued.values())

    def test_a_start_that_was_lost_does_not_matter(self) -> None:
        job = running()
        attempt = first(job)
        assert attempt.state is AttemptState.QUEUED
        job.finish(attempt)
        assert attempt.state is AttemptState.READY


class TestNoReward:
    """A reward is never invented."""

    @pytest.mark.parametrize("reward", [None, nan, inf, -inf])
    def test_an_environment_without_a_number_is_unscorable(self, reward: float | None) -> None:
        job = running()
        attempt = first(job)
        job.finish(attempt, reward)
        assert (attempt.state.value, attempt.reward) == ("unscorable", None)
        assert lost(job) == [("unscorable", "the environment gave no reward")]
        assert job.members(job.groups[0])[1].kind == "refill"

    def test_an_empty_response_carries_no_reward_into_its_group(self) -> None:
        """Rewards 10 for no token, 0 and 0: the siblings stay at 0 and the empty one is made again."""
        job = running(group_size=3, groups=1, policy=make_policy(alpha=0))
        group = job.groups[0]
        members = job.members(group)
        job.finish(members[0], 10.0, n_generated_tokens=0, segments=())
        job.finish(members[1], 0.0)
        job.finish(members[2], 0.0)
        assert lost(job) == [("unscorable", "empty: no token was generated")]
        job.finish(next(a for a in group.live if a.kind == "refill"), 0.0)
        assert [m.reward for m in job.train_step.groups[0].members] == [0.0, 0.0, 0.0]

    def test_tokens_without_a_version_are_not_trained(self) -> None:
        job = running()
        attempt = first(job)
        job.finish(attempt, 1.0, segments=())
        assert lost(job) == [("unscorable", "its tokens name no policy version")]

    def test_zero_is_a_reward(self) -> None:
        job = running()
        attempt = first(job)
        job.finish(attempt, 0.0)
        assert (attempt.state.value, attempt.reward) == ("ready", 0.0)

    def test_truncated_episodes_are_scored_and_flagged(self) -> None:
        job = running(groups=1, policy=make_policy(alpha=0))
        group = job.groups[0]
        one, two = job.members(group)
        job.finish(one, 0.0, is_truncated=True, finish_reason="context")
        job.finish(two, 1.0)
        assert [m.is_truncated for m in job.train_step.groups[0].members] == [True, False]


class TestGraders:
    def graded(self, task: TaskPlan = TOOLS, **fields: object) -> tuple[Job, Attempt]:
        job = running(tasks=(task,), **fields)
        return job, first(job)

    def test_rewards_are_asked_for_when_the_episode_ends(self) -> None:
        job, attempt = self.graded(TWO_GRADERS)
        (asked,) = of(job.finish(attempt), do.ScoreAttempt)
        assert asked == do.ScoreAttempt(attempt.key, "tools", ("exact", "style"), "grading", 1)
        assert attempt.state is AttemptState.SCORING

    def test_the_reward_is_the_weighted_sum(self) -> None:
        job, attempt = self.graded(TWO_GRADERS)
        job.finish(attempt)
        job.grade(attempt, 1.0, "exact", components={"digits": 0.5})
        assert attempt.state is AttemptState.SCORING
        job.grade(attempt, 0.8, "style")
        assert attempt.state is AttemptState.READY
        assert attempt.reward == pytest.approx(1.0 + 0.25 * 0.8)
        assert attempt.reward_components == {"exact": 1.0, "exact/digits": 0.5, "style": 0.8}

    def test_the_environment_and_a_grader_add_up(self) -> None:
        job, attempt = self.graded(BOTH)
        job.finish(attempt, 1.0)
        job.grade(attempt, 0.5)
        assert attempt.reward == pytest.approx(0.5 * 1.0 + 2.0 * 0.5)

    def test_the_first_report_of_a_reward_wins(self) -> None:
        """A grader that was run twice: one value, two members of two, one delivery."""
        job, _ = self.graded(TWO_GRADERS, groups=1, policy=make_policy(alpha=0))
        group = job.groups[0]
        one, two = job.members(group)
        job.finish(one, None)
        job.finish(two, None)
        for attempt in (one, two):
            job.grade(attempt, 0.5, "exact")
            job.grade(attempt, 1.0, "exact")  # delivered again
            job.grade(attempt, 0.0, "style")
            job.grade(attempt, 1.0, "style")
        assert [m.reward for m in job.train_step.groups[0].members] == [0.5, 0.5]
        assert len(of(job.log, do.TrainStep)) == 1

    def test_a_reward_that_was_not_asked_for_is_ignored(self) -> None:
        job, attempt = self.graded()
        job.finish(attempt)
        assert job.grade(attempt, 1.0, "stranger") == []
        assert attempt.state is AttemptState.SCORING

    def test_a_reward_before_the_end_of_the_episode_is_ignored(self) -> None:
        job, attempt = self.graded()
        job.start(attempt)
        assert job.grade(attempt, 1.0) == []
        assert attempt.reward is None

    @pytest.mark.parametrize("score", [None, nan, inf])
    def test_no_number_is_unscorable(self, score: float | None) -> None:
        job, attempt = self.graded()
        job.finish(attempt)
        job.grade(attempt, score, fault="judge: cannot say")
        assert lost(job) == [("unscorable", "reward grade: judge: cannot say")]

    def test_an_abstention_is_told_as_one(self) -> None:
        job, attempt = self.graded()
        job.finish(attempt)
        job.grade(attempt, None)
        assert lost(job) == [("unscorable", "reward grade: abstained")]

    @pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
    def test_an_abstention_beside_a_score_adds_nothing(self, order: tuple[str, str]) -> None:
        task = TaskPlan("tools", reward_names=("a", "b"), reward_weights=(1, 2), has_env_reward=False)
        job, attempt = self.graded(task)
        job.finish(attempt)
        for name in order:
            job.grade(attempt, 0.5 if name == "b" else None, name)
        assert (attempt.state, attempt.reward) == (AttemptState.READY, 1.0)
        assert attempt.reward_components == {"b": 0.5}

    def test_rewards_that_all_abstain_leave_no_zero(self) -> None:
        task = TaskPlan("tools", reward_names=("a", "b"), reward_weights=(1, 2), has_env_reward=False)
        job, attempt = self.graded(task)
        job.finish(attempt)
        job.grade(attempt, None, "a")
        assert attempt.state is AttemptState.SCORING
        job.grade(attempt, None, "b")
        assert lost(job) == [("unscorable", "reward b: abstained")]

    def test_one_of_three_rewards_fails_and_the_others_stay_in_the_row(self) -> None:
        task = TaskPlan("tools", reward_names=("a", "b", "c"), reward_weights=(1, 1, 1), has_env_reward=False)
        job, attempt = self.graded(task)
        job.finish(attempt)
        job.grade(attempt, 1.0, "a")
        job.grade(attempt, 0.5, "c")
        job.grade(attempt, None, "b", fault="raised: ZeroDivisionError")
        assert attempt.reward_components == {"a": 1.0, "c": 0.5}
        assert lost(job) == [("unscorable", "reward b: raised: ZeroDivisionError")]

    def test_a_retryable_fault_is_tried_again(self) -> None:
        job, attempt = self.graded()
        job.finish(attempt)
        (again,) = of(job.grade(attempt, None, fault="timeout", is_retryable=True), do.ScoreAttempt)
        assert again.reward_try == 2
        assert job.state.counters["rewards_retried"] == 1
        job.grade(attempt, 1.0)
        assert attempt.state is AttemptState.READY

    def test_tries_are_bounded(self) -> None:
        job, attempt = self.graded(limits={"reward_tries": 3})
        job.finish(attempt)
        for _ in range(3):
            job.grade(attempt, None, fault="timeout", is_retryable=True)
        assert attempt.state.value == "unscorable"
        assert [a.reward_try for a in of(job.log, do.ScoreAttempt) if a.key == attempt.key] == [1, 2, 3]

    def test_a_component_of_the_environment_does_not_pass_for_a_grade(self) -> None:
        job, attempt = self.graded(TWO_GRADERS)
        job.finish(attempt, reward_components={"exact": 1.0, "steps": 3.0})
        assert attempt.reward_components == {"steps": 3.0}
        job.restart_runner()
        restored = job.state.attempts[attempt.key]
        assert restored.pending_rewards == {"exact", "style"}


class TestRewardDeadlines:
    def scoring(self) -> tuple[Job, Attempt]:
        job = running(tasks=(TOOLS,), limits={"reward_tries": 3})
        attempt = first(job)
        job.finish(attempt)
        return job, attempt

    def test_a_reward_that_does_not_come_is_sent_again_with_more_time_each_try(self) -> None:
        job, attempt = self.scoring()  # 30 s, then 60, then 90
        sent = [(job.now, action.reward_try) for _ in range(170) for action in of(job.wait(1.0), do.ScoreAttempt)]
        assert sent == [(30.0, 2), (90.0, 3)]
        assert attempt.state is AttemptState.SCORING
        assert job.state.counters["rewards_resent"] == 2

    def test_after_the_last_try_it_is_unscorable(self) -> None:
        job, attempt = self.scoring()
        for _ in range(3):
            job.wait(100.0)
        assert attempt.state.value == "unscorable"
        assert lost(job) == [("unscorable", "rewards grade: no report in time")]

    def test_a_late_report_of_an_earlier_try_counts(self) -> None:
        job, attempt = self.scoring()
        job.wait(30.0)
        job.grade(attempt, 1.0)
        assert attempt.state is AttemptState.READY
        assert not of(job.wait(500.0), do.ScoreAttempt)

    def test_a_new_runner_waits_for_what_the_old_one_sent_and_then_sends_again(self) -> None:
        job, attempt = self.scoring()
        job.restart_runner()
        assert not of(job.reconnect(), do.ScoreAttempt)
        sent = [job.now for _ in range(40) if of(job.wait(1.0), do.ScoreAttempt)]
        assert sent == [31.0]
        job.grade(job.state.attempts[attempt.key], 1.0)
        assert job.state.attempts[attempt.key].state is AttemptState.READY


class TestEndOfBatch:
    """`reward: at_end_of_batch`: nothing is scored before the last episode of the batch has ended."""

    def lockstep(self, **fields: object) -> Job:
        return running(policy=make_policy("sync"), tasks=(TOOLS,), **fields)

    def test_rewards_are_asked_for_together(self) -> None:
        job = self.lockstep()
        *early, last = list(job.generating)
        for attempt in early:
            assert not of(job.finish(attempt), do.ScoreAttempt)
        asked = of(job.finish(last), do.ScoreAttempt)
        assert {action.key for action in asked} == {attempt.key for attempt in [*early, last]}

    def test_a_loss_at_the_end_also_ends_the_batch(self) -> None:
        job = self.lockstep()
        *early, last = list(job.generating)
        for attempt in early:
            job.finish(attempt)
        assert not of(job.fail(last), do.ScoreAttempt)  # its refill is still to run
        assert len(of(job.finish(job.generating[0]), do.ScoreAttempt)) == 4

    def test_each_is_asked_for_once(self) -> None:
        job = self.lockstep()
        for attempt in list(job.generating):
            job.finish(attempt)
        for _ in range(5):
            job.wait(1.0)
        assert len(of(job.log, do.ScoreAttempt)) == 4

    def test_a_new_runner_asks_once_the_batch_has_ended(self) -> None:
        job = self.lockstep()
        *early, last = list(job.generating)
        for attempt in early:
            job.finish(attempt)
        job.restart_runner()
        job.reconnect()
        assert not of(job.wait(1.0), do.ScoreAttempt)
        asked = of(job.finish(job.state.attempts[last.key]), do.ScoreAttempt)
        assert len(asked) == 4

    def test_the_environments_own_reward_needs_no_grader(self) -> None:
        job = running(policy=make_policy("sync"), tasks=(LAKE,))
        job.finish_all()
        assert job.state.training == 1
        assert not of(job.log, do.ScoreAttempt)


class TestOverdue:
    def test_an_episode_nobody_reports_on_is_given_up(self) -> None:
        """Twice its own deadline of 600 s, which the environment process enforces, and 60 s to spare."""
        job = running(limits={"step_s": 9e9})
        attempt = first(job)
        job.wait(1260.0)
        assert attempt.state is AttemptState.QUEUED
        actions = job.wait(1.0)
        assert attempt.state.value == "failed_infra"
        assert (attempt.key, "overdue") in [(a.key, a.reason) for a in of(actions, do.AbortAttempt)]
        assert attempt.reason == "no report of the episode in time"

    def test_one_that_waits_for_a_slot_is_not_overdue(self) -> None:
        job = running(slots=4, limits={"step_s": 9e9})
        waiting = [a for a in job.generating if not a.env_worker_id]
        job.wait(1000.0)
        job.wait(1000.0)
        assert {a.state.value for a in waiting} & {"failed_infra"} == set()
