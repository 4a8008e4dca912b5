"""Staleness and the take: what is evicted, what waits, what the batch is made of."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.jobs import LAKE, Job, at_step, make_policy, of, running
from testkit.world import Chances, World

from headrace.core.async_policy import PRESETS, AsyncPolicy
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import JobPlan, Limits, TaskPlan
from headrace.core.job.rows import BatchGroup, BatchMember, Group, Key
from headrace.core.job.taking import batch_digest

SMALL = {"groups": 1, "group_size": 2, "max_steps": 20}


def advance(job: Job) -> None:
    """The step that is out commits and every worker loads its version."""
    job.commit()
    job.load()


def train_one(job: Job, *, keep: Group) -> None:
    """Some other group is trained; `keep` stays where it is."""
    while job.state.training is None:
        group = next(g for g in job.groups if g is not keep and g.state == "open")
        job.finish_group(group)
    advance(job)


class TestEviction:
    def test_a_finished_group_ages_while_it_waits(self) -> None:
        """alpha 1, B = 1: three groups finish under 0; two are taken, at 0 and 1, and at 2 the third is too old."""
        job = running(**SMALL, policy=make_policy(alpha=1, overcommit=1.5))
        groups = list(job.groups)
        for group in groups:
            job.finish_group(group)
        assert [g.state.value for g in groups] == ["taken", "ready", "ready"]
        advance(job)
        assert [g.state.value for g in groups] == ["taken", "taken", "dropped"]
        assert {m.state.value for m in groups[2].members.values()} == {"evicted_stale"}
        assert job.state.counters["max_trained_lag"] == 1

    def test_the_group_that_can_not_be_taken_any_more_leaves_at_the_take(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        slow, quick = job.groups
        job.start(*slow.live)
        job.finish_group(quick)  # taken at n = 0: m = 1
        assert slow.state == "open"
        advance(job)
        (fresh,) = [g for g in job.groups if g is not slow]
        job.finish_group(fresh)  # taken at n = 1: m = 2, and 2 - 0 > 1
        assert (slow.state.value, slow.reason) == ("dropped", "evicted_stale: lag 2 at the next take, alpha 1")
        assert {m.state.value for m in slow.members.values()} == {"evicted_stale"}

    def test_running_members_are_told_to_stop(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        slow, quick = job.groups
        job.start(*slow.live)
        keys = sorted(slow.members)
        job.finish_group(quick)
        advance(job)
        seen = len(job.log)
        job.finish_group(next(g for g in job.groups if g is not slow))
        stopped = of(job.log[seen:], do.AbortAttempt)
        assert sorted(a.key for a in stopped) == keys
        assert {a.reason for a in stopped} == {"evicted_stale"}

    def test_a_group_is_as_old_as_its_oldest_sibling(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        slow, quick = job.groups
        old, young = job.members(slow)
        job.start(old)
        job.finish_group(quick)
        advance(job)
        job.start(young)
        assert (old.start_version, young.start_version) == (0, 1)
        job.finish_group(next(g for g in job.groups if g is not slow))
        assert young.state.value == "evicted_stale"

    def test_a_group_whose_members_have_not_started_is_not_old(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        idle, quick = job.groups
        job.finish_group(quick)
        advance(job)
        job.finish_group(next(g for g in job.groups if g is not idle))
        assert idle.state == "open"

    def test_alpha_0_keeps_nothing_that_started_before_the_update(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=0, overcommit=2.0))
        first, second = job.groups
        job.start(*second.live)
        job.finish_group(first)
        assert second.state == "dropped"

    def test_without_alpha_nothing_is_evicted(self) -> None:
        job = running(**SMALL, policy=make_policy("partial", alpha=None))
        slow = job.groups[0]
        job.start(*slow.live)
        for _ in range(5):
            train_one(job, keep=slow)
        assert slow.state == "open"
        job.finish_group(slow)
        assert max(job.lags()) == 5


class TestRequeue:
    def stale(self, job: Job) -> Group:
        """Makes the oldest open group stale and returns it."""
        slow = job.groups[0]
        job.start(*slow.live)
        while slow.state == "open":
            job.finish_group(next(g for g in job.groups if g is not slow and g.state == "open"))
            if job.state.training is not None:
                advance(job)
        return slow

    def test_the_prompt_comes_back_as_a_new_group(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        slow = self.stale(job)
        again = next(g for g in job.all_groups.values() if g.parent_group == slow.id)
        assert (again.env_seed, again.task, again.requeues) == (slow.env_seed, "lake", 1)
        assert job.state.counters["requeued"] == 1

    def test_it_is_sampled_anew(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1))
        slow = self.stale(job)
        again = next(g for g in job.all_groups.values() if g.parent_group == slow.id)
        seeds = {a.group_id: a.sampling_seed for a in of(job.log, do.AssignAttempt) if a.sibling == 0}
        assert seeds[slow.id] != seeds[again.id]

    def test_max_requeues_then_given_up_and_counted(self) -> None:
        """A prompt that takes longer than alpha allows: three times issued, then reported."""
        job = running(**SMALL, policy=make_policy(alpha=1), limits={"max_requeues": 2})
        prompt = job.groups[0].env_seed
        lineage = []
        while job.state.counters["prompts_given_up"] == 0:
            slow = next((g for g in job.groups if g.env_seed == prompt and g.state == "open"), None)
            if slow is None:
                train_one(job, keep=job.groups[0])
                continue
            job.start(*slow.live)
            lineage.append(slow.requeues)
            while slow.state == "open":
                train_one(job, keep=slow)
        assert lineage == [0, 1, 2]
        assert job.state.counters["requeued"] == 2
        assert not any(g.env_seed == prompt and g.closed_at is None for g in job.all_groups.values())

    def test_requeued_prompts_go_before_fresh_ones(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1), tasks=(TaskPlan("lake", n_prompts=4),))
        self.stale(job)
        assert job.state.cursors["lake"] <= 4
        assert any(g.parent_group for g in job.all_groups.values())


class TestOrder:
    def test_earliest_start_first_then_arrival(self) -> None:
        job = running(groups=2, group_size=2, max_steps=9, policy=make_policy(alpha=2))
        a, b, c, d, e, f = job.groups
        for group in (a, b):
            job.finish_group(group)
        job.start(*f.live)  # f starts under 0
        advance(job)
        job.start(*d.live, *e.live, *c.live)  # under 1
        job.finish_group(d)
        assert job.state.training is None
        job.tell(*(job.finished(m) for m in [*f.live, *e.live]))
        assert [g.group_id for g in job.train_step.groups] == [f.id, d.id]  # v0 = 0 first, then who arrived first
        assert [m.lag for g in job.train_step.groups for m in g.members] == [1, 1, 0, 0]

    def test_a_batch_names_its_members_by_sibling(self) -> None:
        job = running(groups=1, group_size=3, policy=make_policy(alpha=0))
        for sibling in (2, 0, 1):
            job.finish(job.members(job.groups[0])[sibling], float(sibling))
        members = job.train_step.groups[0].members
        assert [(m.sibling, m.reward, m.lag) for m in members] == [(0, 0.0, 0), (1, 1.0, 0), (2, 2.0, 0)]
        assert all(m.token_blob == f"tokens-{m.key.trajectory_id}" for m in members)

    def test_the_rows_of_a_batch_know_when_they_were_taken(self) -> None:
        job = running()
        job.finish_group(job.groups[0])
        job.finish_group(job.groups[1])
        sampled = [a for a in job.rows.values() if a.state == "sampled"]
        assert {(a.step, a.sample_version, a.finish_version, a.start_version) for a in sampled} == {(1, 0, 0, 0)}
        assert {g.step for g in job.groups if g.state == "taken"} == {1}


class TestTake:
    def test_one_step_is_out_at_a_time(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy(alpha=1))
        for group in list(job.groups):
            job.finish_group(group)
        assert len(of(job.log, do.TrainStep)) == 1
        advance(job)
        assert [s.step for s in of(job.log, do.TrainStep)] == [1, 2]

    def test_nothing_is_taken_before_all_workers_serve_n(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy(alpha=1))
        for group in list(job.groups):
            job.finish_group(group)
        job.commit()
        job.prefetch()
        job.update(job.workers[0])
        assert job.state.training is None
        job.update(job.workers[1])
        assert job.state.training == 2

    def test_nothing_is_taken_without_a_trainer(self) -> None:
        job = running(groups=1)
        job.tell(did.TrainerLost(job.state.trainer_id))
        job.finish_group(job.groups[0])
        assert not of(job.log, do.TrainStep)

    def test_every_trained_member_lags_by_at_most_alpha(self) -> None:
        job = at_step(5, groups=2, max_steps=9)
        assert job.state.counters["max_trained_lag"] == 1
        assert all(m.lag <= 1 for s in of(job.log, do.TrainStep) for g in s.groups for m in g.members)

    def test_alpha_0_trains_only_what_the_trainers_version_made(self) -> None:
        job = at_step(4, groups=2, max_steps=9, policy=make_policy(alpha=0))
        assert job.state.counters["max_trained_lag"] == 0
        for step in of(job.log, do.TrainStep):
            keys = [m.key for g in step.groups for m in g.members]
            assert {job.rows[key].start_version for key in keys} == {step.policy_version}

    @pytest.mark.parametrize(
        ("policy", "parts"),
        [
            pytest.param(make_policy(alpha=0), (3.0, 0.5, 4.0), id="swap"),
            pytest.param(make_policy("independent"), (0.0, 0.0, 7.5), id="workers load on their own"),
        ],
    )
    def test_the_wall_time_before_the_take_is_split(self, policy: AsyncPolicy, parts: tuple[float, ...]) -> None:
        job = running(groups=1, max_steps=9, policy=policy)
        job.finish_group(job.groups[0])
        job.now += 2.0
        job.commit()
        job.now += 3.0
        job.prefetch()
        job.now += 0.5
        job.update()
        job.now += 4.0
        job.finish_all()
        seconds = job.state.steps[2].seconds
        assert (seconds["exposed_pull"], seconds["load"], seconds["buffer_wait"]) == parts

    def test_a_late_worker_counts_no_more(self) -> None:
        job = running(groups=1, max_steps=9, limits={"prefetch_s": 10.0})
        job.finish_group(job.groups[0])
        job.commit()
        job.prefetch(job.workers[0])
        job.wait(10.0)
        job.update(job.workers[0])
        job.finish_all()
        assert job.state.training == 2


class TestQuotaLending:
    TASKS = (TaskPlan("lake"), TaskPlan("tools"))

    def short(self) -> Job:
        """Two groups of lake are ready, none of tools; B = 2, one of each is wanted."""
        job = running(groups=2, tasks=self.TASKS, limits={"quota_patience_s": 60.0}, max_steps=9)
        for group in [g for g in job.groups if g.task == "lake"]:
            job.finish_group(group)
        return job

    def test_a_full_buffer_of_the_wrong_task_waits(self) -> None:
        job = self.short()
        job.wait(59.0)
        assert job.state.training is None

    def test_after_its_patience_the_task_lends_its_share(self) -> None:
        job = self.short()
        job.wait(59.0)
        job.wait(1.0)
        assert [g.task for g in job.train_step.groups] == ["lake", "lake"]
        assert job.state.counters["quota_lent"] == 1

    def test_a_group_in_time_ends_the_waiting(self) -> None:
        job = self.short()
        job.wait(59.0)
        job.finish_group(next(g for g in job.groups if g.task == "tools"))
        assert Counter(g.task for g in job.train_step.groups) == {"lake": 1, "tools": 1}
        assert job.state.counters["quota_lent"] == 0

    def test_patience_starts_anew_for_the_next_step(self) -> None:
        job = self.short()
        job.wait(60.0)
        advance(job)
        for group in [g for g in job.groups if g.task == "lake" and g.state == "open"]:
            job.finish_group(group)
        job.wait(59.0)
        assert job.state.training is None
        job.wait(1.0)
        assert job.state.training == 2


class TestWaitForTheOld:
    """`on_stale: wait`: the take is held while a group that it would make stale is still on its way."""

    def waiting(self, **limits: float) -> tuple[Job, Group]:
        policy = make_policy(alpha=1, on_stale="wait", overcommit=2.0)
        job = running(**SMALL, policy=policy, limits={"stale_deadline_s": 60.0, **limits})
        slow, quick, *_ = job.groups
        job.start(*slow.live)
        job.finish_group(quick)
        advance(job)
        assert job.state.lineage.lag(0) == 1
        job.finish_group(next(g for g in job.groups if g is not slow and g.state == "open"))
        return job, slow

    def test_the_take_is_held(self) -> None:
        job, slow = self.waiting()
        assert job.state.training is None
        assert slow.state == "open"

    def test_the_old_one_enters_first(self) -> None:
        job, slow = self.waiting()
        job.finish_group(slow)
        assert [g.group_id for g in job.train_step.groups] == [slow.id]
        assert job.lags() == [1, 1]

    def test_a_drop_ends_the_waiting(self) -> None:
        job, slow = self.waiting()
        for _ in range(3):
            job.fail(next(a for a in slow.live if a.sibling == 0))
        assert slow.state == "dropped"
        assert job.state.training == 2

    def test_the_deadline_ends_the_waiting_and_the_old_one_leaves(self) -> None:
        job, slow = self.waiting()
        job.wait(59.0)
        assert job.state.training is None
        job.wait(1.0)
        assert job.state.training == 2
        assert slow.state == "dropped"
        assert "evicted_stale" in slow.reason

    def test_evict_does_not_wait(self) -> None:
        job = running(**SMALL, policy=make_policy(alpha=1, on_stale="evict", overcommit=2.0))
        slow, quick, *_ = job.groups
        job.start(*slow.live)
        job.finish_group(quick)
        advance(job)
        job.finish_group(next(g for g in job.groups if g is not slow and g.state == "open"))
        assert job.state.training == 2
        assert slow.state == "dropped"


class TestDigest:
    MEMBER = BatchMember(Key("trj_1", 1), 0, "blob", 1.0, False, 0)

    def digest(self, **changed: object) -> str:
        return batch_digest((BatchGroup("grp_1", "lake", (self.MEMBER._replace(**changed),)),))

    @pytest.mark.parametrize("changed", [{"reward": 0.0}, {"token_blob": "other"}, {"key": Key("trj_1", 2)}])
    def test_it_is_over_what_the_trainer_uses(self, changed: dict[str, object]) -> None:
        assert self.digest(**changed) != self.digest()

    def test_it_is_the_same_for_the_same_batch(self) -> None:
        assert self.digest() == self.digest()

    def test_every_step_has_its_own(self) -> None:
        job = at_step(3, max_steps=9)
        digests = [s.batch_digest for s in of(job.log, do.TrainStep)]
        assert len(digests) == len(set(digests)) >= 3


@settings(max_examples=40)
@given(
    st.integers(0, 3),
    st.sampled_from([1.0, 1.5, 2.0]),
    st.lists(st.sampled_from(["start", "finish", "finish", "commit", "load"]), max_size=60),
    st.randoms(use_true_random=False),
)
def test_max_lag_over_all_that_is_trained_is_within_alpha(
    alpha: int, overcommit: float, moves: list[str], rng: object
) -> None:
    """Whatever finishes when, and whenever workers load: L <= alpha, and no attempt is taken twice."""
    policy = make_policy(alpha=alpha, overcommit=overcommit)
    job = running(groups=2, group_size=2, max_steps=99, policy=policy, tasks=(LAKE,))
    for move in moves:
        idle = [a for a in job.generating if a.state == "queued"]
        if move == "start" and idle:
            job.start(rng.choice(idle), version=rng.choice(job.state.lineage.ancestors(job.state.lineage.current)[:2]))
        elif move == "finish" and job.generating:
            job.finish(rng.choice(job.generating))
        elif move == "commit" and job.state.training is not None:
            job.commit()
        elif move == "load":
            job.load()
    steps = of(job.log, do.TrainStep)
    taken = [m.key for s in steps for g in s.groups for m in g.members]
    assert len(taken) == len(set(taken))
    assert all(0 <= m.lag <= alpha for s in steps for g in s.groups for m in g.members)
    assert all(sum(len(g.members) for g in s.groups) == 4 for s in steps)


def test_with_alpha_zero_a_task_that_never_ends_lends_its_share_and_the_job_goes_on() -> None:
    plan = JobPlan(
        job_id="job_lend",
        seed=1,
        max_steps=2,
        groups=4,
        group_size=2,
        tasks=(
            TaskPlan("lake"),
            TaskPlan("stuck", reward_names=("never",), reward_weights=(1.0,), has_env_reward=False),
        ),
        policy=PRESETS["sync_plus"],
        limits=Limits(quota_patience_s=20.0, step_s=5000.0, reward_tries=1, max_failed_groups=10_000),
    )
    world = World(plan, 3, Chances(unscorable=1.0)).run()
    assert world.machine.state.phase == "succeeded", world.machine.state.reason
    assert world.machine.state.counters["quota_lent"] == 4
