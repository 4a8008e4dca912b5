"""Random keys that every replica shares and a restart keeps."""

import os

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.db.tables import server_secrets

KEY_BYTES = 32


async def secret(connection: AsyncConnection, name: str) -> bytes:
    """The key called `name`; whoever asks first makes it."""
    fresh = {"name": name, "value": os.urandom(KEY_BYTES)}
    await connection.execute(insert(server_secrets).values(fresh).on_conflict_do_nothing())
    found = await connection.execute(select(server_secrets.c.value).where(server_secrets.c.name == name))
    value: bytes = found.scalar_one()
    return value
