"""One owner of a job at a time, in the database's own time."""

import asyncio

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.db.tables import job_leases
from control_plane.runner import lease

JOB = "job_t"


async def acquire(engine: AsyncEngine, holder: str, ttl_s: float = 60.0) -> int | None:
    async with engine.begin() as connection:
        return await lease.acquire(connection, JOB, holder, ttl_s)


async def renew(engine: AsyncEngine, epoch: int, ttl_s: float = 60.0) -> None:
    async with engine.begin() as connection:
        await lease.renew(connection, JOB, epoch, ttl_s)


async def release(engine: AsyncEngine, epoch: int) -> None:
    async with engine.begin() as connection:
        await lease.release(connection, JOB, epoch)


async def lapse(engine: AsyncEngine) -> None:
    """As if the owner had not renewed in time."""
    async with engine.begin() as connection:
        await connection.execute(update(job_leases).values(expires_at=func.clock_timestamp()))


async def holder(engine: AsyncEngine) -> tuple[str, int]:
    async with engine.connect() as connection:
        row = (await connection.execute(select(job_leases))).one()
        return row.holder, row.epoch


async def test_the_first_to_ask_has_it(engine: AsyncEngine) -> None:
    assert await acquire(engine, "a") == 1
    assert await acquire(engine, "b") is None
    assert await holder(engine) == ("a", 1)


async def test_its_own_holder_does_not_get_it_twice(engine: AsyncEngine) -> None:
    """Two runners of one process would both believe to own the job."""
    assert await acquire(engine, "a") == 1
    assert await acquire(engine, "a") is None


async def test_a_lapsed_one_passes_on_with_the_next_epoch(engine: AsyncEngine) -> None:
    await acquire(engine, "a")
    await lapse(engine)
    assert await acquire(engine, "b") == 2
    assert await holder(engine) == ("b", 2)


async def test_one_that_was_let_go_is_free_at_once_and_its_epoch_never_goes_back(engine: AsyncEngine) -> None:
    for epoch in (1, 2, 3):
        assert await acquire(engine, "a") == epoch
        await release(engine, epoch)


async def test_letting_go_of_what_has_passed_on_changes_nothing(engine: AsyncEngine) -> None:
    await acquire(engine, "a")
    await lapse(engine)
    await acquire(engine, "b")
    await release(engine, 1)
    await renew(engine, 2)
    assert await acquire(engine, "c") is None


async def test_an_old_epoch_can_not_renew(engine: AsyncEngine) -> None:
    await acquire(engine, "a")
    await lapse(engine)
    await acquire(engine, "b")
    with pytest.raises(lease.LeaseLost, match="the lease of job_t at epoch 1 has lapsed or passed on"):
        await renew(engine, 1)


async def test_a_lapsed_one_can_not_be_renewed_even_while_it_is_free(engine: AsyncEngine) -> None:
    await acquire(engine, "a")
    await lapse(engine)
    with pytest.raises(lease.LeaseLost):
        await renew(engine, 1)


async def test_renewing_extends_it(engine: AsyncEngine) -> None:
    await acquire(engine, "a", ttl_s=0.3)
    await renew(engine, 1, ttl_s=60.0)
    await asyncio.sleep(0.4)
    assert await acquire(engine, "b") is None


async def test_many_at_once_make_one_owner(engine: AsyncEngine) -> None:
    for epoch in (1, 2):
        won = await asyncio.gather(*(acquire(engine, f"runner-{n}") for n in range(8)))
        assert [found for found in won if found is not None] == [epoch]
        await lapse(engine)


async def test_a_turn_in_progress_keeps_others_out_until_it_is_written(engine: AsyncEngine) -> None:
    """Renewing locks the row: whoever wants to take over waits for the transaction, and then finds it renewed."""
    await acquire(engine, "a", ttl_s=0.3)
    async with engine.begin() as connection:
        await lease.renew(connection, JOB, 1, 60.0)
        await asyncio.sleep(0.4)
        rival = asyncio.create_task(acquire(engine, "b"))
        await asyncio.sleep(0.1)
        assert not rival.done()
    assert await rival is None


async def test_forgetting_ends_with_the_job(engine: AsyncEngine) -> None:
    await acquire(engine, "a")
    async with engine.begin() as connection:
        await lease.forget(connection, JOB)
        assert (await connection.execute(select(func.count()).select_from(job_leases))).scalar_one() == 0
