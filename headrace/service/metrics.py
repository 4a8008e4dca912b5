"""Prometheus: the /metrics endpoint of a process and the counts of its RPCs."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from prometheus_client import Counter, Gauge, Histogram, start_http_server

RPCS = Counter("headrace_rpcs_total", "RPCs served, by method and status code", ["method", "code"])
RPC_SECONDS = Histogram(
    "headrace_rpc_seconds",
    "Time to answer unary RPCs",
    ["method"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
OPEN_STREAMS = Gauge("headrace_open_streams", "Streams open now, by method", ["method"])


@dataclass(frozen=True, slots=True)
class MetricsEndpoint:
    """A running /metrics server, in its own thread."""

    address: str
    _close: Callable[[], None]

    def close(self) -> None:
        self._close()


def serve_metrics(host: str, port: int) -> MetricsEndpoint | None:
    """Serve the default registry at `host:port`/metrics (port 0: a free one, -1: none)."""
    if port < 0:
        return None
    http_server, thread = start_http_server(port, addr=host)

    def close() -> None:
        http_server.shutdown()
        http_server.server_close()
        thread.join(timeout=2)

    return MetricsEndpoint(f"{host}:{http_server.server_port}", close)


class RpcMetrics(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Counts every RPC of a server under its full method name."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler: Any = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.response_streaming:
            return self._wrap_stream(handler, method)
        return self._wrap_single(handler, method)

    def _wrap_single(self, handler: Any, method: str) -> Any:
        behaviour = handler.stream_unary if handler.request_streaming else handler.unary_unary
        make = (
            grpc.stream_unary_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
        )

        async def timed(request: Any, context: Any) -> Any:
            started = time.perf_counter()
            try:
                return await behaviour(request, context)
            finally:
                RPC_SECONDS.labels(method).observe(time.perf_counter() - started)
                RPCS.labels(method, _code_name(context)).inc()

        return make(timed, handler.request_deserializer, handler.response_serializer)

    def _wrap_stream(self, handler: Any, method: str) -> Any:
        behaviour = handler.stream_stream if handler.request_streaming else handler.unary_stream
        make = (
            grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler
        )

        async def counted(request: Any, context: Any) -> Any:
            with OPEN_STREAMS.labels(method).track_inprogress():
                try:
                    # A handler is a coroutine that writes, or an async generator that yields.
                    answer = behaviour(request, context)
                    if hasattr(answer, "__aiter__"):
                        async for item in answer:
                            await context.write(item)
                    else:
                        await answer
                finally:
                    RPCS.labels(method, _code_name(context)).inc()

        return make(counted, handler.request_deserializer, handler.response_serializer)


def _code_name(context: Any) -> str:
    code = context.code()
    if not code:
        return "OK"
    return code.name if isinstance(code, grpc.StatusCode) else str(code)
