"""Bounded staleness: which groups may start, which still live, which may be taken.

n is the newest committed version, m the next sample version: n while no batch is out, n + 1 from the take on.
All arithmetic is on depths (headrace.core.versions), L = depth(n) - depth(v0). The check at the take is the guarantee;
admission and early eviction only save work. RollArt counts its bound before workers load, so its alpha is ours + 1.
"""

import math


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
    if alpha is None:
        return math.floor(overcommit * 2 * groups)
    useful_batches = alpha - rollout_lag - is_batch_out + 1
    return max(0, math.floor(overcommit * useful_batches * groups))


def issued_per_group(group_size: int, redundancy: str | float) -> int:
    """k = ceil(group_size * redundancy), computed in decimals so that 8 * 1.1 is 9 and 10 * 1.1 is 11, not 12."""
    numerator, denominator = _decimal_ratio(str(redundancy))
    return max(group_size, -(-group_size * numerator // denominator))


def _decimal_ratio(text: str) -> tuple[int, int]:
    whole, _, fraction = text.partition(".")
    return int(whole + fraction), 10 ** len(fraction)
