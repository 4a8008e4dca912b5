"""`load_at: drain`: a trajectory has one version and one worker at a time; workers load when nothing is bound."""

import pytest
from testkit.request_world import World

from headrace.core.requests import FinishReason, Purpose, RequestLimits
from headrace.core.requests.actions import SendAbort, SendAdd
from headrace.core.requests.events import (
    LiveTrajectory,
    RepackDue,
    TrajectoriesNamed,
    VersionPinned,
    WeightUpdateAsked,
    WorkerReleased,
)
from headrace.core.requests.swap import LoadWeights, ReportUpdate


def bound_world(n_workers: int = 2, local_batch: int | None = None, lanes: int = 4, **limits: float) -> World:
    world = World(limits=RequestLimits(**limits))  # type: ignore[arg-type]
    world.table.bind_trajectories(True, local_batch)
    for index in range(n_workers):
        world.join(f"w{index}@1", 0, lanes)
    return world


def step_all(world: World, n_tokens: int = 3) -> None:
    for worker_id in list(world.engines):
        world.step(worker_id, n_tokens)


def play(world: World, key: str, turn: int, length: int = 4) -> None:
    """One whole turn."""
    call = world.start(f"{key}/{turn}", length, turn=turn)
    for _ in range(50):
        if call.finish is not None:
            return
        step_all(world)
    raise AssertionError(f"{key} turn {turn} does not end: {[r.story() for r in world.table.requests]}")


class TestOneVersion:
    def test_all_turns_run_on_the_worker_of_the_first_while_a_newer_version_waits(self) -> None:
        world = bound_world()
        play(world, "t/1", 0)
        home = world.adds[-1].worker_id
        world.make_resident(1)
        for turn in (1, 2):
            play(world, "t/1", turn)
            assert world.adds[-1].worker_id == home
        assert world.versions_of["t/1"] == {0}
        assert world.serving() == {home: 0, ({"w0@1", "w1@1"} - {home}).pop(): 1}

    def test_the_drained_worker_loads_the_newest_that_it_holds_and_reports(self) -> None:
        world = bound_world(1)
        play(world, "t/1", 0)
        world.make_resident(1, 2)
        assert world.serving() == {"w0@1": 0}
        world.end("t/1")
        step_all(world)
        assert world.serving() == {"w0@1": 2}
        assert [(r.policy_version, r.fault) for r in world.reports] == [(2, None)]

    def test_workers_drain_each_on_its_own(self) -> None:
        world = bound_world(2)
        for key in ("a/1", "b/1"):
            play(world, key, 0)
        homes = {add.prefix_key: add.worker_id for add in world.adds}
        assert len(set(homes.values())) == 2
        world.make_resident(1)
        world.end("a/1")
        step_all(world)
        assert world.serving() == {homes["a/1"]: 1, homes["b/1"]: 0}
        play(world, "c/1", 0)
        assert world.adds[-1].worker_id == homes["a/1"] and world.versions_of["c/1"] == {1}

    def test_a_closed_worker_takes_nothing_new_but_what_is_bound_to_it(self) -> None:
        world = bound_world(1)
        play(world, "t/1", 0)
        world.make_resident(1)
        new = world.start("n/1/0", 3)
        play(world, "t/1", 1)
        assert new.tokens == []
        world.end("t/1")
        world.settle()
        assert set(new.versions) == {1}

    def test_local_batch_closes_and_a_drained_worker_begins_another_when_nothing_is_newer(self) -> None:
        world = bound_world(1, local_batch=2)
        for key in ("a/1", "b/1"):
            play(world, key, 0)
        third = world.start("c/1/0", 3)
        step_all(world)
        world.end("a/1")
        step_all(world)
        assert third.tokens == [], "one of the batch is still bound"
        world.end("b/1")
        world.settle()
        assert set(third.versions) == {0}

    def test_a_request_of_no_trajectory_is_not_bound_but_is_finished_before_a_load(self) -> None:
        world = bound_world(1)
        call = world.start("probe", 6, prefix_key="")
        world.make_resident(1)
        step_all(world)
        assert (world.table.n_bound, world.serving()) == (0, {"w0@1": 0})
        world.settle()
        world.tick(0.1)
        step_all(world)
        assert (set(call.versions), world.serving()) == ({0}, {"w0@1": 1})

    def test_a_request_of_no_trajectory_does_not_wait_behind_those_that_must_not_begin(self) -> None:
        """The worker has had its local batch; what is bound to nothing may still run there."""
        world = bound_world(1, local_batch=1)
        world.start("t/1/0", 4)
        waiting = world.start("t/2/0", 4)
        outside = world.start("outside", 4, prefix_key="")
        assert [add.request_id for add in world.adds] == ["t/1/0", "outside"]
        for _ in range(3):
            step_all(world)
        assert outside.finish is FinishReason.STOP and waiting.finish is None

    def test_an_ask_to_load_what_is_served_is_answered_and_another_waits_for_the_drain(self) -> None:
        world = bound_world(1)
        play(world, "t/1", 0)
        actions = world.feed(WeightUpdateAsked(0, is_barrier=False))
        assert [type(a) for a in actions] == [ReportUpdate]
        assert not any(isinstance(a, LoadWeights) for a in world.feed(WeightUpdateAsked(3, is_barrier=False)))
        world.end("t/1")
        step_all(world)
        assert world.serving() == {"w0@1": 3}

    def test_a_worker_that_serves_nothing_loads_what_the_runner_asks_for(self) -> None:
        world = bound_world(0)
        world.join("w@1", None, resident=(0,))
        assert world.serving() == {"w@1": None}
        world.feed(WeightUpdateAsked(0, worker_ids=("w@1",), is_barrier=False))
        step_all(world)
        assert world.serving() == {"w@1": 0}

    def test_a_version_that_cannot_be_loaded_leaves_the_worker_open(self) -> None:
        world = bound_world(1)
        world.engines["w0@1"].refuses.add(1)
        world.make_resident(1)
        step_all(world)
        assert world.serving() == {"w0@1": 0}
        play(world, "t/1", 0)
        assert world.versions_of["t/1"] == {0}


class TestLostWorkers:
    def test_its_trajectories_go_on_where_the_same_version_is_served(self) -> None:
        world = bound_world(2)
        call = world.start("t/1/0", 9)
        step_all(world)
        world.kill(world.adds[-1].worker_id)
        assert (len(world.adds[-1].kept), call.finish) == (3, None)
        world.settle()
        assert call.finish is FinishReason.STOP and set(call.versions) == {0}

    def test_one_in_its_environment_keeps_its_version_too(self) -> None:
        world = bound_world(2)
        play(world, "t/1", 0)
        world.kill(world.adds[-1].worker_id)
        world.make_resident(1)
        assert list(world.serving().values()) == [0], "the survivor holds it, so it does not load"
        play(world, "t/1", 1)
        assert world.versions_of["t/1"] == {0}

    def test_without_such_a_worker_the_version_is_asked_for_and_the_restarted_worker_loads_it(self) -> None:
        world = bound_world(1)
        play(world, "t/1", 0)
        world.kill("w0@1")
        again = world.start("t/1/1", 4, turn=1)
        world.join("w0@2", None, resident=(1,))
        world.feed(WeightUpdateAsked(1, worker_ids=("w0@2",), is_barrier=False))
        assert world.wanted == [0] and world.serving() == {"w0@2": None}
        world.tick(0.5)
        assert world.wanted == [0], "not asked for at every look"
        world.tick(0.6)
        assert world.wanted == [0, 0]
        world.make_resident(0)
        world.settle()
        assert set(again.versions) == {0} and world.serving() == {"w0@2": 0}
        world.end("t/1")
        step_all(world)
        assert world.serving() == {"w0@2": 1}

    def test_an_idle_worker_of_a_newer_version_goes_back_for_it(self) -> None:
        world = bound_world(2)
        play(world, "t/1", 0)
        world.make_resident(1)
        step_all(world)
        world.kill(next(worker for worker, version in world.serving().items() if version == 0))
        world.make_resident(0)
        again = world.start("t/1/1", 4, turn=1)
        world.settle()
        assert set(again.versions) == {0}
        world.end("t/1")
        step_all(world)
        assert list(world.serving().values()) == [1]

    def test_past_version_wait_s_the_turn_fails_and_the_worker_takes_up_its_update(self) -> None:
        world = bound_world(1, version_wait_s=2.0)
        play(world, "t/1", 0)
        play(world, "e/1", 0)
        world.kill("w0@1")
        waiting = world.start("t/1/1", 4, turn=1)
        world.join("w0@2", None, resident=(1,))
        world.feed(WeightUpdateAsked(1, worker_ids=("w0@2",), is_barrier=False))
        world.tick(1.9)
        assert waiting.finish is None
        world.tick(0.2)
        assert waiting.fault is not None and (waiting.fault.code, waiting.fault.kind) == (
            "version_unavailable",
            "infra",
        )
        step_all(world)
        assert world.serving() == {"w0@2": 1}
        late = world.start("e/1/1", 4, turn=1)
        assert late.fault is not None and late.fault.code == "version_unavailable", "it does not wait once more"

    def test_one_without_a_token_is_free_to_begin_elsewhere(self) -> None:
        world = bound_world(1)
        call = world.start("t/1/0", 4)
        world.kill("w0@1")
        world.join("w1@1", 5)
        world.settle()
        assert set(call.versions) == {5}

    def test_a_worker_left_out_hands_its_trajectories_on(self) -> None:
        world = bound_world(2)
        play(world, "t/1", 0)
        home = world.adds[-1].worker_id
        world.feed(WorkerReleased(home))
        play(world, "t/1", 1)
        assert world.adds[-1].worker_id != home


class TestCallers:
    def test_an_end_is_idempotent_and_ends_what_was_left_open(self) -> None:
        world = bound_world(1)
        call = world.start("t/1/0", 9)
        step_all(world)
        world.end("t/1")
        world.end("t/1")
        world.end("unknown/1")
        assert call.finish is FinishReason.ABORTED
        assert world.table.n_bound == 0

    def test_what_a_broken_stream_left_expires_unless_the_next_names_it(self) -> None:
        world = bound_world(1, binding_grace_s=3.0)
        for key in ("a/1", "b/1"):
            play(world, key, 0)
        world.leave(1)
        world.tick(1.0)
        world.feed(TrajectoriesNamed(2, (LiveTrajectory("b/1", 0, 7),)))
        world.tick(2.5)
        assert world.table.n_bound == 1
        world.make_resident(1)
        world.end("b/1")
        step_all(world)
        assert world.serving() == {"w0@1": 1}

    def test_a_new_proxy_binds_what_callers_name(self) -> None:
        world = bound_world(0)
        world.feed(TrajectoriesNamed(1, (LiveTrajectory("t/1", 3, 40),)))
        world.join("w@1", 3)
        world.make_resident(4)
        assert world.serving() == {"w@1": 3} and world.table.n_bound == 1
        call = world.start("t/1/4", 3, turn=4, start_version=3)
        world.settle()
        assert set(call.versions) == {3}

    def test_a_turn_that_says_its_start_version_is_bound_to_it(self) -> None:
        world = bound_world(0)
        world.join("new@1", 4)
        world.join("old@1", 3)
        call = world.start("t/1/2", 3, turn=2, start_version=3)
        world.settle()
        assert set(call.versions) == {3}

    def test_a_caller_that_comes_back_in_the_middle_of_a_turn_keeps_its_place(self) -> None:
        world = bound_world(2)
        call = world.start("t/1/0", 12)
        step_all(world)
        world.leave(1)
        world.tick(1.0)
        world.come_back(1, 2)
        world.settle()
        assert call.finish is FinishReason.STOP and len({add.worker_id for add in world.adds}) == 1


class TestEvaluation:
    def test_it_is_bound_to_its_version_on_workers_held_for_it(self) -> None:
        world = bound_world(2)
        world.feed(VersionPinned(0, 1))
        world.make_resident(1)
        step_all(world)
        call = world.start("e/1/0", 4, purpose=Purpose.EVAL, pinned_version=0)
        world.settle()
        assert world.adds[-1].worker_id == "w0@1" and set(call.versions) == {0}
        assert world.serving() == {"w0@1": 0, "w1@1": 1}
        world.end("e/1")
        step_all(world)
        assert world.serving()["w0@1"] == 0, "held"
        world.feed(VersionPinned(0, 0))
        step_all(world)
        assert world.serving() == {"w0@1": 1, "w1@1": 1}

    def test_a_retained_version_that_nobody_serves_is_activated_for_it(self) -> None:
        world = bound_world(1)
        world.make_resident(5)
        step_all(world)
        call = world.start("e/1/0", 4, purpose=Purpose.EVAL, pinned_version=2)
        world.tick(0.1)
        assert world.wanted == [2]
        world.make_resident(2)
        world.settle()
        assert set(call.versions) == {2}


class TestRepack:
    def tails(self, world: World) -> None:
        """Three trajectories begin on each worker; then all but one of each end, and a newer version is there."""
        for index in range(6):
            world.start(f"t{index}/1/0", 30)
        step_all(world)
        for index in range(4):
            world.end(f"t{index}/1")
        world.make_resident(1)

    def test_running_turns_move_with_what_they_have_and_the_emptied_worker_loads(self) -> None:
        world = bound_world(2)
        self.tails(world)
        actions = world.feed(RepackDue())
        (source,) = {a.worker_id for a in actions if isinstance(a, SendAbort)}
        (add,) = [a for a in actions if isinstance(a, SendAdd)]
        assert add.worker_id != source and len(add.kept) == 3
        assert [a.policy_version for a in actions if isinstance(a, LoadWeights)] == [1]
        world.now += 0.5
        world.settle()
        counts = world.table.counts
        assert (counts.repacks, counts.moved_trajectories, counts.moved_requests, counts.released_workers) == (1,) * 4
        assert counts.moved_tokens == counts.moved_kv_bytes == counts.repeated_prefill_tokens == 3 + 3
        assert counts.repack_pause_s == 0.0 and 0.5 <= counts.first_token_after_s < 0.6
        assert all(set(world.calls[f"t{index}/1/0"].versions) == {0} for index in (4, 5))

    def test_one_in_its_environment_moves_without_a_word_and_pays_at_its_next_turn(self) -> None:
        world = bound_world(2)
        for index in range(4):
            play(world, f"t{index}/1", 0)
        for index in range(2):
            world.end(f"t{index}/1")
        world.make_resident(1)
        actions = world.feed(RepackDue({}, {"w0@1": 16, "w1@1": 16}))
        assert not any(isinstance(a, SendAbort | SendAdd) for a in actions)
        counts = world.table.counts
        assert (counts.moved_trajectories, counts.moved_requests, counts.moved_kv_bytes) == (1, 0, 7 * 16)
        step_all(world)
        for index in (2, 3):
            play(world, f"t{index}/1", 1)
        assert len({add.worker_id for add in world.adds[-2:]}) == 1
        assert counts.repeated_prefill_tokens == 3, "no more than the turn has to prefill"

    def test_a_waiting_turn_follows_its_trajectory(self) -> None:
        world = bound_world(2, lanes=2)
        for index in range(4):
            play(world, f"t{index}/1", 0)
        for index in range(2):
            world.end(f"t{index}/1")
        world.make_resident(1)
        world.table.worker("w0@1").max_running = world.table.worker("w1@1").max_running = 0
        waiting = [world.start(f"t{index}/1/1", 3, turn=1) for index in (2, 3)]
        world.table.worker("w0@1").max_running = world.table.worker("w1@1").max_running = 3
        world.feed(RepackDue())
        world.settle()
        assert all(set(call.versions) == {0} for call in waiting)

    @pytest.mark.parametrize("kv_tokens", [11, 0])
    def test_capacity_comes_from_the_engines_and_unknown_is_unbounded(self, kv_tokens: int) -> None:
        world = bound_world(2)
        self.tails(world)
        world.feed(RepackDue({"w0@1": kv_tokens, "w1@1": kv_tokens}))
        assert world.table.counts.repacks == (0 if kv_tokens else 1)

    def test_open_workers_are_not_emptied(self) -> None:
        world = bound_world(2)
        for index in range(4):
            world.start(f"t{index}/1/0", 30)
        step_all(world)
        for index in range(2):
            world.end(f"t{index}/1")
        world.feed(RepackDue())
        assert (world.table.counts.repack_looks, world.table.counts.repacks) == (1, 0)

    def test_versions_are_not_mixed(self) -> None:
        world = bound_world(0)
        world.join("old@1", 0, 4)
        world.join("new@1", 1, 4)
        for index in range(4):
            world.start(f"t{index}/1/0", 30)
        step_all(world)
        for index in range(2):
            world.end(f"t{index}/1")
        world.make_resident(2)
        world.feed(RepackDue())
        assert world.table.counts.repacks == 0
