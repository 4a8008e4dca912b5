"""What a registration must look like."""

import re

from control_plane.http.problems import ProblemError
from control_plane.text_safety import safe_text, safe_texts
from control_plane.workers.repository import KINDS
from headrace.wire.control.v1.control_pb2 import RegisterRequest

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$")
_ADDRESS = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$")


def worker_row(request: RegisterRequest) -> dict[str, object]:
    """The row of the table `workers`. Raises a 422 problem that names the field."""
    if request.kind not in KINDS:
        raise _refusal("kind", request.kind, f"use one of {', '.join(KINDS)}")
    for field in ("name", "incarnation"):
        if not _NAME.match(getattr(request, field)):
            raise _refusal(field, getattr(request, field), "use letters, digits, `_`, `.`, `:`, `-`, at most 128")
    if request.address and not _ADDRESS.match(request.address):
        raise _refusal("address", request.address, "use host:port")
    return {
        "worker_id": f"{request.name}@{request.incarnation}",
        "kind": request.kind,
        "name": request.name,
        "incarnation": request.incarnation,
        "address": request.address,
        "metrics_address": safe_text(request.metrics_address, limit=300),
        "labels": safe_texts(request.labels),
        "capabilities": {**safe_texts(request.capabilities), "version": safe_text(request.version, limit=100)},
        "pid": request.pid & 0x7FFFFFFF or None,
    }


def _refusal(field: str, value: str, fix: str) -> ProblemError:
    return ProblemError(422, f"invalid_{field}", f"{field} {safe_text(value, limit=100)!r} is refused: {fix}")
