"""Both sides of the conservation equation, from two sources that are kept apart.

    issued = trained (or evaluated) + sum of exits + in flight

`recorded` is what the runner's ledger counted as it went; `counted` is a count of the rows of attempts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.core.ledger import IN_FLIGHT, USED

Counts = Mapping[str, int]


def equations(recorded: Mapping[str, Any], counted: Iterable[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    """One equation per purpose. `counted`: (purpose, task, state, count) of the rows of attempts.

    `left` is what was issued and `right` what became of it, both as recorded; `rows` is the right side counted again.
    """
    rows: dict[str, Counter[str]] = {}
    for purpose, _, state, count in counted:
        rows.setdefault(purpose, Counter())[state] += count
    purposes = sorted(rows.keys() | _keys(recorded, "issued") | _keys(recorded, "closed"))
    return [_equation(recorded, purpose, rows.get(purpose, Counter())) for purpose in purposes]


def _equation(recorded: Mapping[str, Any], purpose: str, rows: Counter[str]) -> dict[str, Any]:
    issued = _sum(recorded.get("issued", {}).get(purpose, {}))
    states = _by_state(recorded.get("closed", {}).get(purpose, {})) + _by_state(
        recorded.get("in_flight", {}).get(purpose, {})
    )
    used = {state: states[state] for state in sorted(USED) if states[state]}
    in_flight = {state: states[state] for state in sorted(IN_FLIGHT) if states[state]}
    exits = {state: n for state, n in sorted(states.items()) if n and state not in USED and state not in IN_FLIGHT}
    right = sum(states.values())
    return {
        "purpose": purpose,
        "left": issued,
        "right": right,
        "used": used,
        "exits": exits,
        "in_flight": in_flight,
        "rows": dict(sorted(rows.items())),
        "balanced": issued == right and +states == +rows,
    }


def _keys(recorded: Mapping[str, Any], side: str) -> set[str]:
    return set(recorded.get(side, {}))


def _sum(tree: Any) -> int:
    return sum(map(_sum, tree.values())) if isinstance(tree, Mapping) else int(tree)


def _by_state(by_task: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for states in by_task.values():
        total.update(states)
    return total
