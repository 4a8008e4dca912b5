"""JSON answers: datetimes in UTC, numbers without an end as null, never a bare NaN."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import RowMapping
from starlette.responses import Response

_OPTIONS = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS


def encode(value: Any) -> bytes:
    """JSON bytes. orjson writes non-finite floats as null, which is what every reader here expects."""
    return orjson.dumps(value, option=_OPTIONS, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, RowMapping | Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


class Answer(Response):
    """A JSON response of plain data."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode(content)
