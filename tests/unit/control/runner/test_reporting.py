"""Numbers that a step and the progress block show."""

import json

import pytest
from testkit.jobs import Job, at_step, make_policy, running

from control_plane.runner.reporting import WALL_PARTS, Reporter, result
from headrace.core.job import events as did
from headrace.core.job.rows import SegmentRow
from headrace.core.job.state import Changes
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

ALPHA_0 = make_policy(alpha=0)


def one_step(**metrics: float) -> tuple[Job, Changes]:
    """A step of one group that was sampled at 2 s and committed at 5 s."""
    job = running(groups=1, max_steps=4, policy=ALPHA_0)
    job.now = 2.0
    job.finish_group(job.groups[0], (1.0, 0.0))
    job.now = 5.0
    step = job.train_step
    event = did.StepFinished(1, step.batch_digest, step.publish_version, "digest-1", 10, metrics=metrics)
    job.machine.handle(event, job.now)
    return job, job.state.changes()


def worker(worker_id: str, busy_s: float, tokens: int) -> inf_pb.WorkerStatus:
    return inf_pb.WorkerStatus(worker_id=worker_id, busy_s=busy_s, generated_tokens=tokens)


class TestSteps:
    def test_the_wall_parts_add_up_to_the_step(self) -> None:
        job, changes = one_step()
        Reporter().close_step(job.state, job.state.steps[1], changes)
        seconds = job.state.steps[1].seconds
        assert seconds["step"] == 5.0
        assert sum(seconds[part] for part in WALL_PARTS) + seconds["overhead"] == pytest.approx(5.0)
        assert (seconds["buffer_wait"], seconds["train_wall"]) == (2.0, 3.0)

    def test_rewards_and_lags_of_what_was_trained(self) -> None:
        job, changes = one_step(loss=0.25)
        Reporter().close_step(job.state, job.state.steps[1], changes)
        metrics = job.state.steps[1].metrics
        assert metrics["reward/lake"] == 0.5
        assert (metrics["staleness/s_train_mean"], metrics["staleness/s_train_max"]) == (0.0, 0.0)
        assert metrics["staleness/s_train_0"] == 2.0
        assert metrics["loss"] == 0.25
        assert (metrics["turns_mean"], metrics["generated_tokens_mean"], metrics["truncated_share"]) == (2.0, 8.0, 0.0)

    def test_lags_are_counted_one_by_one(self) -> None:
        job = at_step(1, groups=1, max_steps=4, policy=make_policy(alpha=1))
        job.finish_group(next(g for g in job.groups if g.state == "open"))
        if job.state.training is None:
            job.finish_all()
        step = job.train_step
        job.machine.handle(did.StepFinished(2, step.batch_digest, step.publish_version, "digest-2", 10), job.now)
        changes = job.state.changes()
        Reporter().close_step(job.state, job.state.steps[2], changes)
        metrics = job.state.steps[2].metrics
        counted = {
            name: value
            for name, value in metrics.items()
            if name.startswith("staleness/s_train_") and name[-1].isdigit()
        }
        assert sum(counted.values()) == 2.0

    def test_lengths_are_of_what_was_generated_and_actions_of_all_turns(self) -> None:
        """Lengths 5 and 20, the longer one cut: 5, 20, 12.5 and one half, whatever the loss leaves out."""
        job = running(groups=1, max_steps=4, policy=ALPHA_0)
        one, two = job.members(job.groups[0])
        job.finish(one, n_generated_tokens=5, n_turns=3, invalid_actions=1)
        job.finish(two, n_generated_tokens=20, n_turns=1, is_truncated=True)
        step = job.train_step
        job.machine.handle(did.StepFinished(1, step.batch_digest, step.publish_version, "digest-1", 10), job.now)
        Reporter().close_step(job.state, job.state.steps[1], job.state.changes())
        metrics = job.state.steps[1].metrics
        lengths = [metrics[f"generated_tokens_{name}"] for name in ("min", "max", "mean")]
        assert (lengths, metrics["truncated_share"]) == ([5.0, 20.0, 12.5], 0.5)
        assert metrics["valid_actions/lake"] == 0.75
        assert metrics["zero_variance_share"] == 1.0

    def test_mixed_versions_are_a_share(self) -> None:
        job = running(groups=1, max_steps=4, policy=make_policy(alpha=1))
        one, two = job.members(job.groups[0])
        runs = (SegmentRow(0, "w", "d0", 4), SegmentRow(1, "w", "d1", 4))
        job.finish(one, segments=runs)
        job.finish(two)
        step = job.train_step
        job.machine.handle(did.StepFinished(1, step.batch_digest, step.publish_version, "digest-1", 10), job.now)
        Reporter().close_step(job.state, job.state.steps[1], job.state.changes())
        assert job.state.steps[1].metrics["staleness/mixed_version_share"] == 0.5

    def test_busy_seconds_are_differences_since_the_last_step(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        for busy_s, tokens in ((10.0, 100), (12.0, 160), (13.5, 200)):
            reporter.worker_reported(worker("w@a", busy_s, tokens))
        reporter.graded(0.25, queue_s=0.1)
        reporter.graded(0.5, queue_s=0.3)
        reporter.close_step(job.state, job.state.steps[1], changes)
        step = job.state.steps[1]
        assert step.seconds["busy/generation"] == 3.5
        assert step.metrics["generated_tokens"] == 100.0
        assert step.seconds["busy/reward"] == 0.75
        assert step.seconds["reward_queue"] == pytest.approx(0.2)

    def test_a_worker_of_a_new_life_does_not_count_backwards(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        for busy_s, tokens in ((10.0, 100), (1.0, 5), (2.0, 9)):
            reporter.worker_reported(worker("w@a", busy_s, tokens))
        reporter.close_step(job.state, job.state.steps[1], changes)
        assert job.state.steps[1].seconds["busy/generation"] == 1.0
        assert job.state.steps[1].metrics["generated_tokens"] == 4.0

    def test_a_proxy_that_knows_no_counts_yet_makes_nothing_count_twice(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        for busy_s, tokens in ((0.0, 0), (10.0, 100), (0.0, 0), (11.0, 110)):
            reporter.worker_reported(worker("w@a", busy_s, tokens))
        reporter.close_step(job.state, job.state.steps[1], changes)
        assert job.state.steps[1].seconds["busy/generation"] == 11.0
        assert job.state.steps[1].metrics["generated_tokens"] == 110.0

    def test_another_runner_counts_on(self) -> None:
        gone, fresh, (job, changes) = Reporter(), Reporter(), one_step()
        for busy_s, tokens in ((10.0, 100), (12.0, 160)):
            gone.worker_reported(worker("w@a", busy_s, tokens))
        fresh.resume(json.loads(json.dumps(gone.meter())))
        fresh.worker_reported(worker("w@a", 15.0, 250))
        fresh.close_step(job.state, job.state.steps[1], changes)
        assert job.state.steps[1].seconds["busy/generation"] == 5.0
        assert job.state.steps[1].metrics["generated_tokens"] == 150.0

    def test_busy_seconds_start_anew_with_each_step(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        reporter.graded(3.0, queue_s=0.0)
        reporter.close_step(job.state, job.state.steps[1], changes)
        reporter.close_step(job.state, job.state.steps[1], changes)
        assert job.state.steps[1].seconds["busy/reward"] == 0.0

    def test_weights_of_the_version_that_was_trained_on(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        for name in ("w0", "w1"):
            reporter.weights_moved(inf_pb.WeightsPrefetched(worker_id=name, policy_version=0, pull_s=1.5, verify_s=0.5))
            reporter.weights_moved(
                inf_pb.WeightsUpdated(worker_id=name, policy_version=0, pause_s=0.2, load_s=0.1, kv_rebuild_s=0.4)
            )
        reporter.weights_moved(inf_pb.WeightsPrefetched(worker_id="w0", policy_version=1, pull_s=99.0))
        reporter.close_step(job.state, job.state.steps[1], changes)
        seconds = job.state.steps[1].seconds
        assert seconds["accumulated_pull"] == 3.0  # over all workers
        assert seconds["pause"] == pytest.approx(0.2)  # of one
        assert seconds["kv_rebuild"] == pytest.approx(0.4)

    def test_points_of_the_series(self) -> None:
        job, changes = one_step(loss=0.25, broken=float("nan"))
        points = {p.name: p for p in Reporter().close_step(job.state, job.state.steps[1], changes)}
        assert (points["loss"].step, points["loss"].value) == (1, 0.25)
        assert points["seconds/train_wall"].value == 3.0
        assert "broken" not in points  # a series has numbers only

    def test_the_ledger_of_the_step(self) -> None:
        job, changes = one_step()
        Reporter().close_step(job.state, job.state.steps[1], changes)
        assert job.state.steps[1].ledger["losses"] == {"trained": 2}


class TestProgress:
    def test_it_is_json_before_and_after_the_first_step(self) -> None:
        for job in (Job(running().plan), running(), at_step(2, groups=1, max_steps=4)):
            shown = Reporter().progress(job.state, 7.0)
            assert json.loads(json.dumps(shown))["updated_at"] == 7.0

    def test_where_the_job_stands(self) -> None:
        job = at_step(1, groups=1, max_steps=4, policy=ALPHA_0)
        shown = Reporter().progress(job.state, 7.0)
        assert (shown["step"], shown["max_steps"], shown["percent"], shown["policy_version"]) == (1, 4, 25.0, 1)
        assert shown["eta_s"] is None
        assert shown["in_flight"] == 2

    def test_the_time_left_follows_from_recent_steps(self) -> None:
        reporter, (job, changes) = Reporter(), one_step()
        reporter.close_step(job.state, job.state.steps[1], changes)
        assert reporter.progress(job.state, 7.0)["eta_s"] == 15.0  # three more of five seconds

    def test_what_the_buffer_holds(self) -> None:
        job = running(groups=2, max_steps=4)
        job.finish_group(job.groups[0])
        shown = Reporter().progress(job.state, 0.0)["buffer"]
        assert (shown["open"], shown["complete"], shown["ready"]) == (3, 0, 1)

    def test_what_the_trainer_is_at(self) -> None:
        job, reporter = running(groups=1, max_steps=4, policy=ALPHA_0), Reporter()
        assert reporter.progress(job.state, 0.0)["training"] is None
        job.finish_all()
        assert reporter.progress(job.state, 0.0)["training"] == {"step": 1, "phase": "sent", "done": 0, "of": 0}
        reporter.trainer_progressed(trn_pb.StepProgress(step=1, phase="update", done=1, total=2))
        assert reporter.progress(job.state, 0.0)["training"] == {"step": 1, "phase": "update", "done": 1, "of": 2}

    def test_an_evaluation_that_runs(self) -> None:
        job = running(groups=1, evaluation={"episodes": 3})
        job.finish(next(a for a in job.generating if a.purpose == "eval"))
        assert Reporter().progress(job.state, 0.0)["evaluating"] == {"policy_version": 0, "done": 1, "of": 6}


class TestResult:
    def ended(self) -> Job:
        job = running(groups=1, max_steps=1, policy=ALPHA_0, evaluation={"episodes": 1})
        for reward in (0.0, 1.0):
            while evals := [a for a in job.generating if a.purpose == "eval"]:
                job.finish(evals[0], reward)
            if job.state.step == 0:
                job.finish_all()
                job.commit()
                job.load()
        job.tell(did.TrainingClosed("/models/m"))
        return job

    def test_success_before_and_after(self) -> None:
        job = self.ended()
        found = result(job.state, now=60.0, is_balanced=True, model="/models/m")
        assert found["tasks"] == {
            "lake": {"sampled": {"before": 0.0, "after": 1.0}, "greedy": {"before": 0.0, "after": 1.0}}
        }
        assert (found["job"], found["steps"], found["model"]) == ("job_t", 1, "/models/m")
        assert (found["ledger_balanced"], found["max_trained_lag"]) == (True, 0)
        json.dumps(found)

    def test_an_unbalanced_ledger_is_said(self) -> None:
        assert result(self.ended().state, now=60.0, is_balanced=False, model="")["ledger_balanced"] is False

    def test_a_job_that_failed_before_its_first_step(self) -> None:
        job = running(evaluation={"episodes": 1})
        job.tell(did.TrainingFailed("loss_nan", "x"))
        found = result(job.state, now=60.0, is_balanced=True, model="")
        assert found["steps"] == 0
        assert found["tasks"]["lake"]["sampled"] == {"before": None, "after": None}
        assert found["engine_trainer_logprob_gap"] is None

    def test_the_gap_is_a_mean_over_tokens(self) -> None:
        job, changes = one_step(**{"logprob_gap/n_tokens": 100.0, "logprob_gap/mean": 2e-5})
        Reporter().close_step(job.state, job.state.steps[1], changes)
        found = result(job.state, now=60.0, is_balanced=True, model="")
        assert found["engine_trainer_logprob_gap"] == pytest.approx(2e-5)
