"""Seeds by derivation: a counter-based hash of what a draw belongs to.

A draw never depends on how many draws were made before it, so the order of work, a retry on another host or a
migration in the middle of an answer leave it unchanged.
"""

from hashlib import blake2b

SEED_BITS = 63
"""Derived seeds lie in [0, 2**63), the range that every seed consumer (numpy, torch, protobuf int64) accepts."""

SeedPart = int | str | bytes


def derive(*parts: SeedPart) -> int:
    """Hash ``parts`` into a seed in [0, 2**63).

    Parts are typed and length-prefixed before hashing, so ``("ab", "c")``, ``("a", "bc")`` and ``("abc",)`` differ,
    and so do ``1`` and ``"1"``.

    Raises:
        TypeError: a part is neither int, str nor bytes (a float or None would make seeds depend on formatting).
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        tag, payload = _encode(part)
        digest.update(tag + len(payload).to_bytes(8, "big") + payload)
    return int.from_bytes(digest.digest(), "big") >> (64 - SEED_BITS)


def sampling_seed(job_seed: int, group_id: str, sibling: int, attempt: int, turn: int) -> int:
    """Seed of one turn's generation; the draw of token position t uses ``derive(seed, t)``."""
    return derive("sampling", job_seed, group_id, sibling, attempt, turn)


def uniform(seed: int, position: int) -> float:
    """The draw in [0, 1) that belongs to ``position`` under ``seed``, with 53 random bits."""
    return (derive(seed, position) >> (SEED_BITS - 53)) / (1 << 53)


def _encode(part: SeedPart) -> tuple[bytes, bytes]:
    match part:
        case bool():
            raise TypeError("seed part is a bool; pass an int, a str or bytes")
        case int():
            return b"i", part.to_bytes((part.bit_length() + 8) // 8, "big", signed=True)
        case str():
            return b"s", part.encode("utf-8", "surrogatepass")
        case bytes():
            return b"b", part
        case _:
            raise TypeError(f"seed part {part!r} is a {type(part).__name__}; pass an int, a str or bytes")
