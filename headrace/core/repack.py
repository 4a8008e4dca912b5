"""Repack: the long tails of several workers go onto few, within one version (Laminar, Algorithm 1).

    S       = workers with C_used < min(C_max, C_prev) and N_reqs < B
    sources = S by C_used ascending
    each    → the destination in S where the merged KV is fullest without passing C_max or B

A worker that gave its trajectories away is released: it loads the newest version and takes new ones. One that received
is not emptied any more, so that nothing moves twice.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutLoad:
    """One worker with what is bound to it. KV is in tokens.

    `kv_used_tokens` is C_used, what the next turns of its trajectories need; `kv_prev_tokens` is C_prev, what it was
    before: only a worker whose use falls is in its tail. `can_release`: it takes nothing new under its version, so
    that emptying it frees it; others only receive.
    """

    worker_id: str
    policy_version: int
    kv_used_tokens: int
    kv_prev_tokens: int
    kv_max_tokens: int
    n_requests: int
    max_requests: int
    can_release: bool = True

    @property
    def is_in_tail(self) -> bool:
        """Membership of S."""
        return (
            self.kv_used_tokens < min(self.kv_max_tokens, self.kv_prev_tokens) and self.n_requests < self.max_requests
        )


@dataclass(frozen=True, slots=True)
class Move:
    """Everything that is bound to `source` goes to `destination`."""

    source: str
    destination: str


def plan_repack(loads: Iterable[RolloutLoad]) -> tuple[Move, ...]:
    """The moves, in order. O(|S|^2) in the members of a version's S; ties go to the lower worker id."""
    groups: defaultdict[int, list[RolloutLoad]] = defaultdict(list)
    for load in loads:
        if load.is_in_tail and load.n_requests:
            groups[load.policy_version].append(load)
    return tuple(move for version in sorted(groups) for move in _plan_version(groups[version]))


def _plan_version(tail: list[RolloutLoad]) -> list[Move]:
    projected = {load.worker_id: (load.kv_used_tokens, load.n_requests) for load in tail}
    received: set[str] = set()
    moves: list[Move] = []
    for source in sorted(tail, key=lambda load: (load.kv_used_tokens, load.worker_id)):
        if not source.can_release or source.worker_id in received:
            continue
        best = _fullest(source, tail, projected)
        if best is None:
            continue
        kv_tokens, n_requests = projected.pop(source.worker_id)
        held_tokens, held_requests = projected[best.worker_id]
        projected[best.worker_id] = held_tokens + kv_tokens, held_requests + n_requests
        received.add(best.worker_id)
        moves.append(Move(source.worker_id, best.worker_id))
    return moves


def _fullest(source: RolloutLoad, tail: list[RolloutLoad], projected: dict[str, tuple[int, int]]) -> RolloutLoad | None:
    """The best destination by what each would hold after the moves so far."""
    best: tuple[int, RolloutLoad] | None = None
    for load in tail:
        if load.worker_id == source.worker_id or load.worker_id not in projected:
            continue
        kv_tokens, n_requests = projected[load.worker_id]
        merged = kv_tokens + source.kv_used_tokens
        if merged > load.kv_max_tokens or n_requests + source.n_requests > load.max_requests:
            continue
        if best is None or (merged, best[1].worker_id) > (best[0], load.worker_id):
            best = merged, load
    return best[1] if best else None
