"""xxh3-128 of host memory: about three times as fast as a copy, so it is always on."""

import asyncio

import xxhash

from weightstore.memory import Bytes

SLICE_BYTES = 8 * 1024 * 1024


def digest_of(data: Bytes) -> str:
    """Hex of the xxh3-128."""
    return xxhash.xxh3_128_hexdigest(data.data)


async def digest_of_async(data: Bytes) -> str:
    """The same, giving way to the event loop between slices."""
    if data.nbytes <= SLICE_BYTES:
        return digest_of(data)
    state = xxhash.xxh3_128()
    for start in range(0, data.nbytes, SLICE_BYTES):
        state.update(data[start : start + SLICE_BYTES].data)
        await asyncio.sleep(0)
    return state.hexdigest()
