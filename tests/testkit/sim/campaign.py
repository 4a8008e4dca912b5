"""Many schedules: one by one in a process, several processes side by side, failures by their number."""

import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from testkit.sim.memory import MemoryDatabase
from testkit.sim.schedule import schedule
from testkit.sim.world import World


@dataclass(frozen=True)
class Outcome:
    """`failure`: empty, or everything that is known of one."""

    number: int
    failure: str
    n_events: int = 0
    n_turns: int = 0
    virtual_s: float = 0.0
    reason: str = ""


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never waits for anything real."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a simulated run waited for something real")


def run_in_memory(number: int) -> Outcome:
    chosen = schedule(number)
    world = World(chosen, MemoryDatabase(chosen.plan.job_id))
    try:
        drive(world.run())
    except Exception:  # whatever it is, it is the finding
        return Outcome(number, story(world, traceback.format_exc()))
    reason = world.database.tables.job["reason"]  # type: ignore[attr-defined]
    return Outcome(number, "", world.n_events, world.n_turns, world.clock.now, reason)


def story(world: World, error: str) -> str:
    """The schedule, the last events and the error."""
    events = [f"  {at:8.2f}  {what}"[:240] for at, what in world.history]
    return "\n".join([world.schedule.describe(), "last events:", *events, error])
