"""Evaluation: one version, fixed held-out episodes, its own ledger, never in the buffer."""

from collections import Counter

import pytest
from testkit.jobs import ENV, LAKE, TOOLS, Job, make_policy, of, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import swaps
from headrace.core.job.plan import TaskPlan
from headrace.core.job.rows import Attempt

W0, W1 = "inference-0@a", "inference-1@a"
TWO = {"episodes": 2}


def evaluating(episodes: int = 2, *, n_workers: int = 2, **fields: object) -> Job:
    """Version 0 is served and its evaluation runs beside the first rollouts; one group a step."""
    evaluation = {"episodes": episodes, **fields.pop("evaluation", {})}
    values = {"groups": 1, "max_steps": 3, "evaluation": evaluation, **fields}
    return running(n_workers, **values)


def episodes(job: Job, mode: str | None = None) -> list[Attempt]:
    """Evaluation attempts that run, by group and sibling."""
    found = [a for a in job.generating if a.purpose == "eval" and mode in (None, a.mode)]
    return sorted(found, key=lambda a: a.key)


def finish_evaluation(job: Job, reward: float = 1.0) -> list[do.Action]:
    actions: list[do.Action] = []
    while episodes(job):
        actions += job.finish(episodes(job)[0], reward)
    return actions


def train(job: Job) -> None:
    """One step, whatever evaluation does."""
    while job.state.training is None:
        attempt = next(a for a in job.generating if a.purpose == "train")
        job.finish(attempt)
    job.commit()
    job.load()


class TestEpisodes:
    def test_each_seed_is_played_once_per_mode(self) -> None:
        job = evaluating(3)
        assigned = [a for a in of(job.log, do.AssignAttempt) if a.purpose == "eval"]
        by_seed: dict[int, list[bool]] = {}
        for action in assigned:
            by_seed.setdefault(action.env_seed, []).append(action.is_greedy)
        assert len(by_seed) == 3
        assert all(sorted(modes) == [False, True] for modes in by_seed.values())

    def test_they_are_held_out_and_pinned_to_the_version(self) -> None:
        job = evaluating()
        assigned = [a for a in of(job.log, do.AssignAttempt) if a.purpose == "eval"]
        assert {(a.split, a.pinned_version) for a in assigned} == {("heldout", 0)}
        assert {a.cohort for a in assigned} == {""}

    def test_seeds_are_disjoint_from_training(self) -> None:
        job = evaluating(16, groups=8)
        train_seeds = {a.env_seed for a in of(job.log, do.AssignAttempt) if a.purpose == "train"}
        eval_seeds = {a.env_seed for a in of(job.log, do.AssignAttempt) if a.purpose == "eval"}
        assert train_seeds
        assert not train_seeds & eval_seeds

    def test_every_evaluation_plays_the_same_episodes_with_the_same_draws(self) -> None:
        job = evaluating(max_steps=1)
        finish_evaluation(job)
        train(job)
        first = {(a.env_seed, a.is_greedy): a for a in of(job.log, do.AssignAttempt) if a.pinned_version == 0}
        second = {(a.env_seed, a.is_greedy): a for a in of(job.log, do.AssignAttempt) if a.pinned_version == 1}
        assert first.keys() == second.keys()
        assert {k: a.sampling_seed for k, a in first.items()} == {k: a.sampling_seed for k, a in second.items()}

    def test_another_job_seed_plays_the_same_episodes(self) -> None:
        """Held-out episodes belong to the task, so that runs with different seeds can be compared."""
        seeds = [
            {a.env_seed for a in of(evaluating(seed=seed).log, do.AssignAttempt) if a.purpose == "eval"}
            for seed in (1, 2)
        ]  # fmt: skip
        assert seeds[0] == seeds[1]

    def test_evaluation_goes_before_training(self) -> None:
        job = evaluating(slots=3)
        assert [a.purpose for a in of(job.log, do.AssignAttempt)] == ["eval"] * 3

    def test_modes_can_be_chosen(self) -> None:
        job = evaluating(evaluation={"modes": ("greedy",)})
        assert {a.mode for a in episodes(job)} == {"greedy"}


class TestScores:
    def test_means_by_task_and_mode(self) -> None:
        job = evaluating(2, tasks=(LAKE, TOOLS), groups=2)
        for attempt in episodes(job, "greedy"):
            job.finish(attempt, 1.0)
            job.grade(attempt, 0.5)
        for attempt, reward in zip(episodes(job, "sampled"), (1.0, 0.0, 1.0, 0.0), strict=True):
            job.finish(attempt, reward)
            job.grade(attempt, reward)
        assert job.state.evaluated["0"] == {
            "lake/greedy": 1.0, "lake/sampled": 0.5, "tools/greedy": 0.5, "tools/sampled": 0.5,
        }  # fmt: skip

    def test_the_result_names_its_version(self) -> None:
        job = evaluating()
        finish_evaluation(job)
        (line,) = job.announced("evaluation.finished")
        assert line.data == {
            "policy_version": 0, "step": 0, "means": {"lake/greedy": 1.0, "lake/sampled": 1.0}, "lost": 0,
        }  # fmt: skip

    def test_it_has_its_own_equation(self) -> None:
        job = evaluating()
        finish_evaluation(job)
        assert job.counts("eval") == {"evaluated": 4}
        assert job.state.ledger.issued["eval", "lake"] == 4
        assert job.state.ledger.closed["eval", "lake", "evaluated"] == 4

    def test_nothing_of_it_is_ever_trained(self) -> None:
        job = evaluating(max_steps=2, evaluation={"every": 1})
        for _ in range(2):
            finish_evaluation(job)
            train(job)
        finish_evaluation(job)
        trained = {m.key for s in of(job.log, do.TrainStep) for g in s.groups for m in g.members}
        assert not trained & {a.key for a in job.rows.values() if a.purpose == "eval"}

    def test_equal_scores_are_not_filtered_and_no_member_is_surplus(self) -> None:
        job = evaluating(filter="zero_variance", redundancy="1.5")
        finish_evaluation(job, 0.0)
        assert job.counts("eval") == {"evaluated": 4}


class TestWhen:
    def test_at_the_start_every_n_steps_and_at_the_end(self) -> None:
        job = evaluating(1, max_steps=4, evaluation={"every": 2})
        finish_evaluation(job)
        for _ in range(4):
            train(job)
            finish_evaluation(job)
        assert sorted(job.state.evaluated, key=int) == ["0", "2", "4"]
        assert of(job.log, do.CloseTraining)

    def test_only_at_the_end(self) -> None:
        job = evaluating(1, max_steps=1, evaluation={"at_start": False})
        assert not episodes(job)
        train(job)
        assert not of(job.log, do.CloseTraining)
        finish_evaluation(job)
        assert sorted(job.state.evaluated) == ["1"]
        assert of(job.log, do.CloseTraining)

    def test_not_at_all(self) -> None:
        job = evaluating(1, max_steps=1, evaluation={"at_start": False, "at_end": False})
        train(job)
        assert job.state.evaluated == {}
        assert of(job.log, do.CloseTraining)

    def test_a_version_is_evaluated_once(self) -> None:
        job = evaluating(1, max_steps=2, evaluation={"every": 2})
        finish_evaluation(job)
        train(job)
        train(job)
        finish_evaluation(job)
        assert Counter(line.data["step"] for line in job.announced("evaluation.started")) == {0: 1, 2: 1}

    def test_it_waits_for_an_environment_process(self) -> None:
        job = Job(evaluating().plan)
        job.tell(did.WorkersChanged(frozenset(job.workers)), did.ProxyOpened("p@a"), did.TrainerOpened("t@a", 0, True))
        job.publish()
        job.load()
        assert not job.announced("evaluation.started")
        job.tell(did.EnvOpened(ENV, 8, frozenset()))
        assert job.announced("evaluation.started")


class TestHeldWorkers:
    def test_a_worker_stays_at_the_version_while_the_rest_load(self) -> None:
        job = evaluating()
        assert do.PinVersion(0, 1) in job.log
        train(job)
        assert job.state.workers[W0].serving_version == 0
        assert job.state.workers[W1].serving_version == 1
        assert swaps.held_workers(job.state) == {W0}
        assert swaps.is_settled(job.state)

    def test_it_loads_when_the_evaluation_is_over(self) -> None:
        job = evaluating()
        train(job)
        actions = finish_evaluation(job)
        assert do.PinVersion(0, 0) in actions
        (update,) = of(actions, do.UpdateWeights)
        assert (update.policy_version, update.worker_ids) == (1, (W0,))
        assert swaps.held_workers(job.state) == set()

    def test_training_goes_on_meanwhile(self) -> None:
        job = evaluating(max_steps=9)
        for _ in range(3):
            train(job)
        assert job.state.step == 3
        assert episodes(job)
        assert job.state.counters["max_trained_lag"] <= 1

    def test_with_one_worker_the_next_load_waits(self) -> None:
        job = evaluating(n_workers=1)
        for attempt in [a for a in job.generating if a.purpose == "train"][:2]:
            job.finish(attempt)
        job.commit()
        job.prefetch()
        assert not of(job.log[-5:], do.UpdateWeights)
        assert job.state.workers[W0].serving_version == 0
        finish_evaluation(job)
        assert job.last(do.UpdateWeights).policy_version == 1

    def test_while_n_is_what_is_evaluated_nobody_is_held(self) -> None:
        assert swaps.held_workers(evaluating().state) == set()

    def test_a_new_proxy_is_told_of_the_pin(self) -> None:
        job = evaluating()
        assert do.PinVersion(0, 1) in job.tell(did.ProxyOpened("proxy@b"))
        finish_evaluation(job)
        assert do.PinVersion(0, 0) in job.tell(did.ProxyOpened("proxy@c"))  # it may hold workers from before


class TestLosses:
    def test_a_lost_episode_is_played_again(self) -> None:
        job = evaluating(1)
        lost = episodes(job)[0]
        (again,) = of(job.fail(lost, "infra"), do.AssignAttempt)
        assert again.key == (lost.key.trajectory_id, 2)
        assert (again.pinned_version, again.split) == (0, "heldout")
        finish_evaluation(job)
        assert job.counts("eval") == {"failed_infra": 1, "evaluated": 2}

    def test_tries_are_bounded_and_the_loss_is_counted(self) -> None:
        job = evaluating(1)
        for _ in range(3):
            job.fail(episodes(job, "greedy")[0], "env")
        assert not episodes(job, "greedy")
        finish_evaluation(job)
        (line,) = job.announced("evaluation.finished")
        assert line.data["lost"] == 1
        assert line.data["means"] == {"lake/sampled": 1.0}

    def test_a_lost_process_costs_a_try(self) -> None:
        job = evaluating(1)
        job.tell(did.EnvLost(ENV), did.EnvOpened("env-0@b", 64, frozenset()))
        assert {a.key.attempt for a in episodes(job)} == {2}
        finish_evaluation(job)
        assert job.state.evaluated["0"] == {"lake/greedy": 1.0, "lake/sampled": 1.0}

    def test_an_unscorable_episode_gives_no_zero(self) -> None:
        job = evaluating(1)
        for _ in range(3):
            job.finish(episodes(job, "greedy")[0], None)
        finish_evaluation(job)
        assert job.state.evaluated["0"] == {"lake/sampled": 1.0}

    def test_evaluation_failures_do_not_count_against_training(self) -> None:
        job = evaluating(8, limits={"max_failed_groups": 1})
        while episodes(job):
            job.fail(episodes(job)[0])
        assert job.state.phase == "running"
        assert job.state.failed_in_a_row == 0


class TestDeadline:
    def test_it_ends_with_what_it_has(self) -> None:
        job = evaluating(2, evaluation={"deadline_s": 100.0})
        for attempt in episodes(job, "greedy"):
            job.finish(attempt, 1.0)
        job.wait(99.0)
        assert job.state.evaluation is not None
        actions = job.wait(1.0)
        assert job.state.evaluation is None
        assert job.state.evaluated["0"] == {"lake/greedy": 1.0}
        assert job.counts("eval") == {"evaluated": 2, "aborted": 2}
        assert {a.reason for a in of(actions, do.AbortAttempt)} == {"aborted"}
        assert job.announced("evaluation.finished")[0].data["lost"] == 2

    def test_the_workers_are_let_go(self) -> None:
        job = evaluating(2, evaluation={"deadline_s": 100.0})
        train(job)
        assert do.PinVersion(0, 0) in job.wait(100.0)

    def test_late_episodes_change_nothing(self) -> None:
        job = evaluating(1, evaluation={"deadline_s": 100.0})
        late = episodes(job)
        job.wait(100.0)
        for attempt in late:
            assert job.finish(attempt) == [do.AcknowledgeAttempt(attempt.key, ENV)]
        assert job.state.evaluated["0"] == {}

    def test_the_step_clock_stands_while_it_runs(self) -> None:
        job = evaluating(1, limits={"step_s": 50.0}, evaluation={"deadline_s": 1000.0})
        for _ in range(10):
            job.wait(30.0)
        assert job.state.phase == "running"


@pytest.mark.parametrize("preset", ["sync", "sync_plus", "one_off", "bounded"])
def test_every_preset_evaluates_before_and_after(preset: str) -> None:
    job = evaluating(1, max_steps=1, policy=make_policy(preset), tasks=(TaskPlan("lake"),))
    finish_evaluation(job, 0.0)
    train(job)
    finish_evaluation(job, 1.0)
    assert job.state.evaluated == {
        "0": {"lake/greedy": 0.0, "lake/sampled": 0.0}, "1": {"lake/greedy": 1.0, "lake/sampled": 1.0},
    }  # fmt: skip
