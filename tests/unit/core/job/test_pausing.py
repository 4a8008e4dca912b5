"""Pause and resume at any moment: n stands still, environments wait, and past the time to live they are let go."""

import pytest
from testkit.jobs import ENV, TOOLS, Job, at_step, make_policy, of, opened, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import TaskPlan
from headrace.core.job.state import Phase

PAUSE, RESUME = did.PauseRequested(), did.ResumeRequested()


class TestPause:
    def test_it_stops_the_rollout_and_admission(self) -> None:
        job = running(limits={"max_attempts": 1})
        actions = job.tell(PAUSE)
        assert of(actions, do.PauseRollout)
        assert job.state.phase is Phase.PAUSED
        job.fail(job.generating[0])
        job.wait(10.0)
        assert len(job.groups) == 3
        assert not of(job.log[-4:], do.AssignAttempt)

    def test_a_refill_waits(self) -> None:
        job = running()
        job.tell(PAUSE)
        job.fail(job.generating[0])
        assert not of(job.wait(1.0), do.AssignAttempt)
        (again,) = of(job.tell(RESUME), do.AssignAttempt)
        assert again.key.attempt == 2

    def test_nothing_is_taken(self) -> None:
        job = running(groups=1)
        job.tell(PAUSE)
        job.finish_group(job.groups[0])
        assert job.state.training is None
        job.tell(RESUME)
        assert job.state.training == 1

    def test_a_step_that_is_out_is_finished_first(self) -> None:
        job = running(groups=1, max_steps=9)
        job.finish_group(job.groups[0])
        job.tell(PAUSE)
        assert job.state.phase is Phase.PAUSING
        job.commit()
        assert job.state.phase is Phase.PAUSED
        assert job.state.lineage.current == 1
        assert [line.type for line in of(job.log, do.Announce) if line.type.startswith("job.")] == [
            "job.pausing", "job.paused",
        ]  # fmt: skip

    def test_a_step_that_is_out_while_its_trainer_dies(self) -> None:
        job = running(groups=1, max_steps=9)
        job.finish_group(job.groups[0])
        job.tell(PAUSE)
        job.lose_trainer(restored_at=0)
        assert job.state.phase is Phase.PAUSING
        job.commit()
        assert job.state.phase is Phase.PAUSED

    def test_workers_still_get_the_last_version(self) -> None:
        job = running(groups=1, max_steps=9)
        job.finish_group(job.groups[0])
        job.tell(PAUSE)
        job.commit()
        job.load()
        assert {w.serving_version for w in job.state.workers.values()} == {1}

    def test_episodes_that_end_are_stored(self) -> None:
        job = running(groups=3)
        job.tell(PAUSE)
        job.finish_group(job.groups[0])
        assert job.groups[0].state == "ready"

    def test_it_is_asked_for_once(self) -> None:
        job = running()
        job.tell(PAUSE)
        assert job.tell(PAUSE) == []

    def test_resuming_a_running_job_is_nothing(self) -> None:
        assert running().tell(RESUME) == []


class TestBeforeTheFirstVersion:
    def test_paused_before_a_trainer_came(self) -> None:
        job = Job(running().plan)
        job.tell(PAUSE)
        assert job.state.phase is Phase.PAUSED
        job.tell(RESUME)
        assert job.state.phase is Phase.STARTING
        job.connect()
        job.publish()
        assert job.state.phase is Phase.RUNNING

    def test_paused_while_version_0_is_on_its_way(self) -> None:
        job = opened()
        job.tell(PAUSE)
        assert job.state.phase is Phase.PAUSING
        job.publish()
        assert job.state.phase is Phase.PAUSED
        job.load()
        assert not job.groups
        job.tell(RESUME)
        assert job.state.phase is Phase.RUNNING
        assert job.groups

    def test_resumed_while_version_0_is_on_its_way(self) -> None:
        job = opened()
        job.tell(PAUSE)
        job.tell(RESUME)
        assert job.state.phase is Phase.STARTING
        job.publish()
        assert job.state.phase is Phase.RUNNING

    def test_the_trainer_comes_while_paused(self) -> None:
        job = Job(running().plan)
        job.tell(PAUSE)
        job.connect()
        job.publish()
        assert job.state.phase is Phase.PAUSED
        job.tell(RESUME)
        job.load()
        assert job.state.phase is Phase.RUNNING
        assert job.groups


class TestClosing:
    """All steps are trained and the trainer is asked to export: a pause would only lose its answer."""

    def closing(self) -> Job:
        job = at_step(1, groups=1, max_steps=1)
        assert of(job.log, do.CloseTraining)
        return job

    def test_a_pause_is_too_late(self) -> None:
        job = self.closing()
        assert job.tell(PAUSE) == []
        job.tell(did.TrainingClosed("/models/m"))
        assert job.state.phase is Phase.SUCCEEDED

    def test_a_cancel_is_not(self) -> None:
        job = self.closing()
        job.tell(did.CancelRequested())
        assert job.state.phase is Phase.CANCELLED
        assert job.tell(did.TrainingClosed("/models/m")) == []


class TestCancel:
    @pytest.mark.parametrize("is_batch_out", [False, True])
    @pytest.mark.parametrize("is_paused", [False, True])
    def test_everything_leaves_as_aborted(self, is_batch_out: bool, is_paused: bool) -> None:
        job = running(groups=1, max_steps=9)
        if is_batch_out:
            job.finish_group(job.groups[0])
        if is_paused:
            job.tell(PAUSE)
        actions = job.tell(did.CancelRequested("enough"))
        assert job.state.phase is Phase.CANCELLED
        assert job.counts() == {"aborted": 4}
        assert job.state.groups == {}
        assert of(actions, do.EndJob) == [do.EndJob("cancelled", "enough")]
        assert {a.reason for a in of(actions, do.AbortAttempt)} == {"aborted"}

    def test_before_anything_has_started(self) -> None:
        job = Job(running().plan)
        assert of(job.tell(did.CancelRequested()), do.EndJob)
        assert job.state.phase is Phase.CANCELLED

    def test_trained_work_stays_trained(self) -> None:
        job = at_step(2, groups=1, max_steps=9, policy=make_policy(alpha=0))
        job.tell(did.CancelRequested())
        assert job.counts() == {"trained": 4, "aborted": 2}

    def test_evaluation_ends_with_it(self) -> None:
        job = running(evaluation={"episodes": 2})
        job.tell(did.CancelRequested())
        assert job.state.evaluation is None
        assert job.counts("eval") == {"aborted": 4}


class TestTimeToLive:
    def paused(self, **fields: object) -> Job:
        values = {"groups": 3, "limits": {"pause_ttl_s": 100.0}, "policy": make_policy(alpha=0), **fields}
        job = running(**values)
        job.finish_group(job.groups[0])
        job.start(*job.groups[1].live)
        job.tell(PAUSE)
        return job

    def test_until_then_environments_are_kept(self) -> None:
        job = self.paused()
        assert job.wait(100.0) == []
        assert len(job.state.envs[ENV].assigned) == 4

    def test_groups_that_are_not_ready_leave_as_aborted(self) -> None:
        job = self.paused()
        ready, open_1, open_2 = job.groups
        actions = job.wait(101.0)
        assert ready.state == "ready"
        assert [g.reason for g in (open_1, open_2)] == ["aborted: pause_ttl"] * 2
        assert job.counts() == {"ready": 2, "aborted": 4}
        assert {a.reason for a in job.rows.values() if a.state == "aborted"} == {"pause_ttl"}
        assert len(of(actions, do.AbortAttempt)) == 4
        assert not job.state.envs[ENV].assigned

    def test_their_prompts_come_back_when_the_job_goes_on(self) -> None:
        job = self.paused()
        gone = job.groups[1:]
        job.wait(101.0)
        job.tell(RESUME)
        again = [g for g in job.groups if g.parent_group]
        assert {(g.parent_group, g.env_seed) for g in again} == {(g.id, g.env_seed) for g in gone}

    def test_a_pause_is_no_requeue_of_the_prompt(self) -> None:
        """Its owner paused; the prompt may still be requeued max_requeues times for being stale."""
        job = self.paused()
        for _ in range(4):
            job.wait(101.0)
            job.tell(RESUME)
            job.tell(PAUSE)
        assert {g.requeues for g in job.groups} == {0}
        assert job.state.counters["prompts_given_up"] == 0

    def test_it_happens_once(self) -> None:
        job = self.paused()
        job.wait(101.0)
        assert job.wait(101.0) == []
        assert job.state.counters["requeued"] == 2

    def test_groups_that_wait_for_rewards_leave_too(self) -> None:
        job = running(groups=1, tasks=(TOOLS,), limits={"pause_ttl_s": 10.0}, policy=make_policy(alpha=0))
        group = job.groups[0]
        for member in list(group.live):
            job.finish(member)
        job.tell(PAUSE)
        job.wait(11.0)
        assert (group.state.value, group.reason) == ("dropped", "aborted: pause_ttl")
        assert not of(job.wait(1.0), do.AbortAttempt)

    def test_it_counts_from_the_request(self) -> None:
        job = running(groups=1, max_steps=9, limits={"pause_ttl_s": 100.0})
        job.finish_group(job.groups[0])
        open_group = next(g for g in job.groups if g.state == "open")
        job.tell(PAUSE)
        job.now += 90.0
        job.commit()
        job.wait(11.0)
        assert open_group.state == "dropped"

    def test_a_new_pause_has_a_new_time(self) -> None:
        job = self.paused()
        job.wait(90.0)
        job.tell(RESUME)
        job.tell(PAUSE)
        assert job.wait(90.0) == []

    def test_late_reports_of_what_was_let_go_are_acknowledged(self) -> None:
        job = self.paused()
        gone = job.members(job.groups[1])[0]
        job.wait(101.0)
        assert job.finish(gone) == [do.AcknowledgeAttempt(gone.key, ENV)]

    def test_an_evaluation_goes_on_later_with_what_it_has(self) -> None:
        job = running(groups=1, evaluation={"episodes": 2, "deadline_s": 5000.0}, limits={"pause_ttl_s": 100.0})
        done = [a for a in job.generating if a.purpose == "eval" and a.mode == "greedy"]
        for attempt in done:
            job.finish(attempt, 1.0)
        job.tell(PAUSE)
        job.wait(101.0)
        assert job.counts("eval") == {"evaluated": 2, "aborted": 2, "queued": 2}
        assert job.wait(50.0) == []
        job.tell(RESUME)
        for attempt in [a for a in job.generating if a.purpose == "eval"]:
            job.finish(attempt, 0.0)
        assert job.state.evaluated["0"] == {"lake/greedy": 1.0, "lake/sampled": 0.0}

    def test_letting_go_is_no_failed_try_of_an_episode(self) -> None:
        job = running(
            groups=1, evaluation={"episodes": 1, "deadline_s": 9e9}, limits={"pause_ttl_s": 1.0, "job_s": 9e9}
        )
        for _ in range(5):
            job.tell(PAUSE)
            job.wait(2.0)
            job.tell(RESUME)
        for attempt in [a for a in job.generating if a.purpose == "eval"]:
            assert attempt.key.attempt == 6
            job.fail(attempt)
        assert len([a for a in job.generating if a.purpose == "eval"]) == 2  # two tries are left

    def test_the_last_prompts_are_not_lost(self) -> None:
        job = running(groups=2, limits={"pause_ttl_s": 1.0}, tasks=(TaskPlan("lake", n_prompts=2),), max_steps=1)
        job.tell(PAUSE)
        job.wait(2.0)
        assert job.groups == []
        job.tell(RESUME)
        job.finish_all()
        assert job.state.training == 1


class TestClocks:
    def test_a_pause_is_no_lack_of_progress(self) -> None:
        job = running(limits={"step_s": 50.0, "pause_ttl_s": 9e9})
        job.tell(PAUSE)
        for _ in range(10):
            job.wait(40.0)
        job.tell(RESUME)
        job.wait(49.0)
        assert job.state.phase is Phase.RUNNING
        job.wait(2.0)
        assert job.state.reason.startswith("step_timeout")

    def test_episodes_are_not_overdue_because_of_a_pause(self) -> None:
        job = running(limits={"step_s": 9e9, "pause_ttl_s": 9e9})
        attempt = job.generating[0]
        job.tell(PAUSE)
        job.wait(5000.0)
        assert attempt.is_in_flight
        job.tell(RESUME)
        job.wait(1260.0)
        assert attempt.is_in_flight
        job.wait(1.0)
        assert attempt.state == "failed_infra"

    def test_the_deadline_of_an_evaluation_stands(self) -> None:
        job = running(evaluation={"episodes": 1, "deadline_s": 100.0}, limits={"pause_ttl_s": 9e9})
        job.wait(60.0)
        job.tell(PAUSE)
        job.wait(1000.0)
        assert job.state.evaluation is not None
        job.tell(RESUME)
        job.wait(39.0)
        assert job.state.evaluation is not None
        job.wait(1.0)
        assert job.state.evaluation is None

    def test_rewards_are_still_waited_for(self) -> None:
        job = running(tasks=(TOOLS,))
        job.finish(job.generating[0])
        job.tell(PAUSE)
        assert of(job.wait(30.0), do.ScoreAttempt)

    def test_a_pause_survives_a_new_runner(self) -> None:
        job = running(limits={"pause_ttl_s": 100.0})
        job.tell(PAUSE)
        job.wait(60.0)
        job.restart_runner()
        job.reconnect()
        assert job.state.phase is Phase.PAUSED
        job.wait(41.0)
        assert job.counts() == {"aborted": 8}
