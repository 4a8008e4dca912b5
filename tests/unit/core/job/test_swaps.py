"""A version reaches the workers: resident on all that live, or past the deadline; then suspend, load, resume."""

import pytest
from testkit.jobs import TOOLS, Job, make_policy, of, opened, running

from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import swaps

W0, W1 = "inference-0@a", "inference-1@a"


def prefetches(actions: object) -> list[int]:
    return [action.policy_version for action in of(actions, do.PrefetchWeights)]


def updates(actions: object) -> list[tuple[int, tuple[str, ...]]]:
    return [(action.policy_version, action.worker_ids) for action in of(actions, do.UpdateWeights)]


def committed(**fields: object) -> Job:
    """Version 1 was just committed; nobody holds it yet."""
    values = {"groups": 1, "max_steps": 9, **fields}
    job = running(**values)
    job.finish_group(job.groups[0])
    job.commit()
    return job


class TestFirstLoad:
    def test_version_0_is_prefetched_then_loaded_by_all_at_once(self) -> None:
        job = opened()
        assert prefetches(job.publish()) == [0]
        assert updates(job.prefetch(W0)) == []
        assert updates(job.prefetch(W1)) == [(0, (W0, W1))]

    def test_workers_that_come_together_are_waited_for_together(self) -> None:
        job = opened(n_workers=3)
        job.publish()
        job.prefetch(W1)
        assert not of(job.log, do.UpdateWeights)

    def test_a_job_without_a_proxy_waits_for_one(self) -> None:
        job = Job(opened().plan)
        job.tell(did.WorkersChanged(frozenset({W0})), did.TrainerOpened("trainer@a", 0, is_attached=True))
        job.publish()
        assert updates(job.tell(did.WeightsPrefetched(W0, 0))) == []
        actions = job.tell(did.ProxyOpened("proxy@a"))
        assert prefetches(actions) == [0]
        assert updates(actions) == [(0, (W0,))]


class TestPublish:
    """`load_at: publish`."""

    def test_the_store_keeps_the_new_version_before_anybody_asks(self) -> None:
        job = committed()
        kept = of(job.log, do.RetainVersions)[-1]
        assert kept == do.RetainVersions(1, frozenset({0}))  # 0 stands for the last checkpoint
        assert prefetches(job.log)[-1] == 1

    def test_all_live_workers_hold_it_before_any_loads(self) -> None:
        job = committed()
        assert updates(job.prefetch(W1)) == []
        assert updates(job.prefetch(W0)) == [(1, (W0, W1))]

    def test_open_requests_are_continued_with_their_tokens(self) -> None:
        job = committed()
        job.prefetch()
        assert job.last(do.UpdateWeights).mode == "continue"

    def test_it_is_asked_for_once(self) -> None:
        job = committed()
        job.prefetch()
        job.wait(1.0)
        job.wait(1.0)
        assert updates(job.log)[1:] == [(1, (W0, W1))]

    def test_settled_is_when_all_serve_it(self) -> None:
        job = committed()
        job.prefetch()
        job.update(W0)
        assert not swaps.is_settled(job.state)
        job.update(W1)
        assert swaps.is_settled(job.state)
        assert {w.serving_version for w in job.state.workers.values()} == {1}


class TestBeforeBatch:
    """`load_at: before_batch`: episodes of the batch before are finished first."""

    def test_the_load_waits_for_running_episodes(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy("one_off"))
        job.finish_group(job.groups[0])
        job.commit()
        assert updates(job.prefetch()) == []
        (open_group,) = [g for g in job.groups if g.state == "open"]
        assert updates(job.finish_group(open_group)) == [(1, (W0, W1))]

    def test_rewards_that_are_still_computed_do_not_hold_it(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy("one_off"), tasks=(TOOLS,))
        first = job.groups[0]
        for member in list(first.live):
            job.finish(member)
            job.grade(member)
        job.commit()
        job.prefetch()
        waiting = next(g for g in job.groups if g.state == "open")
        actions = [action for member in list(waiting.live) for action in job.finish(member)]
        assert waiting.state == "complete"
        assert updates(actions) == [(1, (W0, W1))]

    def test_an_empty_pipeline_loads_at_once(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy("sync_plus"))
        job.finish_group(job.groups[0])
        job.commit()
        assert updates(job.prefetch()) == [(1, (W0, W1))]


class TestGetBatch:
    """`load_at: get_batch`: workers load once the next batch could be taken."""

    def test_the_load_waits_for_a_full_buffer(self) -> None:
        job = running(groups=1, max_steps=9, policy=make_policy(load_at="get_batch", alpha=2))
        job.finish_group(job.groups[0])
        job.commit()
        assert updates(job.prefetch()) == []
        assert updates(job.finish_group(next(g for g in job.groups if g.state == "open"))) == [(1, (W0, W1))]
        assert job.state.training is None  # load first, then take
        job.update()
        assert job.state.training == 2


class TestDeadline:
    def test_one_past_the_deadline_is_left_out(self) -> None:
        job = committed(limits={"prefetch_s": 30.0})
        job.prefetch(W0)
        assert updates(job.wait(29.0)) == []
        assert updates(job.wait(1.0)) == [(1, (W0,))]
        assert job.state.workers[W1].is_late
        job.update(W0)
        assert swaps.is_settled(job.state)

    def test_it_comes_back_when_it_holds_the_version(self) -> None:
        job = committed(limits={"prefetch_s": 30.0})
        job.prefetch(W0)
        job.wait(30.0)
        job.update(W0)
        assert updates(job.prefetch(W1)) == [(1, (W1,))]
        assert not swaps.is_settled(job.state)
        job.update(W1)
        assert swaps.is_settled(job.state)

    def test_when_all_are_late_the_first_to_hold_it_goes_on(self) -> None:
        job = committed(limits={"prefetch_s": 30.0})
        job.wait(31.0)
        assert swaps.barrier(job.state) == []
        assert updates(job.prefetch(W1)) == [(1, (W1,))]

    def test_a_stuck_load_leaves_the_barrier_until_it_reports_itself(self) -> None:
        job = committed(limits={"update_s": 20.0})
        job.prefetch()
        job.update(W0)
        job.wait(19.0)
        assert not swaps.is_settled(job.state)
        for _ in range(5):
            job.wait(1.0)
            assert swaps.is_settled(job.state)
        assert job.state.workers[W1].is_late
        again = job.tell(did.WorkerReported(W1, 0, frozenset({0, 1})))
        assert updates(again) == [(1, (W1,))]

    def test_a_worker_that_never_loads_is_given_up(self) -> None:
        job = committed(limits={"update_s": 20.0})
        job.prefetch()
        job.update(W0)
        for _ in range(20):
            job.wait(21.0)
            job.tell(did.WorkerReported(W1, 0, frozenset({0, 1})))
        assert job.state.workers[W1].is_late
        assert job.state.workers[W1].faults == swaps.MAX_FAULTS + 1
        assert swaps.is_settled(job.state)


class TestFaults:
    def test_a_failed_prefetch_is_asked_for_again(self) -> None:
        job = committed()
        assert prefetches(job.tell(did.WeightsPrefetched(W0, 1, fault="unreachable: node"))) == [1]
        assert W0 in job.state.workers
        assert 1 not in job.state.workers[W0].resident

    def test_a_failed_load_is_prefetched_anew(self) -> None:
        job = committed()
        job.prefetch()
        actions = job.tell(did.WeightsUpdated(W0, 1, fault="digest: mismatch"))
        assert prefetches(actions) == [1]
        assert job.state.workers[W0].is_late
        job.update(W1)
        assert swaps.is_settled(job.state)
        assert updates(job.prefetch(W0)) == [(1, (W0,))]

    def test_faults_are_bounded(self) -> None:
        job = committed()
        asked = [
            bool(prefetches(job.tell(did.WeightsPrefetched(W0, 1, fault="no"))))
            for _ in range(swaps.MAX_FAULTS + 3)
        ]  # fmt: skip
        assert asked == [True] * swaps.MAX_FAULTS + [False] * 3

    def test_a_good_load_forgets_them(self) -> None:
        job = committed()
        for _ in range(3):
            job.tell(did.WeightsPrefetched(W0, 1, fault="no"))
        job.load()
        assert job.state.workers[W0].faults == 0


class TestComingAndGoing:
    def test_a_joiner_prefetches_before_it_counts(self) -> None:
        job = running()
        actions = job.tell(did.WorkersChanged(frozenset({W0, W1, "inference-2@a"})))
        assert prefetches(actions) == [0]
        assert swaps.is_settled(job.state)  # the two that serve
        assert updates(job.tell(did.WeightsPrefetched("inference-2@a", 0))) == [(0, ("inference-2@a",))]

    def test_a_dead_worker_does_not_hold_the_swap(self) -> None:
        job = committed()
        job.prefetch(W0)
        assert updates(job.tell(did.WorkersChanged(frozenset({W0})))) == [(1, (W0,))]

    def test_the_last_worker_gone_stops_takes_and_admission(self) -> None:
        job = running(groups=1)
        job.tell(did.WorkersChanged(frozenset()))
        assert not swaps.is_settled(job.state)
        job.finish_all()
        assert job.state.training is None

    @pytest.mark.parametrize("event", [did.WeightsPrefetched, did.WeightsUpdated])
    def test_reports_of_workers_that_are_gone_are_ignored(self, event: type) -> None:
        assert running().tell(event("inference-9@z", 0)) == []

    def test_a_report_of_a_gone_worker_is_ignored(self) -> None:
        assert running().tell(did.WorkerReported("inference-9@z", 0, frozenset({0}))) == []

    def test_what_a_worker_reports_is_believed(self) -> None:
        job = committed()
        actions = job.tell(did.WorkerReported(W0, 1, frozenset({0})), did.WorkerReported(W1, 1, frozenset({1})))
        assert updates(actions) == []
        assert swaps.is_settled(job.state)

    def test_a_lost_engine_prefetches_and_loads_again(self) -> None:
        job = running()
        actions = job.tell(did.WorkerReported(W1, None, frozenset()))
        assert prefetches(actions) == [0]
        assert updates(job.tell(did.WeightsPrefetched(W1, 0))) == [(0, (W1,))]

    def test_an_engine_lost_in_the_middle_of_a_load_loads_again(self) -> None:
        job = committed()
        job.prefetch()
        actions = job.tell(did.WorkerReported(W1, None, frozenset({1})))
        assert updates(actions) == [(1, (W1,))]

    def test_repeated_reports_ask_for_nothing(self) -> None:
        job = committed()
        job.prefetch(W0)
        for _ in range(3):
            assert job.tell(did.WorkerReported(W1, 0, frozenset({0}))) == []

    def test_a_new_proxy_is_told_again(self) -> None:
        job = committed()
        job.prefetch()
        actions = job.tell(did.ProxyOpened("proxy@b"))
        assert prefetches(actions) == [1]
        assert updates(actions) == [(1, (W0, W1))]


class TestRetention:
    def test_the_last_checkpoints_version_is_kept(self) -> None:
        job = running(groups=1, max_steps=9)
        for step in range(1, 4):
            job.finish_all()
            job.commit(checkpoint_step=2 if step >= 2 else 0)
            job.load()
        assert of(job.log, do.RetainVersions)[-1] == do.RetainVersions(3, frozenset({2}))

    def test_the_version_under_evaluation_is_kept(self) -> None:
        job = running(groups=1, max_steps=9, evaluation={"episodes": 1})
        for attempt in [a for a in job.generating if a.purpose == "train"]:
            job.finish(attempt)
        job.commit(checkpoint_step=1)
        assert 0 in of(job.log, do.RetainVersions)[-1].pinned
