"""Steps: one commit point, answers that come twice, a trainer that comes back, replay and renumbering."""

import pytest
from testkit.jobs import Job, at_step, make_policy, of, opened, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.state import Phase
from headrace.core.job.training import MAX_RETRIES, StepMismatch
from headrace.core.versions import VersionState

ALPHA_0 = make_policy(alpha=0)


def numbers(job: Job, kind: type) -> list[tuple[int, int]]:
    """(step, publish version) of each TrainStep, or (step, version) of each PublishState."""
    if kind is do.TrainStep:
        return [(a.step, a.publish_version) for a in of(job.log, do.TrainStep)]
    return [(a.step, a.policy_version) for a in of(job.log, do.PublishState)]


def stepping(n_steps: int, **fields: object) -> Job:
    """`n_steps` are committed, the next batch is ready but for its episodes; one group a step, alpha 0."""
    return at_step(n_steps, **{"groups": 1, "max_steps": 9, "policy": ALPHA_0, **fields})


class TestStart:
    def test_a_fresh_trainer_publishes_version_0(self) -> None:
        job = opened()
        assert of(job.log, do.PublishState) == [do.PublishState(0, None, 0)]
        assert job.state.phase is Phase.STARTING

    def test_the_job_runs_from_its_first_version(self) -> None:
        job = opened()
        job.publish()
        assert job.state.phase is Phase.RUNNING
        assert job.state.lineage.current == 0
        assert job.announced("version.committed")[0].data == {"policy_version": 0, "step": 0, "parent": None}

    def test_a_trainer_lost_before_it_published_is_asked_again(self) -> None:
        job = opened()
        job.lose_trainer(restored_at=0)
        assert numbers(job, do.PublishState) == [(0, 0), (0, 0)]

    def test_a_version_that_the_node_had_lost_is_fetched_again(self) -> None:
        job = running()
        digest = job.state.lineage.versions[0].manifest_digest
        assert do.PrefetchWeights(0) in job.tell(did.StatePublished(0, digest, 1))

    def test_a_stale_answer_to_publish_is_ignored(self) -> None:
        job = opened()
        assert job.tell(did.StatePublished(5, "digest-5", 1)) == []
        assert job.state.lineage.current is None


class TestCommit:
    def test_version_step_and_attempts_change_together(self) -> None:
        job = running()
        job.finish_all()
        job.machine.state.changes()
        step = job.train_step
        event = did.StepFinished(1, step.batch_digest, step.publish_version, "digest-1", 10, metrics={"loss": 0.5})
        job.machine.handle(event, 7.0)
        changes = job.machine.state.changes()
        assert [(v.policy_version, v.parent, v.step) for v in changes.versions] == [(1, 0, 1)]
        assert [(s.step, s.state.value, s.published_version) for s in changes.steps if s.step == 1] == [
            (1, "committed", 1)
        ]
        trained = [a for a in changes.attempts if a.state == "trained"]
        assert sorted(a.key for a in trained) == sorted(m.key for g in step.groups for m in g.members)
        assert {a.closed_at for a in trained} == {7.0}

    def test_it_closes_the_groups_and_leaves_memory(self) -> None:
        job = running()
        job.finish_all()
        taken = [g.group_id for g in job.train_step.groups]
        job.commit()
        assert not job.state.groups.keys() & set(taken)
        assert {job.all_groups[g].state.value for g in taken} == {"taken"}

    def test_the_answer_again_changes_nothing(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.commit()
        before = (job.state.step, job.state.lineage.current, job.counts())
        assert job.commit() == []
        assert (job.state.step, job.state.lineage.current, job.counts()) == before

    def test_an_answer_about_another_batch_is_an_error(self) -> None:
        job = stepping(0)
        job.finish_all()
        with pytest.raises(StepMismatch, match="step 1: trained other, sampled "):
            job.commit(batch_digest="other")
        assert job.state.step == 0

    def test_an_answer_to_a_step_that_was_never_asked_is_ignored(self) -> None:
        job = stepping(0)
        job.finish_all()
        assert job.commit(step=7) == []
        assert job.state.training == 1

    def test_metrics_and_seconds_are_kept(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.now += 3.0
        job.commit(metrics={"loss": 0.25}, seconds={"update": 1.5})
        step = job.state.steps[1]
        assert step.metrics["loss"] == 0.25
        assert (step.seconds["update"], step.seconds["train_wall"], step.seconds["step"]) == (1.5, 3.0, 3.0)
        assert step.committed_at == 3.0

    def test_versions_number_the_steps_when_nothing_went_wrong(self) -> None:
        job = stepping(3)
        assert numbers(job, do.TrainStep) == [(1, 1), (2, 2), (3, 3)]
        assert [job.state.lineage.depth(n) for n in range(4)] == [0, 1, 2, 3]

    def test_batches_are_kept_since_the_last_checkpoint_only(self) -> None:
        job = stepping(4, checkpoints=(2,))
        assert sorted(job.state.steps) == [3, 4]
        assert job.state.checkpoint_step == 2

    def test_without_a_checkpoint_all_are_kept(self) -> None:
        assert sorted(stepping(3).state.steps) == [1, 2, 3]


class TestTrainerLost:
    def test_a_batch_that_is_out_stays_sampled_and_is_sent_again(self) -> None:
        job = stepping(0)
        job.finish_all()
        first = job.train_step
        job.lose_trainer(restored_at=0)
        again = job.train_step
        assert again is not first
        assert (again.step, again.batch_digest, again.groups) == (first.step, first.batch_digest, first.groups)
        assert job.counts()["sampled"] == 2

    def test_it_gets_a_new_number_because_bytes_may_lie_under_the_old_one(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.lose_trainer(restored_at=0)
        assert numbers(job, do.TrainStep) == [(1, 1), (1, 2)]
        job.commit()
        assert job.state.lineage.current == 2
        assert job.state.lineage.depth(2) == 1

    def test_one_that_only_lost_its_stream_answers_under_the_same_number(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.lose_trainer(restored_at=0, is_attached=True)
        assert numbers(job, do.TrainStep) == [(1, 1), (1, 1)]

    def test_one_that_had_trained_the_step_already_answers_from_memory(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.lose_trainer(restored_at=1, is_attached=True)
        assert numbers(job, do.TrainStep) == [(1, 1), (1, 1)]
        job.commit()
        assert job.state.step == 1

    def test_the_loss_of_another_trainer_is_nothing(self) -> None:
        job = stepping(0)
        assert job.tell(did.TrainerLost("trainer@other")) == []
        assert job.state.trainer_id

    def test_rollouts_go_on_without_it(self) -> None:
        job = running(groups=1, max_steps=9)
        job.tell(did.TrainerLost(job.state.trainer_id))
        for group in list(job.groups):
            job.finish_group(group)
        assert [g.state.value for g in job.groups] == ["ready", "ready"]
        job.tell(did.TrainerOpened("trainer@b", 0, is_attached=False))
        assert job.state.training == 1


class TestReplay:
    """Five steps, a checkpoint of step 3; the trainer comes back there."""

    def restored(self) -> Job:
        job = stepping(5, checkpoints=(3,))
        job.lose_trainer(restored_at=3)
        return job

    def test_its_state_is_published_as_the_next_number(self) -> None:
        job = self.restored()
        assert job.last(do.PublishState) == do.PublishState(6, 3, 3)
        assert job.announced("trainer.restored")[0].data == {"checkpoint_step": 3, "replayed": 2}

    def test_the_versions_between_are_abandoned(self) -> None:
        job = self.restored()
        job.publish()
        states = {n: v.state for n, v in job.state.lineage.versions.items()}
        assert [n for n, state in states.items() if state is VersionState.ABANDONED] == [4, 5]
        assert job.state.lineage.current == 6
        assert job.state.lineage.depth(6) == 4

    def test_the_steps_after_it_are_replayed_from_their_batches_in_order(self) -> None:
        job = self.restored()
        digests = {s.step: s.batch_digest for s in of(job.log, do.TrainStep)}
        n_sent = len(of(job.log, do.TrainStep))
        job.publish()
        job.commit()
        job.commit()
        replayed = of(job.log, do.TrainStep)[n_sent:]
        assert [s.step for s in replayed] == [4, 5]
        assert [s.batch_digest for s in replayed] == [digests[4], digests[5]]
        assert [s.publish_version for s in replayed] == [7, 8]

    def test_nothing_is_trained_twice_in_the_ledger(self) -> None:
        job = self.restored()
        before = job.counts()["trained"]
        job.publish()
        job.commit()
        job.commit()
        assert job.counts()["trained"] == before == 10
        assert job.state.step == 5
        assert {job.state.steps[s].replays for s in (4, 5)} == {1}

    def test_each_replayed_step_is_a_version_on_the_new_line(self) -> None:
        job = self.restored()
        job.publish()
        job.commit()
        job.commit()
        lineage = job.state.lineage
        assert lineage.ancestors(8) == [8, 7, 6, 3, 2, 1, 0]
        assert [lineage.live_version_of_step(s) for s in (3, 4, 5)] == [6, 7, 8]

    def test_no_batch_is_taken_meanwhile(self) -> None:
        job = self.restored()
        job.publish()
        job.load()
        job.finish_all()
        assert job.state.training == 4
        assert {s.step for s in of(job.log, do.TrainStep)} == {1, 2, 3, 4, 5}

    def test_afterwards_the_job_goes_on(self) -> None:
        job = self.restored()
        job.publish()
        job.commit()
        job.commit()
        job.load()
        while job.state.training is None:
            job.finish_all()
        job.commit()
        assert job.state.step == 6
        assert job.state.lineage.current == 9

    def test_a_second_loss_in_the_middle_starts_over(self) -> None:
        job = self.restored()
        job.publish()
        job.commit()  # step 4 again, as version 7
        job.lose_trainer(restored_at=3)
        # 5 had been given version 8 by then, so the state goes out as 9
        assert job.last(do.PublishState) == do.PublishState(9, 6, 3)
        job.publish()
        assert job.state.to_replay == [4, 5]
        job.commit()
        job.commit()
        assert job.state.lineage.ancestors(job.state.lineage.current)[:4] == [11, 10, 9, 6]
        assert job.state.step == 5

    def test_a_lost_stream_in_the_middle_goes_on_where_it_stands(self) -> None:
        job = self.restored()
        job.publish()
        job.commit()
        job.lose_trainer(restored_at=4, is_attached=True)
        assert job.train_step.step == 5
        assert job.state.to_replay == [5]

    def test_one_that_comes_back_at_n_after_all_replays_nothing(self) -> None:
        """The one that was to replay died before it had published; another one has the newest checkpoint."""
        job = self.restored()
        assert job.state.to_replay == [4, 5]
        job.lose_trainer(restored_at=5)
        assert job.state.to_replay == []
        assert not job.state.is_batch_out

    def test_a_batch_that_is_out_follows_the_replay(self) -> None:
        job = stepping(2, checkpoints=(1,))
        while job.state.training is None:
            job.finish_all()
        out = job.train_step
        job.lose_trainer(restored_at=1)
        job.publish()
        job.commit()
        assert job.train_step.step == 3
        assert job.train_step.batch_digest == out.batch_digest
        assert job.train_step.publish_version > out.publish_version
        job.commit()
        assert job.state.step == 3

    def test_what_was_made_under_the_abandoned_versions_leaves_as_off_lineage(self) -> None:
        job = at_step(2, groups=1, max_steps=9, policy=make_policy(alpha=1), checkpoints=(1,))
        fresh = [g for g in job.groups if g.state == "open"][-1]
        job.start(*fresh.live, version=2)
        job.lose_trainer(restored_at=1)
        job.publish()
        assert (fresh.state.value, fresh.reason.split(":")[0]) == ("dropped", "off_lineage")
        assert any(r.parent_group == fresh.id for r in job.state.requeues) or any(
            g.parent_group == fresh.id for g in job.groups
        )

    def test_what_was_made_before_the_fork_stays_and_is_counted_along_the_new_line(self) -> None:
        job = at_step(2, groups=1, max_steps=9, policy=make_policy(alpha=3), checkpoints=(1,))
        old = [g for g in job.groups if g.state == "open"][-1]
        job.start(*old.live, version=1)
        assert job.state.lineage.lag(1) == 1
        job.lose_trainer(restored_at=1)
        job.publish()
        assert old.state == "open"
        assert job.state.lineage.lag(1) == 1  # the restored state is one deeper
        job.commit()
        assert job.state.lineage.lag(1) == 2

    def test_a_batch_that_is_gone_fails_the_job(self) -> None:
        job = stepping(4, checkpoints=(3,))
        job.lose_trainer(restored_at=1)
        assert job.state.phase is Phase.FAILED
        assert job.state.reason == "batch_missing: stored batches of steps [2, 3] are gone, cannot replay"

    def test_a_trainer_ahead_of_the_database_fails_the_job(self) -> None:
        job = stepping(2)
        job.lose_trainer(restored_at=7)
        assert job.state.phase is Phase.FAILED
        assert job.state.reason.startswith("checkpoint_unknown: the trainer came back at step 7, but 2 is the newest")


class TestAnswersFromTheDead:
    def test_an_answer_of_the_lost_trainer_does_not_commit(self) -> None:
        """Its number was taken away from the step, so a late answer names a version that nobody waits for."""
        job = stepping(0)
        job.finish_all()
        old = job.train_step
        job.lose_trainer(restored_at=0)
        event = did.StepFinished(1, old.batch_digest, old.publish_version, "digest-old", 10)
        assert job.tell(event) == []
        assert job.state.step == 0
        job.commit()
        assert job.state.lineage.current == 2

    def test_an_answer_while_no_trainer_is_there_is_ignored(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.tell(did.TrainerLost(job.state.trainer_id))
        assert job.commit() == []

    def test_a_training_fault_fails_the_job_with_its_text(self) -> None:
        job = stepping(1)
        job.finish_all()
        job.tell(did.TrainingFailed("loss_nan", "loss is nan in step 2"))
        assert (job.state.phase, job.state.reason) == (Phase.FAILED, "loss_nan: loss is nan in step 2")
        assert job.counts()["aborted"] == 2
        assert job.counts()["trained"] == 2
        assert job.last(do.EndJob) == do.EndJob("failed", "loss_nan: loss is nan in step 2")


class TestRetry:
    """A fault that the trainer calls passing (a store that is away) costs another send of the same step."""

    FAULT = did.TrainingFailed("push_failed", "node unreachable", is_retryable=True)

    def test_the_step_is_sent_again_under_the_same_number(self) -> None:
        job = stepping(0)
        job.finish_all()
        job.tell(self.FAULT)
        assert numbers(job, do.TrainStep) == [(1, 1), (1, 1)]
        job.commit()
        assert job.state.step == 1

    def test_retries_are_bounded(self) -> None:
        job = stepping(0)
        job.finish_all()
        while job.state.phase is Phase.RUNNING:
            job.tell(self.FAULT)
        assert job.state.reason == "push_failed: node unreachable"
        assert len(job.announced("trainer.retried")) == MAX_RETRIES

    def test_a_commit_forgets_them(self) -> None:
        job = stepping(0)
        for _ in range(MAX_RETRIES + 1):
            job.finish_all()
            job.tell(self.FAULT)
            job.commit()
            job.load()
        assert job.state.phase is Phase.RUNNING
