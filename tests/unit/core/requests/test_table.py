"""The request table case by case, in the scripted world."""

from dataclasses import replace

import pytest
from testkit.request_world import STOP, World, digest_of

from headrace.core.requests import FinishReason, LoadMode, Purpose, RequestLimits, RequestState, Sampling, TableError
from headrace.core.requests.actions import EmitChunk, SendAbort, SendAdd
from headrace.core.requests.events import (
    ChunkReceived,
    GenerationStarted,
    RolloutClosed,
    RolloutPaused,
    RolloutResumed,
    Ticked,
    VersionPinned,
    WeightUpdateAsked,
    WorkerReleased,
)
from headrace.core.requests.record import TRANSITIONS, Fault
from headrace.core.requests.swap import CloseWorker, LoadWeights, PauseWorker, ResumeWorker


def one_worker(max_running: int = 2, **limits: float) -> World:
    world = World(limits=RequestLimits(**limits) if limits else None)  # type: ignore[arg-type]
    world.join("w@1", 0, max_running)
    return world


def chunk(world: World, request_id: str, offset: int, ids: tuple[int, ...], **fields: object) -> ChunkReceived:
    request = next(r for r in world.table.requests if r.request_id == request_id)
    values = {
        "worker_id": request.worker_id,
        "request_id": request_id,
        "dispatch_epoch": request.dispatch_epoch,
        "offset": offset,
        "token_ids": ids,
        "logprobs": tuple(-float(token) for token in ids),
        "policy_version": 0,
        "weight_digest": digest_of(0),
        **fields,
    }
    return ChunkReceived(**values)  # type: ignore[arg-type]


def tokens(world: World, request_id: str, start: int, end: int) -> tuple[int, ...]:
    return tuple(world.calls[request_id].expected[start:end])


def test_response_in_three_spans_when_tokens_are_kept() -> None:
    """AS-04, partial rollout on: 2, 2 and 8 tokens under versions 2, 4, 6."""
    world = World()
    world.join("w@1", 2)
    call = world.start("r", 12)
    world.step("w@1", 2)
    for version, n_tokens in ((4, 2), (6, 8)):
        world.feed(WeightUpdateAsked(version))
        while len(call.tokens) >= 2 and call.finish is None and world.table.worker("w@1").serving_version != version:
            world.step("w@1", 0)
        world.step("w@1", n_tokens)
    assert call.finish is FinishReason.STOP
    assert call.versions == [2, 2, 4, 4, 6, 6, 6, 6, 6, 6, 6, 6]


def test_old_tokens_are_thrown_away_when_they_are_not_kept() -> None:
    """AS-04, partial rollout off: 12 tokens of version 6 alone, the 4 old ones counted as discarded."""
    world = World()
    world.join("w@1", 2)
    call = world.start("r", 12)
    world.step("w@1", 4)
    world.feed(WeightUpdateAsked(6, LoadMode.DISCARD))
    world.settle()
    assert (call.versions, world.table.counts.discarded_tokens) == ([6] * 12, 4)
    assert world.table.counts.accepted_tokens == 16


def test_finish_first_dispatches_nothing_new_and_loads_when_idle() -> None:
    world = one_worker()
    world.start("old", 6)
    world.step("w@1", 2)
    assert not any(isinstance(a, LoadWeights) for a in world.feed(WeightUpdateAsked(1, LoadMode.FINISH_FIRST)))
    new = world.start("new", 3)
    assert new.start.request_id not in world.live_dispatch
    world.step("w@1", 4)
    assert [type(a) for a in world.engines["w@1"].inbox] == [PauseWorker, LoadWeights]
    world.settle()
    assert (world.calls["old"].versions, new.versions) == ([0] * 6, [1] * 3)


def test_swap_reports_pause_load_and_rebuild() -> None:
    world = one_worker()
    world.start("a", 20)
    world.start("b", 20)
    world.step("w@1", 3)
    world.feed(WeightUpdateAsked(1))
    world.now += 0.25
    world.step("w@1", 0)
    assert world.reports == [], "the rebuild is not over"
    world.now += 0.5
    world.step("w@1", 1)
    (report,) = world.reports
    assert (report.pause_s, report.load_s, report.rebuild_s) == (0.25, 0.01, 0.5)
    assert (report.rebuild_tokens, report.weight_digest) == (2 * (3 + 3), digest_of(1))


def test_update_without_running_requests_reports_at_once() -> None:
    world = one_worker()
    world.feed(WeightUpdateAsked(1))
    world.step("w@1")
    assert [(r.policy_version, r.rebuild_s, r.fault) for r in world.reports] == [(1, 0.0, None)]
    world.feed(WeightUpdateAsked(1))
    assert [r.policy_version for r in world.reports] == [1, 1], "what is asked again is answered again"


def test_an_update_of_a_worker_that_has_yet_to_join_waits_for_it() -> None:
    """A proxy that is new hears from the runner before its streams to the workers are open."""
    world = World()
    world.feed(WeightUpdateAsked(1, worker_ids=("w@1", "w@2")))
    world.join("w@1", 0)
    world.step("w@1")
    assert [(report.worker_id, report.policy_version) for report in world.reports] == [("w@1", 1)]
    world.feed(WeightUpdateAsked(2, worker_ids=("w@2",)))
    world.join("w@2", 2)
    assert world.reports[-1].policy_version == 2, "it had loaded it already"


def test_tokens_made_before_the_pause_still_count() -> None:
    world = one_worker()
    call = world.start("r", 10)
    engine = world.engines["w@1"]
    engine.obey()
    world.feed(WeightUpdateAsked(1))
    engine.generate("r", 4, world.lengths)
    world.feed(engine.outbox.popleft())
    assert len(call.tokens) == 4
    world.settle()
    assert call.versions == [0] * 4 + [1] * 6
    assert world.table.counts.regenerated_tokens == 0


def test_a_refused_load_keeps_the_version_and_moves_the_requests() -> None:
    """WS-05: the other worker serves 1; this one keeps 0 and gets no training traffic until it has caught up."""
    world = one_worker()
    world.join("v@1", 0)
    calls = [world.start(f"r{i}", 12) for i in range(4)]
    for worker in ("w@1", "v@1"):
        world.step(worker, 2)
    world.engines["w@1"].refuses.add(1)
    world.feed(WeightUpdateAsked(1))
    world.settle()
    assert {call.finish for call in calls} == {FinishReason.STOP}
    assert all(call.versions[2:] == [1] * 10 for call in calls)
    assert world.table.worker("w@1").serving_version == 0
    faults = {report.worker_id: report.fault is not None for report in world.reports}
    assert faults == {"w@1": True, "v@1": False}
    world.engines["w@1"].refuses.clear()
    world.feed(WeightUpdateAsked(1, worker_ids=("w@1",)))
    world.step("w@1")
    assert world.table.worker("w@1").serving_version == 1


def test_a_lost_worker_is_continued_elsewhere_from_the_prefix() -> None:
    world = one_worker()
    call = world.start("r", 12)
    world.step("w@1", 5)
    world.kill("w@1")
    assert call.finish is None
    world.join("v@1", 0)
    add = world.adds[-1]
    assert (add.worker_id, len(add.kept)) == ("v@1", 5)
    world.settle()
    assert call.finish is FinishReason.STOP


def test_what_outlives_too_many_workers_is_a_named_loss() -> None:
    world = World(limits=RequestLimits(max_worker_losses=2))
    call = world.start("poison", 5)
    for index in range(3):
        world.join(f"w@{index}", 0)
        world.kill(f"w@{index}")
    assert call.fault == Fault("worker_lost", "infra", "3 workers were lost with it")


def test_a_worker_that_opens_a_new_stream_runs_nothing() -> None:
    world = one_worker()
    call = world.start("r", 12)
    world.step("w@1", 5)
    world.live_dispatch.clear()
    world.join("w@1", 0)
    assert world.adds[-1].dispatch_epoch == 2
    world.settle()
    assert call.finish is FinishReason.STOP


class TestFencing:
    def test_a_chunk_of_an_ended_dispatch_is_dropped_and_counted(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        stale = chunk(world, "r", 0, tokens(world, "r", 0, 3))
        world.kill("w@1")
        world.join("v@1", 0)
        assert world.feed(stale) == []
        assert (call.tokens, world.table.counts.fenced_chunks, world.table.counts.regenerated_tokens) == ([], 1, 3)

    def test_a_chunk_of_the_dispatch_before_on_the_same_worker_is_dropped(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        stale = chunk(world, "r", 0, tokens(world, "r", 0, 3))
        world.leave(1)
        world.tick(1.0)
        world.come_back(1, 2)
        assert [add.worker_id for add in world.adds] == ["w@1", "w@1"]
        assert world.feed(stale) == []
        assert (call.tokens, world.table.counts.fenced_chunks) == ([], 1)

    def test_a_repeated_chunk_is_dropped(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        first = chunk(world, "r", 0, tokens(world, "r", 0, 3))
        world.feed(first)
        assert world.feed(first) == []
        assert len(call.tokens) == 3

    @pytest.mark.parametrize(
        "fields",
        [
            {"offset": 2},
            {"policy_version": 9},
            {"weight_digest": "unknown"},
            {"logprobs": (-1.0,)},
            {"token_ids": tuple(range(65)), "logprobs": (0.0,) * 65},
        ],
    )
    def test_a_chunk_that_breaks_the_protocol_voids_its_dispatch(self, fields: dict[str, object]) -> None:
        world = one_worker()
        call = world.start("r", 12)
        actions = world.feed(_bad(world, fields))
        assert [type(action) for action in actions] == [SendAbort, SendAdd]
        assert (call.tokens, world.table.counts.foreign_chunks) == ([], 1)
        world.settle()
        assert call.finish is FinishReason.STOP

    def test_an_engine_that_never_learns_is_given_up(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        for _ in range(4):
            world.feed(_bad(world, {"policy_version": 9}))
        assert call.fault is not None and call.fault.code == "engine_refused"

    def test_a_chunk_for_nobody_is_dropped(self) -> None:
        world = one_worker()
        world.start("r", 12)
        late = chunk(world, "r", 0, tokens(world, "r", 0, 3))
        world.abort("r")
        assert world.feed(late) == []
        assert (world.table.counts.fenced_chunks, world.table.counts.regenerated_tokens) == (1, 0)


def _bad(world: World, fields: dict[str, object]) -> ChunkReceived:
    return replace(chunk(world, "r", 0, tokens(world, "r", 0, 3)), **fields)  # type: ignore[arg-type]


class TestCallers:
    def test_an_abort_is_answered_and_frees_the_lane(self) -> None:
        world = one_worker(max_running=1)
        first = world.start("a", 12)
        second = world.start("b", 2)
        world.step("w@1", 3)
        world.abort("a")
        assert (first.finish, len(first.tokens)) == (FinishReason.ABORTED, 3)
        world.settle()
        assert second.finish is FinishReason.STOP

    def test_an_orphan_loses_its_engine_within_a_second_and_its_tokens_after_two(self) -> None:
        world = one_worker()
        world.start("r", 40)
        world.step("w@1", 3)
        world.leave(1)
        world.tick(0.5)
        assert "r" in world.live_dispatch
        world.tick(0.3)
        assert "r" not in world.live_dispatch
        assert [r.state for r in world.table.requests] == [RequestState.PARKED]
        world.tick(1.3)
        assert world.table.n_open == 0

    @pytest.mark.parametrize("away_s", [0.1, 1.0])
    def test_a_caller_that_comes_back_hears_what_it_missed(self, away_s: float) -> None:
        world = one_worker()
        call = world.start("r", 12)
        world.step("w@1", 3)
        world.leave(1)
        world.step("w@1", 3)
        world.tick(away_s)
        assert len(call.tokens) == 3
        world.come_back(1, 2)
        assert len(call.tokens) == 6
        world.settle()
        assert call.finish is FinishReason.STOP
        assert world.table.counts.regenerated_tokens == 0

    def test_a_turn_that_ended_while_its_caller_was_away_is_delivered(self) -> None:
        world = one_worker()
        call = world.start("r", 5)
        world.leave(1)
        world.step("w@1", 9)
        assert world.table.n_open == 1
        world.come_back(1, 2)
        assert (call.finish, call.tokens) == (FinishReason.STOP, call.expected)

    def test_the_callers_copy_wins_over_ours(self) -> None:
        """A proxy that lost its memory is told the tokens; one that has others takes the caller's."""
        world = World()
        call = world.start("r", 12)
        call.tokens = call.expected[:5]
        world.leave(1)
        world.come_back(1, 2)
        world.join("w@1", 0)
        assert len(world.adds[-1].kept) == 5
        call.versions = [0] * 5
        world.settle()
        assert call.tokens == call.expected

    def test_tokens_that_already_end_the_turn_need_no_engine(self) -> None:
        world = World()
        for kept, finish in (((5, STOP), FinishReason.STOP), ((5, 6, 7), FinishReason.LENGTH)):
            start = GenerationStarted(1, "r", 1, (1,), Sampling(3, stop_token_ids=(STOP,)), kept=kept)
            (answer,) = world.table.handle(start, 0.0)
            assert isinstance(answer, EmitChunk)
            assert (answer.finish_reason, answer.offset) == (finish, len(kept))

    def test_an_older_epoch_is_refused_and_a_newer_one_with_another_prompt_replaces(self) -> None:
        world = one_worker()
        world.start("r", 12)
        world.step("w@1", 3)

        def again(epoch: int, prompt: tuple[int, ...]) -> list[object]:
            sampling = Sampling(64, stop_token_ids=(STOP,))
            return list(world.table.handle(GenerationStarted(1, "r", epoch, prompt, sampling), 0.0))

        (refusal,) = again(0, (1, 2, 3))
        assert isinstance(refusal, EmitChunk) and refusal.fault is not None and refusal.fault.code == "stale_epoch"
        assert [type(action) for action in again(2, (9,))] == [SendAbort, SendAdd]
        assert world.table.counts.regenerated_tokens == 3
        world.table.check()

    @pytest.mark.parametrize(("prompt", "limit", "code"), [((), 4, "empty_prompt"), ((1,), 0, "bad_max_new_tokens")])
    def test_what_no_engine_could_run_is_refused(self, prompt: tuple[int, ...], limit: int, code: str) -> None:
        (refusal,) = World().table.handle(GenerationStarted(1, "r", 1, prompt, Sampling(limit)), 0.0)
        assert isinstance(refusal, EmitChunk)
        assert refusal.fault is not None and (refusal.fault.code, refusal.fault.retryable) == (code, False)

    def test_tokens_thrown_away_in_its_absence_are_named_when_the_caller_is_back(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        world.step("w@1", 3)
        world.leave(1)
        world.tick(0.8)
        world.feed(WeightUpdateAsked(1, LoadMode.DISCARD))
        world.step("w@1")
        world.come_back(1, 2)
        world.settle()
        assert (call.versions, world.table.counts.discarded_tokens) == ([1] * 12, 3)

    def test_a_caller_that_leaves_before_it_heard_of_the_discard_hears_it_later(self) -> None:
        world = one_worker()
        call = world.start("r", 12)
        world.step("w@1", 3)
        world.feed(WeightUpdateAsked(1, LoadMode.DISCARD))
        world.step("w@1", 0)
        world.leave(1)
        world.come_back(1, 2)
        world.settle()
        assert (call.versions, world.table.counts.discarded_tokens) == ([1] * 12, 3)


class TestHolds:
    def test_a_held_worker_keeps_its_version_until_the_hold_ends(self) -> None:
        world = one_worker(max_running=4)
        world.join("v@1", 0, 4)
        world.feed(VersionPinned(0, 1))
        assert [worker.worker_id for worker in world.table.workers if worker.is_pinned] == ["v@1"]
        world.feed(WeightUpdateAsked(1))
        world.step("w@1")
        evaluation = world.start("eval", 3, purpose=Purpose.EVAL, pinned_version=0)
        training = world.start("train", 3)
        assert [add.worker_id for add in world.adds] == ["v@1", "w@1"]
        world.settle()
        assert (evaluation.versions, training.versions) == ([0] * 3, [1] * 3)
        world.feed(VersionPinned(0, 0))
        world.step("v@1")
        assert [worker.serving_version for worker in world.table.workers] == [1, 1]

    def test_another_worker_takes_over_the_hold_of_a_lost_one(self) -> None:
        world = one_worker()
        world.join("v@1", 0)
        world.feed(VersionPinned(0, 1))
        world.kill("v@1")
        assert [worker.is_pinned for worker in world.table.workers] == [True]

    def test_a_worker_that_is_held_alone_serves_training_and_the_floor_waits(self) -> None:
        world = one_worker()
        world.feed(VersionPinned(0, 1))
        world.feed(WeightUpdateAsked(1))
        call = world.start("train", 3)
        world.settle()
        assert (call.versions, world.table.min_version) == ([0] * 3, 0)
        world.feed(VersionPinned(0, 0))
        assert world.table.min_version == 1

    def test_fewer_are_held_when_fewer_are_asked_for(self) -> None:
        world = one_worker()
        world.join("v@1", 0)
        world.feed(VersionPinned(0, 2))
        world.feed(VersionPinned(0, 1))
        assert sum(worker.is_pinned for worker in world.table.workers) == 1


class TestOrder:
    def test_continuations_then_evaluation_then_later_turns_then_arrival(self) -> None:
        world = World()
        world.start("t0", 3)
        world.start("t0-later", 3)
        world.start("t2", 3, turn=2)
        world.start("eval", 3, purpose=Purpose.EVAL)
        world.start("begun", 3, kept=(), turn=0)
        world.calls["begun"].tokens = list(world.calls["begun"].expected[:1])
        world.leave(99)
        start = world.calls["begun"].start
        world.feed(GenerationStarted(1, "begun", 2, start.prompt, start.sampling, kept=tuple(start.prompt[:1])))
        world.join("w@1", 0, max_running=8)
        assert [add.request_id for add in world.adds] == ["begun", "eval", "t2", "t0", "t0-later"]

    def test_a_full_class_does_not_block_another(self) -> None:
        world = World(limits=RequestLimits(version_wait_s=1))
        world.join("w@1", 0)
        world.start("unserved", 3, pinned_version=5, purpose=Purpose.EVAL)
        call = world.start("served", 3)
        world.step("w@1", 5)
        assert call.finish is FinishReason.STOP
        world.tick(0)
        world.tick(1.0)
        fault = world.calls["unserved"].fault
        assert fault is not None and fault.code == "version_unavailable"

    def test_a_prefix_stays_where_it_is(self) -> None:
        world = World()
        world.join("v@1", 0, max_running=8)
        world.join("w@1", 0, max_running=8)
        world.start("traj/0/0", 3)
        world.start("other/0/0", 3)
        for worker in ("v@1", "w@1"):
            world.step(worker, 5)
        homes = {add.prefix_key: add.worker_id for add in world.adds}
        assert len(set(homes.values())) == 2
        for turn in (1, 2, 3):
            world.start(f"other/0/{turn}", 3, turn=turn)
            assert world.adds[-1].worker_id == homes["other/0"]

    def test_a_pause_lets_what_has_begun_go_on(self) -> None:
        world = one_worker()
        begun = world.start("begun", 12)
        world.step("w@1", 3)
        world.feed(RolloutPaused())
        waiting = world.start("waiting", 3)
        world.kill("w@1")
        world.join("v@1", 0)
        world.step("v@1", 20)
        assert (begun.finish, waiting.tokens) == (FinishReason.STOP, [])
        world.feed(RolloutResumed())
        world.settle()
        assert waiting.finish is FinishReason.STOP


class TestDeadlines:
    def test_no_worker_at_all(self) -> None:
        world = World(limits=RequestLimits(worker_wait_s=2))
        call = world.start("r", 3)
        world.tick(0)
        world.tick(1.9)
        assert call.finish is None
        world.tick(0.2)
        assert call.fault is not None and (call.fault.code, call.fault.retryable) == ("no_worker", True)

    def test_a_load_without_an_answer_gives_the_worker_up(self) -> None:
        world = one_worker(load_s=1)
        call = world.start("r", 12)
        world.step("w@1", 3)
        world.feed(WeightUpdateAsked(1))
        actions = _tick(world, 1.1)
        assert [type(action) for action in actions] == [CloseWorker]
        assert world.table.worker("w@1") is None
        world.join("v@1", 1)
        world.settle()
        assert call.versions == [0] * 3 + [1] * 9

    def test_a_rebuild_without_tokens_is_reported_as_it_is(self) -> None:
        world = one_worker(rebuild_s=1)
        world.start("r", 12)
        world.step("w@1", 3)
        world.feed(WeightUpdateAsked(1))
        world.step("w@1", 0)
        assert world.reports == []
        world.tick(1.1)
        assert [report.policy_version for report in world.reports] == [1]


def _tick(world: World, seconds: float) -> list[object]:
    world.now += seconds
    return list(world.feed(Ticked()))


def test_a_released_worker_finishes_what_it_runs_and_is_closed() -> None:
    world = one_worker()
    world.join("v@1", 0)
    first = world.start("r", 6)
    owner = world.adds[0].worker_id
    world.feed(WorkerReleased(owner))
    world.start("s", 6)
    assert world.adds[-1].worker_id != owner
    world.step(owner, 9)
    assert first.finish is FinishReason.STOP
    assert world.table.worker(owner) is None


def test_closing_ends_every_request_once() -> None:
    world = one_worker(max_running=1)
    calls = [world.start(f"r{i}", 12) for i in range(3)]
    world.feed(RolloutClosed("over"))
    assert [call.fault.code for call in calls if call.fault] == ["rollout_closed"] * 3
    assert world.table.n_open == 0


def test_an_engine_fault_ends_or_moves_the_request() -> None:
    world = one_worker()
    world.join("v@1", 0)
    fatal, passing = world.start("fatal", 6), world.start("passing", 6)
    failed = FinishReason.FAILED
    world.feed(chunk(world, "fatal", 0, (), finish_reason=failed, fault=Fault("too_long", "infra", "scripted")))
    assert fatal.fault is not None and fatal.fault.code == "too_long"
    no_weights = Fault("no_weights", "infra", "scripted", retryable=True)
    world.feed(chunk(world, "passing", 0, (), finish_reason=failed, fault=no_weights))
    assert passing.finish is None
    world.settle()
    assert passing.finish is FinishReason.STOP


def test_an_impossible_transition_tells_the_story() -> None:
    world = one_worker()
    world.start("r", 6)
    (request,) = world.table.requests
    with pytest.raises(TableError, match=r"running -> running .* after dispatch 1 to w@1"):
        request.move(RequestState.RUNNING, "twice")


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TRANSITIONS) == set(RequestState)
    reached = {state for targets in TRANSITIONS.values() for state in targets}
    assert reached == set(RequestState)
    assert [state for state, targets in TRANSITIONS.items() if not targets] == [RequestState.ENDED]


@pytest.mark.parametrize("fields", [{"orphan_abort_s": 3.0}, {"load_s": 0.0}, {"max_refusals": 0}])
def test_limits_check_themselves(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        RequestLimits(**fields)  # type: ignore[arg-type]


def test_resume_follows_every_pause() -> None:
    world = one_worker()
    world.start("r", 30)
    kinds = [type(action) for version in (1, 2) for action in _swap(world, version)]
    assert kinds.count(PauseWorker) == kinds.count(ResumeWorker) == 2


def _swap(world: World, version: int) -> list[object]:
    actions: list[object] = [*world.feed(WeightUpdateAsked(version))]
    engine = world.engines["w@1"]
    while engine.inbox:
        engine.obey()
    while engine.outbox:
        actions += world.feed(engine.outbox.popleft())
    return actions


def test_a_request_that_its_caller_replaces_by_one_that_is_over_frees_its_lane() -> None:
    world = one_worker(max_running=1)
    world.start("r", 12)
    waiting = world.start("s", 4)
    world.step("w@1", 5)
    world.ask_anew("r", n_kept=5, max_new_tokens=5)
    assert world.calls["r"].finish is FinishReason.LENGTH
    assert world.adds[-1].request_id == "s"
    world.settle()
    assert waiting.finish is FinishReason.STOP
