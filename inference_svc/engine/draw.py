"""The one source of chance in an engine: a uniform number that is a function of (seed, token position) alone.

SplitMix64's finaliser over both words. A draw therefore does not depend on batch order, on the number of lanes, on the
worker, or on how often the request was moved. The group's siblings differ by their seeds.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_TO_UNIT = 2.0**-53


def _mix(word: int) -> int:
    """SplitMix64's output function: a bijection of 64-bit words whose output bits depend on all input bits."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), of 53 random bits, for index ``position`` of the sequence that ``seed`` samples."""
    start = _mix((seed + _GAMMA) & _MASK)
    return (_mix((start + _GAMMA * (position + 1)) & _MASK) >> 11) * _TO_UNIT
