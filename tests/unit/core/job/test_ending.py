"""How jobs end: all steps trained, prompts run out, failures that show as failures, deadlines, late reports."""

import pytest
from testkit.jobs import ENV, Job, at_step, make_policy, of, opened, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import TaskPlan
from headrace.core.job.state import Phase

ALPHA_0 = make_policy(alpha=0)


def play(job: Job, *, fails: int = -1, limit: int = 200) -> Job:
    """Runs until the end; every episode of the prompt with seed `fails` fails at its reset."""
    for _ in range(limit):
        if job.state.is_ended:
            return job
        if "closing" in job.state.marks:
            job.tell(did.TrainingClosed("/models/m"))
        elif job.state.training is not None:
            job.commit()
            job.load()
        elif job.generating:
            attempt = job.generating[0]
            if job.state.groups[attempt.group_id].env_seed == fails:
                job.fail(attempt, "env", "reset_failed")
            else:
                job.finish(attempt)
        else:
            job.wait(1.0)
    raise AssertionError(f"no end: {job.state.phase}, step {job.state.step}")


class TestSuccess:
    def test_after_the_last_step_the_trainer_is_closed_then_the_job_ends(self) -> None:
        job = at_step(2, groups=1, max_steps=2, export_path="/models/m")
        assert of(job.log, do.CloseTraining) == [do.CloseTraining("/models/m")]
        assert job.state.phase is Phase.RUNNING
        actions = job.tell(did.TrainingClosed("/models/m"))
        assert of(actions, do.EndJob) == [do.EndJob("succeeded", "all steps trained")]
        assert job.state.is_ended

    def test_what_still_ran_leaves_as_aborted(self) -> None:
        job = running(groups=1, max_steps=1, policy=make_policy(alpha=1), n_workers=1)
        job.finish_group(job.groups[0])
        job.commit()
        assert job.state.groups == {}
        assert set(job.counts()) <= {"trained", "aborted"}

    def test_nothing_new_starts_while_the_trainer_exports(self) -> None:
        job = at_step(1, groups=1, max_steps=1)
        job.wait(5.0)
        assert job.groups == []

    def test_a_trainer_that_dies_while_it_exports_is_asked_again(self) -> None:
        job = at_step(2, groups=1, max_steps=2, policy=ALPHA_0)
        job.lose_trainer(restored_at=2)
        assert len(of(job.log, do.CloseTraining)) == 2
        job.tell(did.TrainingClosed("/models/m"))
        assert job.state.phase is Phase.SUCCEEDED

    def test_one_that_comes_back_at_a_checkpoint_replays_first(self) -> None:
        job = at_step(3, groups=1, max_steps=3, policy=ALPHA_0, checkpoints=(2,))
        job.lose_trainer(restored_at=2)
        job.publish()
        assert len(of(job.log, do.CloseTraining)) == 1
        job.commit()
        assert len(of(job.log, do.CloseTraining)) == 2

    def test_a_new_runner_finishes_the_closing(self) -> None:
        job = at_step(1, groups=1, max_steps=1)
        job.restart_runner()
        job.reconnect()
        assert len(of(job.log, do.CloseTraining)) == 2
        job.tell(did.TrainingClosed("/models/m"))
        assert job.state.phase is Phase.SUCCEEDED


class TestFailureIsNoSuccess:
    def test_a_trainer_that_stops_by_itself_has_not_finished_the_job(self) -> None:
        """Its end marker after one of five steps is not the end."""
        job = at_step(1, groups=1, max_steps=5, policy=ALPHA_0)
        assert job.tell(did.TrainingClosed("/models/m")) == []
        assert job.state.phase is Phase.RUNNING
        job.tell(did.TrainingFailed("rollout_crashed", "RuntimeError: boom"))
        assert job.state.phase is Phase.FAILED
        assert job.state.reason == "rollout_crashed: RuntimeError: boom"
        assert job.state.step == 1

    @pytest.mark.parametrize("phase", ["starting", "paused"])
    def test_a_fault_fails_the_job_in_any_phase(self, phase: str) -> None:
        job = opened() if phase == "starting" else running()
        if phase == "paused":
            job.tell(did.PauseRequested())
        job.tell(did.TrainingFailed("model_unreadable", "no config.json"))
        assert job.state.reason == "model_unreadable: no config.json"
        assert of(job.log, do.EndJob)

    def test_the_first_reason_stays(self) -> None:
        job = running()
        job.tell(did.TrainingFailed("first", "a"), did.TrainingFailed("second", "b"), did.CancelRequested())
        assert job.state.reason == "first: a"
        assert len(of(job.log, do.EndJob)) == 1


class TestPromptsRunOut:
    def test_ten_prompts_four_groups_a_step(self) -> None:
        """Two steps; the last two groups can not fill a batch and the job ends by itself."""
        job = play(running(groups=4, max_steps=9, tasks=(TaskPlan("lake", n_prompts=10),)))
        assert (job.state.phase, job.state.reason) == (Phase.SUCCEEDED, "prompts ran out")
        assert job.state.step == 2
        assert job.counts() == {"trained": 16, "aborted": 4}

    def test_the_evaluation_at_the_end_is_still_made(self) -> None:
        tasks = (TaskPlan("lake", n_prompts=5),)
        job = play(running(groups=4, max_steps=9, tasks=tasks, evaluation={"episodes": 1, "at_start": False}))
        assert job.state.phase is Phase.SUCCEEDED
        assert sorted(job.state.evaluated) == ["1"]

    def test_three_prompts_one_of_which_never_resets(self) -> None:
        """B is tried three times, then dropped with its error; A and C are trained."""
        job = running(groups=1, max_steps=9, tasks=(TaskPlan("lake", n_prompts=3),), policy=ALPHA_0)
        bad = job.groups[0].env_seed
        play(job, fails=bad)
        assert job.state.phase is Phase.SUCCEEDED
        assert job.state.step == 2
        assert job.counts() == {"failed_env": 5, "group_dropped": 1, "trained": 4}  # 3 and 2 tries of its two members
        assert job.announced("group.dropped")[0].data["detail"] == "failed_env: reset_failed: scripted"

    def test_if_every_prompt_fails_the_job_fails_with_the_text(self) -> None:
        job = running(groups=1, max_steps=9, tasks=(TaskPlan("lake", n_prompts=3),), policy=ALPHA_0)
        for _ in range(50):
            if job.generating:
                job.fail(job.generating[0], "env", "reset_failed")
        assert job.state.phase is Phase.FAILED
        assert job.state.reason == "no_steps: no batch was ever filled; last loss: failed_env: reset_failed: scripted"

    def test_an_unbalanced_rest_is_still_trained(self) -> None:
        """Both tasks ran out, four groups of lake are left: after its patience tools lends its share."""
        tasks = (TaskPlan("lake", n_prompts=4), TaskPlan("tools", n_prompts=0))
        job = running(groups=4, max_steps=9, tasks=tasks, limits={"quota_patience_s": 10.0})
        job.wait(1.0)
        play(job)
        assert job.state.step == 1
        assert (job.state.phase, job.state.reason) == (Phase.SUCCEEDED, "prompts ran out")

    def test_a_requeued_prompt_is_not_the_end(self) -> None:
        job = running(groups=1, max_steps=9, tasks=(TaskPlan("lake", n_prompts=2),), policy=make_policy(alpha=0))
        job.tell(did.EnvLost(ENV), did.EnvOpened("env-0@b", 64, frozenset()))
        play(job)
        assert job.state.step == 2


class TestGroupsFailing:
    def test_too_many_dropped_in_a_row_fail_the_job(self) -> None:
        job = running(groups=2, max_steps=9, limits={"max_attempts": 1, "max_failed_groups": 5})
        n_failed = 0
        while not job.state.is_ended:
            job.fail(job.generating[0], "env", "import_failed")
            n_failed += 1
        assert n_failed == 5
        assert job.state.reason == (
            "groups_failing: 5 groups in a row were dropped, the last one with: failed_env: import_failed: scripted"
        )

    def test_one_that_gets_through_ends_the_row(self) -> None:
        limits = {"max_attempts": 1, "max_failed_groups": 3}
        job = running(groups=1, max_steps=99, limits=limits, policy=ALPHA_0)
        for _ in range(6):
            for _ in range(2):
                job.fail(job.generating[0])
            assert job.state.failed_in_a_row == 2
            job.finish_group(job.groups[0])
            job.commit()
            job.load()
        assert job.state.phase is Phase.RUNNING
        assert job.counts()["failed_env"] == 12

    def test_stale_groups_are_no_failures(self) -> None:
        job = at_step(2, groups=1, max_steps=9, limits={"max_failed_groups": 1})
        assert job.state.failed_in_a_row == 0


class TestDeadlines:
    def test_a_job_that_makes_no_step_fails_with_the_counts(self) -> None:
        job = running(limits={"step_s": 600.0})
        job.finish(job.generating[0])
        job.wait(600.0)
        assert job.state.phase is Phase.RUNNING
        job.wait(1.0)
        assert job.state.phase is Phase.FAILED
        assert job.state.reason.startswith("step_timeout: no step for 601 s (limit 600 s); groups {'open': 4}")

    def test_every_commit_starts_the_clock_anew(self) -> None:
        job = at_step(0, groups=1, max_steps=9, limits={"step_s": 600.0}, policy=ALPHA_0)
        for _ in range(4):
            job.wait(500.0)
            job.finish_all()
            job.commit()
            job.load()
        assert job.state.phase is Phase.RUNNING

    def test_a_job_that_never_starts(self) -> None:
        job = opened(limits={"start_s": 300.0})
        job.wait(1.0)
        job.wait(300.0)
        assert job.state.phase is Phase.STARTING
        job.wait(1.0)
        assert job.state.reason.startswith("start_timeout: no step for 301 s (limit 300 s)")

    def test_the_whole_job_has_a_limit(self) -> None:
        job = running(groups=1, max_steps=99, limits={"job_s": 1000.0, "step_s": 600.0}, policy=ALPHA_0)
        while job.now < 1000.0:
            job.wait(250.0)
            job.finish_all()
            job.commit()
            job.load()
        assert job.state.phase is Phase.RUNNING
        job.wait(251.0)
        assert job.state.phase is Phase.FAILED
        assert job.state.reason == "job_timeout: ran for 1001 s (limit 1000 s), step 4 of 99"
        assert job.last(do.EndJob).phase == "failed"

    def test_pauses_do_not_count_in_it(self) -> None:
        job = running(limits={"job_s": 1000.0, "step_s": 9e9, "pause_ttl_s": 9e9})
        job.wait(600.0)
        job.tell(did.PauseRequested())
        job.wait(5000.0)
        assert job.state.phase is Phase.PAUSED
        job.tell(did.ResumeRequested())
        job.wait(400.0 if job.state.totals["started"] == 600.0 else 399.0)
        assert job.state.phase is Phase.RUNNING
        job.wait(700.0)
        assert job.state.reason.startswith("job_timeout")

    def test_it_counts_across_runners(self) -> None:
        job = running(limits={"job_s": 1000.0, "step_s": 9e9})
        job.wait(1.0)
        job.wait(900.0)
        job.restart_runner()
        job.reconnect()
        job.wait(101.0)
        assert job.state.reason.startswith("job_timeout: ran for 1001 s")


class TestLate:
    """A job that has ended answers with acknowledgements only, so that those who report late can forget."""

    def ended(self) -> Job:
        job = running()
        job.tell(did.CancelRequested())
        return job

    def test_finished_and_failed_episodes_are_acknowledged(self) -> None:
        job = self.ended()
        one, two = list(job.rows.values())[:2]
        assert job.finish(one) == [do.AcknowledgeAttempt(one.key, ENV)]
        assert job.fail(two) == [do.AcknowledgeAttempt(two.key, ENV)]
        assert job.counts() == {"aborted": 8}

    @pytest.mark.parametrize(
        "event",
        [
            did.TimePassed(),
            did.EnvOpened("env-1@a", 8, frozenset()),
            did.EnvLost(ENV),
            did.WorkersChanged(frozenset({"inference-7@a"})),
            did.TrainerOpened("trainer@b", 0, is_attached=False),
            did.TrainerLost("trainer@a"),
            did.StatePublished(1, "d", 1),
            did.WeightsUpdated("inference-0@a", 0),
            did.PauseRequested(),
            did.ResumeRequested(),
            did.CancelRequested(),
            did.TrainingFailed("late", "x"),
            did.TrainingClosed("/m"),
        ],
    )
    def test_nothing_else_is_heard(self, event: object) -> None:
        job = self.ended()
        before = (job.state.phase, job.state.reason, job.counts())
        assert job.tell(event) == []
        assert (job.state.phase, job.state.reason, job.counts()) == before

    def test_events_behind_the_end_in_the_same_turn(self) -> None:
        job = running()
        attempt = job.generating[0]
        actions = job.tell(did.CancelRequested(), job.finished(attempt), did.PauseRequested())
        assert actions[-1] == do.AcknowledgeAttempt(attempt.key, ENV)
        assert job.state.phase is Phase.CANCELLED
