"""A slice of the schedules that `make sim` runs on real PostgreSQL."""

import asyncio

from testkit.sim.campaign import run_on_postgres

from control_plane.db.migrate import migrate


async def test_schedules_end_with_every_invariant_kept_on_postgres(database_url: str) -> None:
    await asyncio.to_thread(migrate, database_url)
    outcomes = await asyncio.to_thread(run_on_postgres, range(500_000, 500_015), database_url)
    assert len(outcomes) == 15
    assert not [outcome.failure for outcome in outcomes if outcome.failure]
    assert sum(outcome.n_turns for outcome in outcomes) > 300
