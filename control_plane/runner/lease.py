"""Who owns a job: one lease row, in the database's time. Its epoch fences every write of an owner before."""

from typing import Any

from sqlalchemy import ColumnElement, delete, func, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import job_leases


class LeaseLost(Exception):
    """Another control plane owns the job now; whatever was decided here is void."""


def _until(ttl_s: float) -> ColumnElement[Any]:
    return func.clock_timestamp() + text(f"interval '{ttl_s} seconds'")


async def acquire(connection: AsyncConnection, job_id: str, holder: str, ttl_s: float) -> int | None:
    """The new epoch, or None while somebody else holds the job."""
    fresh = insert(job_leases).values(job_id=job_id, holder=holder, epoch=1, expires_at=_until(ttl_s))
    taken = fresh.on_conflict_do_update(
        index_elements=[job_leases.c.job_id],
        set_={"holder": holder, "epoch": job_leases.c.epoch + 1, "expires_at": _until(ttl_s)},
        where=job_leases.c.expires_at < func.clock_timestamp(),
    ).returning(job_leases.c.epoch)
    epoch: int | None = (await connection.execute(taken)).scalar_one_or_none()
    return epoch


async def renew(connection: AsyncConnection, job_id: str, epoch: int, ttl_s: float) -> None:
    """Extends the lease and locks its row until the transaction ends. Raises LeaseLost."""
    kept = (
        update(job_leases)
        .where(
            job_leases.c.job_id == job_id,
            job_leases.c.epoch == epoch,
            job_leases.c.expires_at > func.clock_timestamp(),
        )
        .values(expires_at=_until(ttl_s))
        .returning(job_leases.c.epoch)
    )
    if (await connection.execute(kept)).scalar_one_or_none() is None:
        raise LeaseLost(f"the lease of {job_id} at epoch {epoch} has lapsed or passed on")


async def release(connection: AsyncConnection, job_id: str, epoch: int) -> None:
    """Lets go at once, so that nobody has to wait for it to lapse. The epoch stays: it never goes back."""
    await connection.execute(
        update(job_leases)
        .where(job_leases.c.job_id == job_id, job_leases.c.epoch == epoch)
        .values(expires_at=func.clock_timestamp())
    )


async def forget(connection: AsyncConnection, job_id: str) -> None:
    await connection.execute(delete(job_leases).where(job_leases.c.job_id == job_id))
