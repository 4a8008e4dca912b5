"""The REST API as Python methods: one per route, plain dictionaries out, two kinds of errors.

with RestClient("http://127.0.0.1:8470") as api:
    job = api.submit(spec)
    for event in api.events(job["id"], follow=True): ...
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

PAGE = 200
LONG_POLL_S = 20.0


class Unreachable(Exception):
    """No answer came: the server is down, or the address is wrong."""


class ApiError(Exception):
    """The server answered with a problem (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        super().__init__(str(problem.get("detail") or problem.get("title") or f"HTTP {status}"))

    @property
    def code(self) -> str:
        return str(self.problem.get("code", ""))

    @property
    def errors(self) -> list[dict[str, str]]:
        """Causes: JSON pointer, message and fix."""
        return list(self.problem.get("errors", []))


class RestClient:
    """A synchronous client. Every call has a deadline of `timeout_s`, long-polls that of their wait on top."""

    def __init__(self, server: str, *, token: str | None = None, timeout_s: float = 10.0) -> None:
        self.server = server.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Proxies from the environment are for the internet; a server on loopback is not behind one.
        self._http = httpx.Client(base_url=self.server, headers=headers, timeout=timeout_s, trust_env=False)
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(self, spec: Mapping[str, Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._call("POST", "/jobs", json=spec, headers=headers)

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The resolved spec, its digest and warnings."""
        return self._call("POST", "/jobs/validate", json=spec)

    def job(self, job_id: str, *, wait_s: float = 0, until: str | None = None) -> dict[str, Any]:
        """A job; with `wait_s`, once its phase is `until` (`terminal`: any last one) or the time is over."""
        query = {"wait": wait_s, "until": until} if wait_s else {}
        return self._call("GET", f"/jobs/{job_id}", query=query, wait_s=wait_s)

    def jobs(self, *, limit: int = 50, **filters: Any) -> Iterator[dict[str, Any]]:
        """Jobs, newest first."""
        return self.pages("/jobs", limit=limit, **filters)

    def wish(self, job_id: str, action: str) -> dict[str, Any]:
        """`cancel`, `pause` or `resume`."""
        return self._call("POST", f"/jobs/{job_id}/{action}")

    def of_job(self, job_id: str, what: str, **query: Any) -> dict[str, Any]:
        """One of `buffer`, `ledger`, … as it is now."""
        return self._call("GET", f"/jobs/{job_id}/{what}", query=query)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Any other GET under /api/v1."""
        return self._call("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, wait_s: float = 0) -> dict[str, Any]:
        """Any other POST under /api/v1."""
        return self._call("POST", path, json=body or {}, wait_s=wait_s)

    def pages(self, path: str, *, limit: int = PAGE, **query: Any) -> Iterator[dict[str, Any]]:
        """Up to `limit` items of a list, page by page."""
        cursor: str | None = None
        left = limit
        while left > 0:
            page = self._call("GET", path, query={**query, "limit": min(left, PAGE), "cursor": cursor})
            items = page["items"][:left]
            yield from items
            left -= len(items)
            cursor = page.get("next_cursor")
            if not cursor or not items:
                return

    def events(self, job_id: str, *, after: int = 0, follow: bool = False) -> Iterator[dict[str, Any]]:
        """The job's events in order, from `after` on; with `follow`, until the job is over."""
        while True:
            wait_s = LONG_POLL_S if follow else 0.0
            query = {"after": after, "limit": PAGE, "wait": wait_s}
            page = self._call("GET", f"/jobs/{job_id}/events", query=query, wait_s=wait_s)
            yield from page["items"]
            after = int(page["next_after"])
            if page["is_complete"] or (not page["items"] and not follow):
                return

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        wait_s: float = 0,
    ) -> dict[str, Any]:
        try:
            answer = self._http.request(
                method,
                f"/api/v1{path}",
                params={key: value for key, value in (query or {}).items() if value is not None},
                json=json,
                headers=headers,
                timeout=self._timeout_s + wait_s,
            )
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"no answer from {self.server} ({reason}); is it up? see: headrace up") from error
        if answer.is_success:
            found: dict[str, Any] = answer.json() if answer.content else {}
            return found
        raise ApiError(answer.status_code, _problem(answer))


TERMINAL = frozenset({"cancelled", "succeeded", "failed"})


def _problem(answer: httpx.Response) -> dict[str, Any]:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict):
        return problem
    return {"status": answer.status_code, "detail": f"HTTP {answer.status_code}: {answer.text[:200]}"}
