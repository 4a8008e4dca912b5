"""Text from outside, made safe to store: no NUL, no lone surrogate; everything else stays as it is."""

import math
import re
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "\ufffd"
MAX_DEPTH = 16

_BAD = re.compile("[\x00\ud800-\udfff]")


class Cleaner:
    """Replaces what no database takes with U+FFFD and counts how often."""

    def __init__(self) -> None:
        self.n_replaced = 0

    def text(self, text: str) -> str:
        """``text`` without NUL and lone surrogates. A backslash followed by letters is left alone."""
        if text.isascii() and "\x00" not in text:
            return text
        cleaned, n_replaced = _BAD.subn(REPLACEMENT, text)
        self.n_replaced += n_replaced
        return cleaned

    def value(self, value: Any) -> Any:
        """A JSON value with every string in it cleaned, keys included."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(key): self.value(item) for key, item in value.items()}
            case list():
                return [self.value(item) for item in value]
            case _:
                return value


def to_json(value: Any, depth: int = MAX_DEPTH) -> Any:
    """``value`` as plain JSON: array scalars become numbers, arrays lists, NaN and infinities null, the rest text."""
    if value is None or isinstance(value, bool | int | str):
        # Subclasses (an IntEnum, a numpy string) would not survive every encoder.
        return value if value is None or type(value) in (bool, int, str) else _plain(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth == 0:
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): to_json(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item, depth - 1) for item in value]
    if hasattr(value, "tolist"):
        return to_json(value.tolist(), depth - 1)
    return repr(value)


def _plain(value: Any) -> int | str:
    return str(value) if isinstance(value, str) else int(value)
