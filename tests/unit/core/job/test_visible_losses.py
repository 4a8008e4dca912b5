"""Nothing vanishes unseen: a bounded buffer, slow prompts, jobs without a signal, memory over time."""

import pickle
from collections import Counter

import pytest
from testkit.jobs import Job, make_policy, running

from headrace.core.buffer import Room
from headrace.core.job.plan import TaskPlan
from headrace.core.job.rows import Group

REWARDS = (1.0, 0.0, 1.0, 0.0)


def train(job: Job) -> None:
    """The step that is out commits, with a checkpoint, and every worker loads its version."""
    job.commit(checkpoint_step=job.train_step.step)
    job.load()


class TestBoundedBuffer:
    """Room for four trajectories and a trainer that takes nothing."""

    def test_no_more_are_started_than_there_is_room_for_and_none_is_dropped(self) -> None:
        job = running(groups=2, group_size=2, max_steps=9, policy=make_policy(alpha=4), room=Room(trajectories=4))
        assert len(job.generating) == 4
        job.finish_all()
        assert job.state.training == 1
        job.finish_all()
        assert job.counts() == {"sampled": 4, "ready": 4}
        assert job.generating == []
        assert job.state.counters["admission_blocked_by_buffer"] > 0
        train(job)
        assert job.counts()["trained"] == 4
        assert not {"evicted_stale", "surplus", "group_dropped"} & job.counts().keys()

    def test_issued_is_what_was_trained_waits_or_left_under_a_name(self) -> None:
        job = running(groups=2, group_size=2, max_steps=4, policy=make_policy(alpha=1), room=Room(trajectories=6))
        while job.state.step < 4 and not job.state.is_ended:
            job.finish_all()
            assert sum(len(group.live) for group in job.groups if group.state != "taken") <= 6
            if job.state.training is not None:
                train(job)
        issued = sum(n for (purpose, _), n in job.state.ledger.issued.items() if purpose == "train")
        assert sum(job.counts().values()) == issued


class TestSlowPrompts:
    """Ten prompts of one task; the first takes three updates, alpha is 1."""

    def play(self, **policy: object) -> tuple[Job, int]:
        tasks = (TaskPlan("lake", n_prompts=10),)
        job = running(
            groups=1, group_size=2, max_steps=30, tasks=tasks, policy=make_policy(alpha=1, **policy),
            limits={"stale_deadline_s": 1e6},
        )  # fmt: skip
        prompt = job.groups[0].env_seed
        began: dict[str, int] = {}
        while not job.state.is_ended and job.state.phase == "running" and any(_waits(g) for g in job.groups):
            open_groups = [g for g in job.groups if _waits(g)]
            for group in open_groups:
                job.start(*(a for a in group.live if a.start_version is None))
                began.setdefault(group.id, job.state.step)
            quick = [g for g in open_groups if g.env_seed != prompt or job.state.step - began[g.id] >= 3]
            job.finish_group((quick or open_groups)[0])
            if job.state.training is not None:
                train(job)
        return job, prompt

    def test_discards_are_counted_by_prompt_and_the_last_one_is_told(self) -> None:
        job, prompt = self.play()
        outcomes = Counter((g.env_seed == prompt, g.state.value) for g in job.all_groups.values())
        assert outcomes[True, "dropped"] == 3 and outcomes[True, "taken"] == 0
        assert outcomes[False, "taken"] == 9
        assert job.state.counters["groups_dropped/evicted_stale"] == 3
        (told,) = job.announced("prompt.given_up")
        assert told.data == {
            "task": "lake",
            "env_seed": str(prompt),
            "times": 3,
            "detail": "lag 2 at the next take, alpha 1",
        }

    def test_waiting_for_stale_groups_trains_it(self) -> None:
        job, prompt = self.play(on_stale="wait")
        assert [g.state.value for g in job.all_groups.values() if g.env_seed == prompt] == ["taken"]
        assert job.announced("prompt.given_up") == []


def _waits(group: Group) -> bool:
    return group.state == "open"


class TestNoSignal:
    """An environment that always pays 1, with the filter on."""

    def test_every_step_is_filled_after_a_bounded_number_of_groups_and_the_job_ends(self) -> None:
        limits = {"max_filtered": 2}
        job = running(groups=2, max_steps=3, filter="zero_variance", policy=make_policy(alpha=0), limits=limits)
        while job.state.step < 3:
            job.finish_all()
            if job.state.training is not None:
                job.commit()
                job.load()
        assert job.counts() == {"filtered": 3 * 2 * 2 * 2, "trained": 3 * 4}
        assert job.state.counters["filled_without_variance"] == 6
        told = job.announced("filter.exhausted")
        assert len(told) == 6 and told[0].data["filtered"] == 4

    def test_a_signal_that_comes_back_is_not_told(self) -> None:
        job = running(groups=1, max_steps=3, filter="zero_variance", policy=make_policy(alpha=0))
        job.finish_group(job.groups[0], (1.0, 1.0))
        job.finish_group(job.groups[0], (1.0, 0.0))
        assert job.state.training == 1
        assert job.announced("filter.exhausted") == []


class TestMemory:
    @pytest.mark.parametrize("checkpoint_every", [1, 10])
    def test_what_is_held_does_not_grow_with_the_steps(self, checkpoint_every: int) -> None:
        """300 steps of two groups of four; one group never ends and leaves by its staleness."""
        job = running(groups=2, group_size=4, max_steps=400, policy=make_policy(alpha=1))
        stuck = job.groups[0]
        job.start(*stuck.live)
        n_bytes: dict[int, int] = {}
        for step in range(1, 301):
            while job.state.training is None:
                job.finish_group(next(g for g in job.groups if g is not stuck and g.state == "open"), REWARDS)
            job.now += 1.0
            job.commit(checkpoint_step=step // checkpoint_every * checkpoint_every)
            job.load()
            bound = (job.plan.policy.alpha or 0) + 1
            assert sum(group.state != "taken" for group in job.groups) <= bound * job.plan.groups
            assert len(job.state.steps) <= checkpoint_every, step
            # A committed version is one row of the lineage for good; everything else has to leave.
            assert len(job.state.lineage.versions) == step + 1
            n_bytes[step] = len(pickle.dumps(job.state)) - len(pickle.dumps(job.state.lineage))
        assert stuck.state == "dropped"
        assert n_bytes[300] <= 1.2 * n_bytes[100]
