"""Many schedules, in several processes side by side; a failure comes back with its number and its story."""

import asyncio
import traceback
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from testkit.sim.memory import MemoryDatabase
from testkit.sim.postgres import PostgresDatabase
from testkit.sim.schedule import schedule
from testkit.sim.world import World

from control_plane.db.engine import make_engine


@dataclass(frozen=True)
class Outcome:
    """`failure`: empty, or everything that is known of one."""

    number: int
    failure: str = ""
    n_events: int = 0
    n_turns: int = 0
    n_lost_leases: int = 0
    n_in_step: int = 0  # turns that began together with those of a cohort
    n_moved: int = 0  # trajectories moved by repack
    virtual_s: float = 0.0
    reason: str = ""


def drive(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine that never waits for anything real."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a simulated run waited for something real")


async def observe(world: World) -> Outcome:
    """One schedule to its end. Whatever is raised on the way is the finding."""
    number = world.schedule.number
    try:
        await world.run()
        reason = (await world.database.rows()).job["reason"] or ""
    except Exception:  # noqa: BLE001 -- whatever is raised is the finding
        return Outcome(number, story(world, traceback.format_exc()))
    return Outcome(
        number,
        "",
        world.n_events,
        world.n_turns,
        world.n_lost_leases,
        world.n_in_step,
        world.n_moved,
        world.clock.now,
        reason,
    )


def run_in_memory(number: int) -> Outcome:
    chosen = schedule(number)
    outcome: Outcome = drive(observe(World(chosen, MemoryDatabase(chosen.plan.job_id))))
    return outcome


async def _on_postgres(numbers: Sequence[int], database_url: str) -> list[Outcome]:
    engine = make_engine(database_url, pool_size=2, pool_wait_s=10.0)
    try:
        found = []
        for number in numbers:
            chosen = schedule(number)
            database = await PostgresDatabase(engine, chosen).create()
            found.append(await observe(World(chosen, database)))
        return found
    finally:
        await engine.dispose()


def run_on_postgres(numbers: Sequence[int], database_url: str) -> list[Outcome]:
    """`database_url`: of a migrated database without these jobs."""
    return asyncio.run(_on_postgres(numbers, database_url))


def story(world: World, error: str) -> str:
    """The schedule, the last events and the error."""
    events = [f"  {at:8.2f}  {what}"[:240] for at, what in world.history]
    return "\n".join([world.schedule.describe(), "last events:", *events, error])
