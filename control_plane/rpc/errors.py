"""Errors of the control plane as gRPC statuses. The details start with the stable code that REST would give."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import grpc
import grpc.aio

from control_plane.http.problems import as_problem
from headrace.service.logging import get_logger

log = get_logger(__name__)

Reply = TypeVar("Reply")
Method = Callable[[Any, Any, grpc.aio.ServicerContext[Any, Any]], Awaitable[Reply]]

_STATUS = {
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    503: grpc.StatusCode.UNAVAILABLE,
}


def answered(method: Method[Reply]) -> Method[Reply]:
    """Turn what `as_problem` knows into a status; a defect becomes INTERNAL without its traceback."""

    @wraps(method)
    async def wrapped(self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Reply:
        try:
            return await method(self, request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                log.exception("rpc_crashed", method=method.__name__, exc_info=error)
                await context.abort(grpc.StatusCode.INTERNAL, "internal_error: see the control plane's log")
            status = _STATUS.get(problem.status, grpc.StatusCode.INVALID_ARGUMENT)
            await context.abort(status, f"{problem.code}: {problem.detail}")

    return wrapped
