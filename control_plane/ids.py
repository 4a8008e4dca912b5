"""Prefixed identifiers whose order is the order of creation."""

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 80


def new_id(prefix: str) -> str:
    """`prefix_` and a ULID in lower case: 48 bits of milliseconds, then 80 random bits."""
    number = (time.time_ns() // 1_000_000) << _RANDOM_BITS | int.from_bytes(os.urandom(_RANDOM_BITS // 8), "big")
    return f"{prefix}_{encode(number)}"


def encode(number: int) -> str:
    """26 characters of Crockford's base 32 for a number below 2**130."""
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(125, -5, -5))
