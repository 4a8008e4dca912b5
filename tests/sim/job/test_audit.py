"""The audit itself: a run in which something is spoilt is found out."""

from collections.abc import Callable
from typing import Any

import pytest
from testkit.sim.campaign import drive
from testkit.sim.memory import MemoryDatabase
from testkit.sim.schedule import schedule
from testkit.sim.world import World


def run(number: int, spoil: Callable[[World], Any]) -> None:
    chosen = schedule(number)
    world = World(chosen, MemoryDatabase(chosen.plan.job_id))
    spoil(world)
    drive(world.run())


def first(wanted: Callable[[Any], bool]) -> int:
    return next(number for number in range(2000) if wanted(schedule(number)))


def calm(one: Any) -> bool:
    return not one.chances.faults and one.plan.max_steps > 2


def test_a_batch_taken_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the machine's own checks switched off, the rows tell."""
    monkeypatch.setattr("headrace.core.job.taking.may_take", lambda lag, alpha: lag is not None)
    monkeypatch.setattr("headrace.core.job.taking.is_alive", lambda lag, alpha, *, is_batch_out: lag is not None)
    monkeypatch.setattr("headrace.core.job.machine.JobMachine.check", lambda self: None)
    policies = {number: schedule(number).plan.policy for number in range(400)}
    late = [number for number, policy in policies.items() if policy.alpha == 0 and policy.overlap == "free"]
    with pytest.raises(AssertionError, match="updates late"):
        for number in late:
            run(number, lambda world: None)


def test_a_reward_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.core.job import outcomes

    real = outcomes._scored

    def twice(state: Any, attempt: Any, now: float) -> Any:
        attempt.reward = (attempt.reward or 0.0) + 0.25
        return real(state, attempt, now)

    monkeypatch.setattr(outcomes, "_scored", twice)
    with pytest.raises(AssertionError):
        run(first(calm), lambda world: None)


def test_a_runner_that_writes_without_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    from testkit.memory_repository import MemoryRepository

    async def renew(self: MemoryRepository) -> None:
        """Never refuses."""

    monkeypatch.setattr(MemoryRepository, "renew", renew)
    stalled = first(lambda one: any(fault.kind == "stall" and fault.at_s < 3.0 for fault in one.faults))
    with pytest.raises(AssertionError, match="wrote after its lease"):
        run(stalled, lambda world: None)


def test_an_attempt_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.core.ledger import Ledger

    monkeypatch.setattr(Ledger, "close", lambda self, purpose, task, state, n_tokens: None)
    with pytest.raises(AssertionError):
        run(first(calm), lambda world: None)


def test_a_job_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.core.job.machine.taking.take", lambda state, now: [])
    with pytest.raises(AssertionError, match="no end in sight"):
        run(first(calm), lambda world: None)
