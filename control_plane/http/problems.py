"""Errors as RFC 9457 problem details, for every error: ours, the framework's and the unforeseen."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.responses import Response

from control_plane.http.answers import encode
from headrace.client.jobspec import Problem, SpecError, printable

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "https://headrace.dev/problems/"
MAX_ERRORS = 50


@dataclass(eq=False)
class ProblemError(Exception):
    """Raise it anywhere below a route; it is answered as a problem.

    `code` is stable and for programs, `detail` is for people and names the fix.
    """

    status: int
    code: str
    detail: str
    is_retryable: bool = False
    errors: tuple[Problem, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class ProblemItem(BaseModel):
    """One cause: a JSON pointer into the body, or the name of a parameter."""

    pointer: str
    message: str
    fix: str = ""


class ProblemDetails(BaseModel):
    """An error (RFC 9457). `code` is stable; `retryable` says whether the same request may succeed later."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    instance: str
    code: str
    retryable: bool
    request_id: str
    errors: list[ProblemItem] = []


def not_found(what: str, name: str) -> ProblemError:
    """404 for a `job`, `trajectory`, …"""
    return ProblemError(404, f"{what}_not_found", f"there is no {what} {printable(name)[:200]!r}")


def invalid_spec(error: SpecError) -> ProblemError:
    """422 with every problem of the spec."""
    return ProblemError(422, "invalid_job_spec", "the job spec is refused; see errors", errors=error.problems)


def unavailable(code: str, detail: str, *, retry_after_s: int = 1) -> ProblemError:
    """503: the same request may succeed a little later."""
    return ProblemError(503, code, detail, is_retryable=True, headers={"Retry-After": str(retry_after_s)})


def problem_response(problem: ProblemError, scope: Mapping[str, Any]) -> Response:
    """The problem as an answer to the request of this ASGI scope."""
    body: dict[str, Any] = {
        "type": TYPE_PREFIX + problem.code,
        "title": _title(problem.status),
        "status": problem.status,
        "detail": printable(problem.detail),
        "instance": printable(str(scope.get("path", ""))),
        "code": problem.code,
        "retryable": problem.is_retryable,
        "request_id": scope.get("state", {}).get("request_id", ""),
        **problem.extra,
    }
    if problem.errors:
        body["errors"] = [
            {"pointer": printable(item.pointer), "message": printable(item.message), "fix": printable(item.fix)}
            for item in problem.errors[:MAX_ERRORS]
        ]
    return Response(encode(body), problem.status, headers=dict(problem.headers), media_type=CONTENT_TYPE)


DEFECT = ProblemError(500, "internal_error", "an unforeseen error; the log has it under this request_id")


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


_HTTP_CODES = {404: "route_not_found", 405: "method_not_allowed", 400: "bad_request", 413: "body_too_large"}
_HTTP_DETAILS = {404: "no such route; see /openapi.json", 405: "this route does not take this method; see Allow"}


def _from_http(error: HTTPException) -> ProblemError:
    status = error.status_code
    detail = _HTTP_DETAILS.get(status, str(error.detail))
    return ProblemError(status, _HTTP_CODES.get(status, f"http_{status}"), detail, headers=error.headers or {})


def _from_validation(error: RequestValidationError) -> ProblemError:
    return ProblemError(422, "invalid_request", "the request is refused; see errors", errors=tuple(_items(error)))


def _items(error: RequestValidationError) -> Iterable[Problem]:
    for item in error.errors():
        where, *path = item.get("loc", ()) or ("request",)
        name = ".".join(str(part) for part in path)
        yield Problem(f"#/{where}/{name}", str(item.get("msg", "invalid")), "")


LOCK_NOT_AVAILABLE, QUERY_CANCELED = "55P03", "57014"


def from_database(error: DBAPIError) -> ProblemError | None:
    """What the state of the database, and no fault of ours, explains; None for the rest."""
    state = getattr(error.orig, "sqlstate", None)
    if state == QUERY_CANCELED:
        return unavailable("database_slow", "the query took too long; narrow it or retry")
    if state == LOCK_NOT_AVAILABLE:
        return unavailable("database_busy", "another request holds the row; retry")
    if error.connection_invalidated or isinstance(error, OperationalError):
        return unavailable("database_unavailable", "the database does not answer; retry")
    return None


def as_problem(error: Exception) -> ProblemError | None:
    """The problem that an exception stands for; None if it is a defect of ours."""
    match error:
        case ProblemError():
            return error
        case SpecError():
            return invalid_spec(error)
        case RequestValidationError():
            return _from_validation(error)
        case HTTPException():
            return _from_http(error)
        case PoolTimeout():
            return unavailable("overloaded", "no database connection was free in time; retry")
        case DBAPIError():
            return from_database(error)
        case _:
            return None


def install(app: FastAPI) -> None:
    """Answer every foreseen error as a problem; `Guard` answers the unforeseen."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = as_problem(error)
        if problem is None:
            raise error
        if problem.status == 405:
            problem.headers = {"Allow": _allowed(app, request.scope["path"]) or "GET"}
        return problem_response(problem, request.scope)

    for kind in (ProblemError, SpecError, RequestValidationError, HTTPException, PoolTimeout, DBAPIError):
        app.add_exception_handler(kind, answer)

    async def answer_defect(request: Request, error: Exception) -> Response:
        return problem_response(DEFECT, request.scope)

    # Starlette answers with this and raises the error on, so that the guard logs it.
    app.add_exception_handler(Exception, answer_defect)


def _allowed(app: FastAPI, path: str) -> str:
    """Methods of every route on this path: Starlette names those of the first match alone."""
    methods: set[str] = set()
    for template, operations in app.openapi()["paths"].items():
        if re.fullmatch(re.sub(r"{[^}]+}", "[^/]+", template), path):
            methods.update(method.upper() for method in operations)
    return ", ".join(sorted(methods))
