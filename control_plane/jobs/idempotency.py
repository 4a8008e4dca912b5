"""`Idempotency-Key`: the same request again, however often and whenever, is answered as the first one was."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import Row

from control_plane.http.problems import ProblemError

PRINCIPAL = "local"
_FORM = re.compile(r"^[\x21-\x7e]{1,255}$")


@dataclass(frozen=True, slots=True)
class Key:
    """One request under a key. `body_digest` is of the meaning: the order of keys and spaces do not count."""

    route: str
    value: str
    body_digest: str

    @property
    def row(self) -> dict[str, str]:
        return {"principal": PRINCIPAL, "route": self.route, "key": self.value}


def read_key(header: str | None, *, route: str, document: object) -> Key | None:
    """The request's key; None without the header. Raises a 400 problem for a malformed one."""
    if header is None:
        return None
    if not _FORM.match(header):
        raise ProblemError(400, "invalid_idempotency_key", "Idempotency-Key takes 1 to 255 visible ASCII characters")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Key(route, header, sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest())


def replay(key: Key, stored: Row[Any]) -> tuple[int, Mapping[str, Any]]:
    """Status and body of the first answer. Raises 409 for another body, or while the first request is in flight."""
    if stored.body_digest != key.body_digest:
        raise ProblemError(
            409,
            "idempotency_key_reused",
            "this Idempotency-Key came with another body before; use a new key for a new request",
        )
    if stored.status is None:
        raise in_flight()
    return stored.status, stored.response


def in_flight() -> ProblemError:
    """409: the first request under the key has not finished."""
    return ProblemError(
        409,
        "idempotency_key_in_flight",
        "the first request with this Idempotency-Key is still being answered; retry",
        is_retryable=True,
        headers={"Retry-After": "1"},
    )
