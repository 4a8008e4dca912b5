"""Blobs in and out. Compression of big ones happens in a thread, so that the event loop goes on."""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from control_plane.blobs import repository
from control_plane.blobs.codec import pack, unpack
from control_plane.context import Context

INLINE_BYTES = 256 << 10
MAX_DIGESTS = 4096
MAX_ANSWER_BYTES = 48 << 20


class TooMuch(ValueError):
    """An answer that would not fit one message; ask for fewer digests."""


async def store(context: Context, blobs: Sequence[tuple[str, bytes]]) -> None:
    """Store (digest, bytes) pairs in one transaction. Raises WrongDigest, and then nothing is stored."""
    unique = dict(blobs)
    if sum(map(len, unique.values())) <= INLINE_BYTES:
        rows = [row for digest, data in unique.items() for row in pack(digest, data)]
    else:
        packed = await asyncio.gather(*(asyncio.to_thread(pack, digest, data) for digest, data in unique.items()))
        rows = [row for part in packed for row in part]
    # One order for all writers, so that two of them with the same blobs never wait for each other in a circle.
    rows.sort(key=lambda row: (row["digest"], row["part"]))
    async with context.database.begin() as connection:
        await repository.add_parts(connection, rows)


async def fetch(connection: AsyncConnection, digests: Sequence[str]) -> dict[str, bytes]:
    """Those of the blobs that exist. Raises TooMuch before reading what no message could carry."""
    unique = list(dict.fromkeys(digests))
    if len(unique) > MAX_DIGESTS:
        raise TooMuch(f"{len(unique)} digests, at most {MAX_DIGESTS} in one call")
    total = sum((await repository.sizes(connection, unique)).values())
    if total > MAX_ANSWER_BYTES:
        raise TooMuch(f"{total} bytes, at most {MAX_ANSWER_BYTES} in one answer: ask for fewer digests")
    rows = await repository.parts(connection, unique)
    if total <= INLINE_BYTES:
        return unpack(rows)
    return await asyncio.to_thread(unpack, rows)
