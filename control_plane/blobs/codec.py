"""A blob as rows: zstd, cut into parts of at most 1 MiB, checked against its digest on the way out."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from typing import Any

import zstandard

PART_BYTES = 1 << 20
LEVEL = 3


class WrongDigest(ValueError):
    """The bytes are not those that the digest names."""


def pack(digest: str, data: bytes) -> list[dict[str, Any]]:
    """Rows of the table `blobs`. Raises WrongDigest unless `digest` is the sha256 of `data` in lower-case hex."""
    actual = sha256(data).hexdigest()
    if actual != digest:
        raise WrongDigest(f"a blob announced as {digest[:80]!r} has the digest {actual}")
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(data)
    pieces = [packed[start : start + PART_BYTES] for start in range(0, len(packed), PART_BYTES)]
    return [
        {"digest": digest, "part": number, "n_parts": len(pieces), "data": piece, "n_bytes": len(data)}
        for number, piece in enumerate(pieces)
    ]


def unpack(rows: Iterable[Mapping[str, Any]]) -> dict[str, bytes]:
    """Digest -> bytes for every blob whose parts are all among `rows`, which come in order. Raises WrongDigest."""
    whole: dict[str, bytes] = {}
    for digest, group in groupby(rows, key=itemgetter("digest")):
        parts = list(group)
        if len(parts) != parts[0]["n_parts"]:
            continue
        packed = b"".join(bytes(part["data"]) for part in parts)
        data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=max(parts[0]["n_bytes"], 1))
        if sha256(data).hexdigest() != digest:
            raise WrongDigest(f"stored blob {digest} does not have the bytes that its digest names")
        whole[digest] = data
    return whole
