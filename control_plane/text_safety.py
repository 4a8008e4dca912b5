"""Values made fit for PostgreSQL and JSON: no NUL, no lone surrogate, no number without an end."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from headrace.client.jobspec import printable


def safe_text(text: str, *, limit: int = 4000) -> str:
    """`text` with NUL and lone surrogates as U+FFFD, cut at `limit` characters with an ellipsis."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def safe_numbers(values: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers that JSON can hold: non-finite ones become None."""
    return {safe_text(key, limit=200): value if isfinite(value) else None for key, value in values.items()}


def safe_texts(values: Mapping[str, str]) -> dict[str, str]:
    """Keys and values made safe."""
    return {safe_text(key, limit=200): safe_text(value) for key, value in values.items()}


def safe_json(value: Any, *, depth: int = 0) -> Any:
    """A JSON value made safe throughout; what is nested deeper than 64 levels is cut to None."""
    if depth > 64:
        return None
    match value:
        case str():
            return printable(value)
        case float():
            return value if isfinite(value) else None
        case dict():
            return {printable(str(key)): safe_json(item, depth=depth + 1) for key, item in value.items()}
        case list() | tuple():
            return [safe_json(item, depth=depth + 1) for item in value]
        case _:
            return value
