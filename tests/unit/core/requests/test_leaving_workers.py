"""A worker that was left out: it takes nothing, finishes what it runs, and is closed, whatever it was about to load."""

import pytest
from testkit.request_world import World

from headrace.core.requests import FinishReason, LoadMode
from headrace.core.requests.actions import Action
from headrace.core.requests.events import WeightUpdateAsked, WorkerReleased
from headrace.core.requests.swap import CloseWorker, LoadWeights, ResumeWorker


def busy(n_requests: int = 1) -> World:
    """One worker that runs requests of six tokens, two of which are there."""
    world = World()
    world.join("w@1", 0)
    for index in range(n_requests):
        world.start(f"r{index}", 6)
    world.step("w@1", 2)
    return world


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_one_that_was_draining_for_a_load_is_closed_instead_of_loaded() -> None:
    world = busy()
    world.feed(WeightUpdateAsked(1, LoadMode.FINISH_FIRST))
    world.feed(WorkerReleased("w@1"))
    assert world.table.worker("w@1") is not None
    world.step("w@1", 9)
    assert world.calls["r0"].finish is FinishReason.STOP
    assert world.table.worker("w@1") is None


@pytest.mark.parametrize("mode", [LoadMode.CONTINUE, LoadMode.DISCARD])
def test_one_that_loads_is_closed_when_its_last_caller_gives_up(mode: LoadMode) -> None:
    world = busy()
    world.feed(WeightUpdateAsked(1, mode))
    world.feed(WorkerReleased("w@1"))
    world.abort("r0")
    assert world.table.worker("w@1") is None


def test_one_that_may_not_go_on_under_what_it_loaded_is_told_all_before_it_is_closed() -> None:
    world = busy(2)
    world.engines["w@1"].refuses.add(1)
    world.feed(WeightUpdateAsked(1))
    world.feed(WorkerReleased("w@1"))
    engine = world.engines["w@1"]
    while engine.inbox:
        engine.obey()
    told = []
    while engine.outbox:
        told = world.feed(engine.outbox.popleft())
    assert kinds(told).index(ResumeWorker) < kinds(told).index(CloseWorker)
    assert kinds(told).count(CloseWorker) == 1 and LoadWeights not in kinds(told)
    world.join("v@1", 1)
    world.settle()
    assert {call.finish for call in world.calls.values()} == {FinishReason.STOP}
