"""Micro-batches by token budget.

Rows are padded to the longest of their micro-batch, so a micro-batch costs rows x longest. Sorting by length before
cutting keeps the padding small, and the cut depends on lengths alone, never on arrival order.
"""

from collections.abc import Sequence


def pack_by_tokens(lengths_tokens: Sequence[int], budget_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Split row indices 0..n-1 into micro-batches with rows x longest <= ``budget_tokens``.

    Longest rows come first (so memory peaks at once, not late); ties keep index order. A single row longer than the
    budget forms a micro-batch of its own: it cannot be cut, and refusing it would lose its group.

    Raises:
        ValueError: the budget or a length is not positive.
    """
    if budget_tokens < 1:
        raise ValueError(f"budget_tokens is {budget_tokens}; it must be at least 1")
    for row, length in enumerate(lengths_tokens):
        if length < 1:
            raise ValueError(f"row {row} has {length} tokens; rows have at least 1")
    order = sorted(range(len(lengths_tokens)), key=lambda row: (-lengths_tokens[row], row))
    packs: list[list[int]] = []
    for row in order:
        longest = lengths_tokens[packs[-1][0]] if packs else 0
        if packs and (len(packs[-1]) + 1) * longest <= budget_tokens:
            packs[-1].append(row)
        else:
            packs.append([row])
    return tuple(tuple(pack) for pack in packs)


def split_evenly(group_sizes: Sequence[int], n_parts: int) -> tuple[tuple[int, ...], ...]:
    """Deal groups (by index) into ``n_parts`` mini-batches of near-equal row count; groups are never cut.

    Each group goes to the part with the fewest rows, first part on ties, so groups of one size are dealt in turn.
    Parts that receive nothing are left out.
    """
    if n_parts < 1:
        raise ValueError(f"n_parts is {n_parts}; it must be at least 1")
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    n_rows = [0] * n_parts
    for group, size in enumerate(group_sizes):
        part = min(range(n_parts), key=lambda index: (n_rows[index], index))
        parts[part].append(group)
        n_rows[part] += size
    return tuple(tuple(part) for part in parts if part)
