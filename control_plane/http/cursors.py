"""Opaque, signed cursors: a position in a list and what the list was asked for."""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from control_plane.http.problems import ProblemError

_TAG_BYTES = 12


class Cursors:
    """Signs and checks cursors with one key, shared by all replicas."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, scope: Mapping[str, Any], position: Sequence[Any]) -> str:
        """A cursor that continues after `position` in the list described by `scope` (route and filters)."""
        payload = orjson.dumps([_digest(scope), *position])
        return urlsafe_b64encode(self._tag(payload) + payload).decode().rstrip("=")

    def read(self, scope: Mapping[str, Any], cursor: str, n_parts: int) -> list[Any]:
        """The position inside `cursor`. Raises a 422 problem for one that was changed or is of another list."""
        try:
            raw = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (Base64Error, ValueError):
            raise _refusal("it is not a cursor of this server") from None
        tag, payload = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(payload)):
            raise _refusal("it is not a cursor of this server")
        digest: str
        position: list[Any]
        digest, *position = orjson.loads(payload)
        if digest != _digest(scope) or len(position) != n_parts:
            raise _refusal("it belongs to a list with other filters")
        return position

    def _tag(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()[:_TAG_BYTES]


def page(rows: list[dict[str, Any]], limit: int, make: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """`{items, next_cursor}` from up to `limit + 1` rows: the extra row only tells that there is more."""
    items = rows[:limit]
    return {"items": items, "next_cursor": make(items[-1]) if len(rows) > limit else None}


def _digest(scope: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(dict(scope), option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _refusal(why: str) -> ProblemError:
    return ProblemError(422, "invalid_cursor", f"the cursor is refused: {why}; start again without it")
