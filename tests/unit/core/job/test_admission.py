"""Which groups start: staleness, demand and room gate new groups; nothing gates siblings and refills."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testkit.jobs import ENV, LAKE, TOOLS, Job, at_step, make_policy, of, opened, running
from testkit.world import World

from headrace.core.async_policy import PRESETS
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job.plan import JobPlan, TaskPlan
from headrace.core.ledger import AttemptState

B = 4


def open_groups(job: Job) -> int:
    return len(job.groups)


class TestBound:
    """overcommit * (w + alpha - m + 1) * B groups wait at most, B = 4."""

    @pytest.mark.parametrize(
        ("policy", "groups"),
        [
            (make_policy("bounded", alpha=0), 4),
            (make_policy("bounded", alpha=1), 8),
            (make_policy("bounded", alpha=4), 20),
            (make_policy("bounded", alpha=1, overcommit=1.5), 12),
            (make_policy("sync"), 4),
            (make_policy("sync_plus"), 4),
            (make_policy("one_off"), 4),  # one batch at a time, whatever alpha says
        ],
    )
    def test_before_the_first_take(self, policy: object, groups: int) -> None:
        job = running(groups=B, max_steps=9, policy=policy)
        assert open_groups(job) == groups

    def test_a_take_with_alpha_1_starts_no_more_before_the_next_version(self) -> None:
        job = running(groups=B, max_steps=9)
        for group in job.groups[:B]:
            job.finish_group(group)
        assert job.state.training == 1
        waiting = [group for group in job.groups if group.state != "taken"]
        assert len(waiting) == B  # (0 + 1 - 1 + 1) * 4: the four that were there before

    def test_a_commit_alone_admits_nothing_for_workers_that_are_behind(self) -> None:
        job = running(groups=B, max_steps=9)
        for group in job.groups[:B]:
            job.finish_group(group)
        job.commit()
        assert open_groups(job) == B  # w = 0, n = 1: (0 + 1 - 1 + 1) * 4
        job.load()
        assert open_groups(job) == 2 * B

    def test_the_slowest_worker_decides(self) -> None:
        job = running(groups=B, max_steps=9)
        for group in job.groups[:B]:
            job.finish_group(group)
        job.commit()
        job.prefetch()
        job.update(job.workers[0])
        assert open_groups(job) == B
        job.update(job.workers[1])
        assert open_groups(job) == 2 * B

    def test_no_more_than_the_steps_that_are_left_need(self) -> None:
        job = running(groups=B, max_steps=1)
        assert open_groups(job) == B

    def test_none_without_a_worker_that_serves(self) -> None:
        job = opened(groups=B)
        job.publish()
        assert open_groups(job) == 0
        job.prefetch()
        assert open_groups(job) == 0
        job.update()
        assert open_groups(job) == 2 * B

    def test_without_overlap_none_start_while_a_batch_is_out(self) -> None:
        job = running(groups=B, max_steps=9, policy=make_policy("sync_plus"))
        job.finish_all()
        assert job.state.training == 1
        assert [group.state.value for group in job.groups] == ["taken"] * B
        job.commit()
        assert open_groups(job) == 0  # workers load first
        job.load()
        assert open_groups(job) == B

    def test_one_batch_of_overlap_starts_the_next_batch_at_the_take(self) -> None:
        job = running(groups=B, max_steps=9, policy=make_policy("one_off"))
        job.finish_all()
        states = Counter(group.state.value for group in job.groups)
        assert states == {"taken": B, "open": B}

    def test_a_dropped_group_is_replaced_at_once(self) -> None:
        job = running(groups=B, max_steps=9, limits={"max_attempts": 1})
        gone = job.groups[0]
        job.fail(gone.live[0])
        assert gone.id not in job.state.groups
        assert open_groups(job) == 2 * B

    @settings(max_examples=30)
    @given(
        st.integers(0, 3), st.integers(1, 5), st.sampled_from([1.0, 1.5, 2.0]), st.lists(st.integers(0, 9), max_size=20)
    )
    def test_never_more_wait_than_the_bound(
        self, alpha: int, groups: int, overcommit: float, finishing: list[int]
    ) -> None:
        job = running(groups=groups, max_steps=50, policy=make_policy(alpha=alpha, overcommit=overcommit))
        for index in finishing:
            waiting = [group for group in job.groups if group.state == "open"]
            if waiting:
                job.finish_group(waiting[index % len(waiting)])
            if job.state.training is not None and index % 3 == 0:
                job.commit()
                job.load()
            bound = overcommit * (alpha - job.state.is_batch_out + 1) * groups
            assert sum(group.state != "taken" for group in job.groups) <= max(bound, overcommit * (alpha + 1) * groups)


class TestRoom:
    def test_max_inflight_holds_room_for_whole_groups(self) -> None:
        policy = make_policy(max_inflight=10)
        job = running(groups=B, group_size=4, max_steps=9, policy=policy)
        assert open_groups(job) == 2  # a third would make 12
        job.finish_group(job.groups[0], [1, 0, 1, 0])
        assert open_groups(job) == 3  # one is ready, two are in the making

    def test_redundant_attempts_count_from_admission(self) -> None:
        job = running(groups=B, group_size=4, redundancy="1.5", policy=make_policy(max_inflight=10))
        assert open_groups(job) == 1
        assert len(job.generating) == 6

    def test_slots_gate_attempts_and_not_groups(self) -> None:
        job = running(slots=3, groups=B)
        assert open_groups(job) == 2 * B
        assert len([a for a in job.generating if a.env_worker_id]) == 3
        job.finish(next(a for a in job.generating if a.env_worker_id))
        assert len([a for a in job.generating if a.env_worker_id]) == 3

    def test_a_process_without_slots_gets_nothing(self) -> None:
        job = running(slots=0)
        assert not of(job.log, do.AssignAttempt)
        job.tell(did.EnvOpened("env-1@a", 64, frozenset()))
        assert {a.env_worker_id for a in of(job.log, do.AssignAttempt)} == {"env-1@a"}


class TestMixture:
    def test_the_least_filled_task_is_served_first(self) -> None:
        job = running(groups=3, tasks=(TaskPlan("lake", 2.0), TaskPlan("tools", 1.0)))
        assert Counter(group.task for group in job.groups) == {"lake": 4, "tools": 2}
        assert [group.task for group in job.groups[:3]].count("tools") == 1

    def test_a_task_that_ran_out_lends_what_it_can_not_fill(self) -> None:
        tasks = (TaskPlan("lake", n_prompts=1), TaskPlan("tools"))
        job = running(groups=4, max_steps=9, tasks=tasks, policy=make_policy(alpha=0))
        assert Counter(group.task for group in job.groups) == {"lake": 1, "tools": 2}
        job.wait(1.0)
        assert Counter(group.task for group in job.groups) == {"lake": 1, "tools": 3}
        job.finish_all()
        assert Counter(group.task for group in job.train_step.groups) == {"lake": 1, "tools": 3}

    def test_a_prompt_is_used_once(self) -> None:
        job = running(groups=4, max_steps=9, tasks=(TaskPlan("lake", n_prompts=3), TaskPlan("tools", n_prompts=2)))
        seeds = [(group.task, group.env_seed) for group in job.groups]
        assert len(seeds) == len(set(seeds)) == 5


class TestSeeds:
    def test_members_share_the_environment_seed_and_groups_do_not(self) -> None:
        job = running(groups=3, group_size=4)
        assigned = of(job.log, do.AssignAttempt)
        by_group: dict[str, set[int]] = {}
        for action in assigned:
            by_group.setdefault(action.group_id, set()).add(action.env_seed)
        assert all(len(seeds) == 1 for seeds in by_group.values())
        assert len({seed for seeds in by_group.values() for seed in seeds}) == len(by_group) == 6

    def test_every_attempt_samples_with_its_own_seed(self) -> None:
        job = running(groups=3, group_size=4)
        seeds = [action.sampling_seed for action in of(job.log, do.AssignAttempt)]
        assert len(seeds) == len(set(seeds)) == 24

    def test_the_job_seed_gives_the_same_prompts_again(self) -> None:
        first, again, other = (running(groups=3, seed=seed) for seed in (5, 5, 6))
        drawn = [
            [(a.env_seed, a.sampling_seed) for a in of(job.log, do.AssignAttempt)] for job in (first, again, other)
        ]
        assert drawn[0] == drawn[1]
        assert not set(drawn[0]) & set(drawn[2])

    def test_tasks_do_not_share_prompts(self) -> None:
        job = running(groups=4, tasks=(TaskPlan("lake"), TaskPlan("tools")))
        seeds = [group.env_seed for group in job.groups]
        assert len(seeds) == len(set(seeds))


class TestDispatch:
    def test_an_assignment_carries_all_that_a_process_needs(self) -> None:
        job = running()
        group = job.groups[0]
        attempt = job.members(group)[1]
        action = next(a for a in of(job.log, do.AssignAttempt) if a.key == attempt.key)
        assert (action.env_worker_id, action.purpose, action.group_id) == (ENV, "train", group.id)
        assert (action.sibling, action.task, action.env_seed) == (1, "lake", group.env_seed)
        assert (action.is_greedy, action.pinned_version, action.split) == (False, None, "train")
        assert (action.cohort, action.cohort_size) == ("", 0)

    def test_the_least_loaded_process_is_next(self) -> None:
        job = Job(running().plan)
        job.connect()
        job.tell(did.EnvOpened("env-1@a", 128, frozenset()))
        job.publish()
        job.load()
        loads = Counter(a.env_worker_id for a in of(job.log, do.AssignAttempt))
        assert loads == {ENV: 3, "env-1@a": 5}  # 64 and 128 slots

    def test_refills_go_before_new_groups(self) -> None:
        job = running(slots=4, groups=B)
        first = next(a for a in job.generating if a.env_worker_id)
        actions = job.fail(first)
        (assigned,) = of(actions, do.AssignAttempt)
        assert assigned.key == (first.key.trajectory_id, 2)

    def test_each_attempt_is_handed_out_once(self) -> None:
        job = running(slots=5, groups=B)
        for _ in range(30):
            running_now = [a for a in job.generating if a.env_worker_id]
            if not running_now:
                break
            job.finish(running_now[0])
        keys = [action.key for action in of(job.log, do.AssignAttempt)]
        assert len(keys) == len(set(keys))


class TestCohorts:
    """Lockstep: what starts on an empty pipeline steps together."""

    def lockstep(self, **fields: object) -> Job:
        return running(policy=make_policy("sync"), tasks=(LAKE,), **fields)

    def test_a_batch_is_one_cohort_per_process(self) -> None:
        job = self.lockstep(groups=3)
        assigned = of(job.log, do.AssignAttempt)
        assert len({action.cohort for action in assigned}) == 1
        assert {action.cohort_size for action in assigned} == {6}
        assert assigned[0].cohort

    def test_the_next_batch_is_another_cohort(self) -> None:
        job = self.lockstep(groups=3)
        job.finish_all()
        job.commit()
        job.load()
        cohorts = list(dict.fromkeys(action.cohort for action in of(job.log, do.AssignAttempt)))
        assert len(cohorts) == 2
        assert "step-1" in cohorts[0]
        assert "step-2" in cohorts[1]

    def test_a_refill_steps_alone(self) -> None:
        job = self.lockstep(groups=3)
        (again,) = of(job.fail(job.generating[0]), do.AssignAttempt)
        assert (again.cohort, again.cohort_size) == ("", 0)

    def test_a_replacement_group_is_no_part_of_the_cohort(self) -> None:
        job = self.lockstep(groups=3, limits={"max_attempts": 1})
        actions = job.fail(job.generating[0])
        assert [(a.cohort, a.cohort_size) for a in of(actions, do.AssignAttempt)] == [("", 0)] * 2

    def test_those_that_waited_for_slots_are_a_cohort_under_another_name(self) -> None:
        job = self.lockstep(groups=3, slots=4)
        first = of(job.log, do.AssignAttempt)
        assert {(a.cohort_size) for a in first} == {4}
        later = of(job.tell(*(job.finished(a) for a in job.generating[:2])), do.AssignAttempt)
        assert {a.cohort_size for a in later} == {2}
        assert {a.cohort for a in later}.isdisjoint({a.cohort for a in first})

    def test_processes_have_cohorts_of_their_own(self) -> None:
        job = Job(self.lockstep(groups=4).plan)
        job.connect()
        job.tell(did.EnvOpened("env-1@a", 64, frozenset()))
        job.publish()
        job.load()
        sizes = {(a.env_worker_id, a.cohort): a.cohort_size for a in of(job.log, do.AssignAttempt)}
        assert sorted(sizes.values()) == [4, 4]
        assert len({cohort for _, cohort in sizes}) == 2

    def test_trajectory_policies_have_no_cohorts(self) -> None:
        job = running(groups=3)
        assert {action.cohort for action in of(job.log, do.AssignAttempt)} == {""}


class TestEnvironmentProcesses:
    def test_a_lost_process_costs_new_attempts_with_the_same_environment_seeds(self) -> None:
        job = running()
        before = {action.key.trajectory_id: action.env_seed for action in of(job.log, do.AssignAttempt)}
        samplings = {action.sampling_seed for action in of(job.log, do.AssignAttempt)}
        job.tell(did.EnvLost(ENV))
        assert job.counts() == {"failed_infra": 8, "queued": 8}
        again = of(job.tell(did.EnvOpened("env-0@b", 64, frozenset())), do.AssignAttempt)
        assert {a.key.trajectory_id: a.env_seed for a in again} == before
        assert {a.key.attempt for a in again} == {2}
        assert samplings.isdisjoint({a.sampling_seed for a in again})

    def test_what_has_finished_there_is_not_lost(self) -> None:
        job = running()
        done = job.groups[0]
        job.finish_group(done)
        job.tell(did.EnvLost(ENV))
        assert done.state == "ready"
        assert job.counts() == {"ready": 2, "failed_infra": 6, "queued": 6}

    def test_losing_an_unknown_process_is_nothing(self) -> None:
        job = running()
        assert job.tell(did.EnvLost("env-7@z")) == []

    def test_a_process_that_reopens_gets_again_what_it_lacks(self) -> None:
        job = running()
        keys = sorted(action.key for action in of(job.log, do.AssignAttempt))
        again = of(job.tell(did.EnvOpened(ENV, 64, frozenset(keys[:5]))), do.AssignAttempt)
        assert sorted(action.key for action in again) == keys[5:]

    def test_work_that_nobody_knows_is_stopped(self) -> None:
        job = running()
        done = job.generating[0]
        job.finish(done)
        keys = frozenset(action.key for action in of(job.log, do.AssignAttempt))
        actions = job.tell(did.EnvOpened(ENV, 64, keys))
        assert [(a.key, a.reason) for a in of(actions, do.AbortAttempt)] == [(done.key, "unknown")]

    def test_an_assignment_before_the_start_and_one_after_are_the_same(self) -> None:
        job = running()
        first = {action.key: action for action in of(job.log, do.AssignAttempt)}
        again = of(job.tell(did.EnvOpened(ENV, 64, frozenset())), do.AssignAttempt)
        assert {action.key: action for action in again} == first


def test_ready_work_of_a_finished_step_is_not_counted_against_the_next() -> None:
    job = at_step(2, groups=B, max_steps=9)
    assert sum(group.state != "taken" for group in job.groups) == 2 * B
    assert job.counts()["trained"] == 2 * B * 2
    assert AttemptState.SAMPLED.value not in job.counts()


def test_graded_and_self_paying_tasks_run_side_by_side() -> None:
    job = running(groups=4, tasks=(LAKE, TOOLS))
    job.finish_all()
    assert Counter(group.task for group in job.train_step.groups) == {"lake": 2, "tools": 2}


def test_a_job_has_no_more_live_environments_than_it_asked_for() -> None:
    plan = JobPlan(
        job_id="job_slots",
        seed=1,
        max_steps=2,
        groups=2,
        group_size=3,
        tasks=(TaskPlan("lake"),),
        policy=PRESETS["bounded"],
        env_slots=4,
    )
    world = World(plan, 1)
    most = 0
    while world.ended is None:
        world.step()
        most = max(most, sum(len(env.assigned) for env in world.machine.state.envs.values()))
    assert most == 4
