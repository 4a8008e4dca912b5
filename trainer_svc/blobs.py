"""Fetching a batch's token blobs, verified by digest."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Protocol

from trainer_svc.errors import BlobMissing

_PER_CALL = 64


class BlobSource(Protocol):
    """Where blobs come from; `headrace.service.control_client.ControlClient` is one."""

    async def get_blobs(self, digests: Iterable[str], *, give_up_s: float | None = None) -> dict[str, bytes]: ...


async def fetch(source: BlobSource, digests: Sequence[str], give_up_s: float) -> dict[str, bytes]:
    """Every blob, by digest. Raises BlobMissing for one that is not there or is not what its digest says."""
    wanted = list(dict.fromkeys(digests))
    found: dict[str, bytes] = {}
    for start in range(0, len(wanted), _PER_CALL):
        part = wanted[start : start + _PER_CALL]
        found |= await source.get_blobs(part, give_up_s=give_up_s)
    for digest in wanted:
        if digest not in found:
            raise BlobMissing(f"token blob {digest} is not stored")
        if sha256(found[digest]).hexdigest() != digest:
            raise BlobMissing(f"token blob {digest} came back with other bytes")
    return found
