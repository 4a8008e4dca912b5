"""Which wishes a job can be given in which phase."""

from typing import Literal

TERMINAL = frozenset({"cancelled", "succeeded", "failed"})

Wish = Literal["pause", "resume", "cancel"]

ALLOWED: dict[Wish, frozenset[str]] = {
    "pause": frozenset({"starting", "running"}),
    "resume": frozenset({"pausing", "paused"}),
    "cancel": frozenset({"queued", "starting", "running", "pausing", "paused"}),
}
"""Wish -> phases in which it is something new."""

GRANTED: dict[Wish, frozenset[str]] = {
    "pause": frozenset({"pausing", "paused"}),
    "resume": frozenset(),
    "cancel": frozenset({"cancelling", "cancelled"}),
}
"""Wish -> phases in which it holds already; asking again changes nothing."""

OVERRIDES: dict[Wish, frozenset[str]] = {
    "pause": frozenset({"resume"}),
    "resume": frozenset({"pause"}),
    "cancel": frozenset({"pause", "resume"}),
}
"""Wish -> wishes not yet acted on that it takes back. A cancel is never taken back."""
