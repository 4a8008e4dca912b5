"""Parts of blobs in the database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import blobs

_ADD = insert(blobs).on_conflict_do_nothing()
"""With the rows as parameters, so that it is compiled once and not for every number of rows."""


async def add_parts(connection: AsyncConnection, rows: Sequence[dict[str, Any]]) -> None:
    """Insert parts; those that are there already stay as they are (the same digest means the same bytes)."""
    if rows:
        await connection.execute(_ADD, list(rows))


async def sizes(connection: AsyncConnection, digests: Sequence[str]) -> dict[str, int]:
    """Uncompressed bytes of the blobs that exist."""
    found = await connection.execute(
        select(blobs.c.digest, blobs.c.n_bytes).where(blobs.c.digest.in_(digests), blobs.c.part == 0)
    )
    return dict(found.all())


async def parts(connection: AsyncConnection, digests: Sequence[str]) -> list[dict[str, Any]]:
    """All parts of these blobs, in order."""
    found = await connection.execute(
        select(blobs.c.digest, blobs.c.part, blobs.c.n_parts, blobs.c.data, blobs.c.n_bytes)
        .where(blobs.c.digest.in_(digests))
        .order_by(blobs.c.digest, blobs.c.part)
    )
    return [dict(row) for row in found.mappings()]
