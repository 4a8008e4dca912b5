"""Channels and servers with one set of limits on both sides."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
KEEPALIVE_S = 20
KEEPALIVE_TIMEOUT_S = 10

_SHARED: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_CLIENT: list[tuple[str, int]] = [
    *_SHARED,
    # A restarted peer is back within a second, so the channel must not sleep for longer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Services talk to each other directly; an http_proxy variable meant for downloads must not catch them.
    ("grpc.enable_http_proxy", 0),
]
_SERVER: list[tuple[str, int]] = [
    *_SHARED,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_S * 500),
    # Pings that were sent in time can arrive in a bunch on a busy machine; that is no reason to cut a stream.
    ("grpc.http2.max_ping_strikes", 0),
    # With address reuse two processes would share a port and each get half of the calls.
    ("grpc.so_reuseport", 0),
]

TRANSIENT = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


def channel(address: str) -> grpc.aio.Channel:
    """A channel to `host:port` with 64 MiB messages, keepalive and quick reconnection."""
    return grpc.aio.insecure_channel(address, options=_CLIENT)


def server(interceptors: Sequence[Any] = ()) -> grpc.aio.Server:
    """A server with the limits that `channel` expects. Needs a running event loop."""
    return grpc.aio.server(options=_SERVER, interceptors=list(interceptors))


def is_transient(error: grpc.RpcError) -> bool:
    """Whether the same call may succeed a little later."""
    code: grpc.StatusCode | None = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
    return code in TRANSIENT
