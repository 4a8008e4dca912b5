"""The outermost layer, in plain ASGI: request ids, body limits, metrics, and an answer for whatever went wrong.

Plain ASGI, since a layer that wraps responses in tasks would cut event streams off their clients.
"""

import re
import time
from typing import Any

from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from control_plane.http.problems import DEFECT, ProblemError, as_problem, problem_response
from control_plane.ids import new_id
from headrace.service.logging import get_logger

REQUESTS = Counter("headrace_http_requests_total", "Requests by route template", ["method", "route", "status"])
SECONDS = Histogram(
    "headrace_http_request_seconds",
    "Time to the end of the answer by route template, streams left out",
    ["method", "route"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_GIVEN_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = get_logger(__name__)


class Guard:
    """Wraps an ASGI application; see the module."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _AnswerWatch(send, request_id)
        started = time.perf_counter()
        with bound_contextvars(request_id=request_id):
            try:
                self._refuse_early(scope)
                await self._app(scope, self._limited(scope, receive), answer.send)
            except Exception as error:  # noqa: BLE001 - the last layer: a client must get an answer, not a reset
                await self._answer(error, scope, receive, answer)
        _count(scope, answer, time.perf_counter() - started)

    def _refuse_early(self, scope: Scope) -> None:
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length and (not length.isdigit() or int(length) > self._max_body_bytes):
            raise self._too_large()
        if "\x00" in scope["path"]:
            raise ProblemError(404, "route_not_found", "no such route; see /openapi.json")
        if b"%00" in scope.get("query_string", b"") or b"\x00" in scope.get("query_string", b""):
            raise ProblemError(422, "invalid_request", "a query parameter holds U+0000; remove it")

    def _limited(self, scope: Scope, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        return limited

    def _too_large(self) -> ProblemError:
        # The rest of the body is never read, so the connection cannot be used again.
        return ProblemError(
            413,
            "body_too_large",
            f"the body is larger than {self._max_body_bytes} bytes",
            headers={"Connection": "close"},
        )

    async def _answer(self, error: Exception, scope: Scope, receive: Receive, answer: "_AnswerWatch") -> None:
        problem = as_problem(error)
        if problem is None:
            log.exception("request_crashed", path=scope["path"], exc_info=error)
            problem = DEFECT
        if answer.status == 0:
            await problem_response(problem, scope)(scope, receive, answer.send)


class _AnswerWatch:
    """Notes the status, and adds the request id and the headers that every answer carries."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = 0
        self.is_stream = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", []))
            self.is_stream = any(name == b"content-type" and b"event-stream" in value for name, value in headers)
            headers.append((b"x-request-id", self._request_id.encode()))
            headers.append((b"x-content-type-options", b"nosniff"))
            message = {**message, "headers": headers}
        await self._send(message)


def _request_id(scope: Scope) -> str:
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    return given if _GIVEN_ID.match(given) else new_id("req")


def _count(scope: Scope, answer: _AnswerWatch, seconds: float) -> None:
    method = scope["method"] if scope["method"] in _METHODS else "OTHER"
    route = template(scope)
    REQUESTS.labels(method, route, str(answer.status)).inc()
    if not answer.is_stream:
        SECONDS.labels(method, route).observe(seconds)


def template(scope: Scope) -> str:
    """The route's template such as `/api/v1/jobs/{job_id}`; raw paths would make a label of every id."""
    route: Any = scope.get("route")
    return str(getattr(route, "path_format", None) or getattr(route, "path", "")) or "unmatched"
