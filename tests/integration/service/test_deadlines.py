"""A server that takes calls and never answers, and one that only accepts connections: every call ends in its time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace.client.weights import WeightsClient
from headrace.core.weights.errors import WeightsError
from headrace.service.control_client import ControlClient
from headrace.service.grpc import server
from headrace.wire.control.v1 import control_pb2

LIMIT_S = 0.4
LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)

CONTROL_CALLS: dict[str, Callable[[ControlClient], Awaitable[Any]]] = {
    "register": lambda client: client.register(control_pb2.RegisterRequest(name="env-0")),
    "heartbeat": lambda client: client.heartbeat("env-0@a"),
    "deregister": lambda client: client.deregister("env-0@a", timeout_s=LIMIT_S),
    "report_rewards": lambda client: client.report_rewards([control_pb2.RewardReport()]),
    "put_blobs": lambda client: client.put_blobs({"0" * 64: b"x"}),
    "get_blobs": lambda client: client.get_blobs(["0" * 64]),
}
WEIGHTS_CALLS: dict[str, Callable[[WeightsClient], Awaitable[Any]]] = {
    "commit": lambda client: client.commit("job", 1, "digest", epoch=1, deadline_s=LIMIT_S),
    "set_retention": lambda client: client.set_retention("job", [1], epoch=1, deadline_s=LIMIT_S),
    "release_job": lambda client: client.release_job("job", epoch=1, deadline_s=LIMIT_S),
    "status": lambda client: client.status("job", deadline_s=LIMIT_S),
    "get_manifest": lambda client: client.get_manifest("job", 1, deadline_s=LIMIT_S),
    "fetch_files": lambda client: client.fetch_files("job", 1, deadline_s=LIMIT_S),
}


class Silent(grpc.GenericRpcHandler):
    """Takes every call and answers none; counts those that are still open."""

    def __init__(self) -> None:
        self.n_calls = self.n_open = 0

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method.endswith("/FetchFiles"):
            return grpc.unary_stream_rpc_method_handler(self._never)
        return grpc.unary_unary_rpc_method_handler(self._never)

    async def _never(self, _request: bytes, _context: Any) -> None:
        self.n_calls += 1
        self.n_open += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.n_open -= 1


@pytest.fixture
async def silent() -> AsyncIterator[tuple[str, Silent]]:
    handler, host = Silent(), server()
    host.add_generic_rpc_handlers((handler,))
    port = host.add_insecure_port("127.0.0.1:0")
    await host.start()
    yield f"127.0.0.1:{port}", handler
    await host.stop(0)


@pytest.fixture
async def mute() -> AsyncIterator[str]:
    """Accepts connections and says nothing."""
    writers: list[asyncio.StreamWriter] = []
    host = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    yield f"127.0.0.1:{host.sockets[0].getsockname()[1]}"
    for writer in writers:
        writer.close()
    host.close()


async def ends_in_time(call: Awaitable[Any], error: type[Exception]) -> Exception:
    started = time.monotonic()
    with pytest.raises(error) as failed:
        async with asyncio.timeout(10):
            await call
    assert time.monotonic() - started < LIMIT_S + 2
    return failed.value


@pytest.mark.parametrize("name", list(CONTROL_CALLS))
async def test_calls_of_the_control_plane(silent: tuple[str, Silent], name: str) -> None:
    address, handler = silent
    client = ControlClient(address, rpc_timeout_s=LIMIT_S, give_up_s=LIMIT_S)
    error = await ends_in_time(CONTROL_CALLS[name](client), grpc.aio.AioRpcError)
    assert isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await client.close()
    async with asyncio.timeout(5):
        while handler.n_open:  # the server is told, and lets go
            await asyncio.sleep(0.01)
    assert handler.n_calls >= 1


@pytest.mark.parametrize("name", list(WEIGHTS_CALLS))
async def test_calls_of_a_weight_node(silent: tuple[str, Silent], name: str) -> None:
    client = WeightsClient.at(silent[0])
    await ends_in_time(WEIGHTS_CALLS[name](client), WeightsError)
    await client.close()


async def test_a_peer_that_only_accepts(mute: str) -> None:
    control, weights = ControlClient(mute, rpc_timeout_s=LIMIT_S, give_up_s=LIMIT_S), WeightsClient.at(mute)
    error = await ends_in_time(CONTROL_CALLS["get_blobs"](control), grpc.aio.AioRpcError)
    assert isinstance(error, grpc.aio.AioRpcError) and error.code() in LATE
    await ends_in_time(WEIGHTS_CALLS["status"](weights), WeightsError)
    await control.close()
    await weights.close()
