"""Bounded staleness: which groups may start, which still live, which may be taken.

n is the newest committed version, m the next sample version: n while no batch is out, n + 1 from the take on.
All arithmetic is on depths (headrace.core.versions), L = depth(n) - depth(v0). The check at the take is the guarantee;
admission and early eviction only save work. RollArt counts its bound before workers load, so its alpha is ours + 1.
"""

import math
from fractions import Fraction


def may_take(lag: int | None, alpha: int | None) -> bool:
    """Whether a group whose oldest sibling lags by `lag` updates may be trained: L <= alpha.

    `lag` None (off lineage) is never taken; `alpha` None is no bound.
    """
    return lag is not None and (alpha is None or lag <= alpha)


def is_alive(lag: int | None, alpha: int | None, *, is_batch_out: bool) -> bool:
    """Whether a group can still be taken, now or at the next take: m - v0 <= alpha."""
    return lag is not None and (alpha is None or lag + is_batch_out <= alpha)


def admission_bound(*, rollout_lag: int, alpha: int | None, is_batch_out: bool, groups: int, overcommit: float) -> int:
    """How many groups (open or ready, not taken) a worker lagging n by `rollout_lag` updates may have started.

    overcommit * (w + alpha - m + 1) * B with w = n - rollout_lag. Alpha None bounds nothing here: two batches.
    """
    useful_batches = 2 if alpha is None else alpha - rollout_lag - is_batch_out + 1
    return max(0, math.floor(_as_written(overcommit) * useful_batches * groups))


def issued_per_group(group_size: int, redundancy: str | float) -> int:
    """k = ceil(group_size * redundancy), so that 8 * 1.1 is 9 and 10 * 1.1 is 11, not 12."""
    return max(group_size, math.ceil(group_size * _as_written(redundancy)))


def _as_written(factor: str | float) -> Fraction:
    """The decimal that was written, not its binary neighbour: 100 * 1.15 is 115, not 114.99…"""
    return Fraction(str(factor))
