"""UCX contexts and what they say about themselves. Nothing of ucxx is imported before `load`.

A context carries exactly one transport: a connection that cannot use it fails instead of running over a slower one.
"""

import ctypes
import functools
import os
from pathlib import Path
from typing import Any, Literal

from headrace.core.weights.errors import TransportDowngraded

Transport = Literal["shm", "tcp"]

# Error handling stays on: without it the death of a peer hangs this process. Large messages then go in fragments, whose
# size is what SEG_SIZE sets; shared memory offers error handling only when asked to.
_SETTINGS = {
    "UCX_MM_ERROR_HANDLING": "y",
    "UCX_TCP_TX_SEG_SIZE": "2m",
    "UCX_TCP_RX_SEG_SIZE": "2m",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    "UCX_TCP_CM_REUSEADDR": "y",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
_UCX_NAME: dict[Transport, str] = {"shm": "posix", "tcp": "tcp"}
# Bounds, not waits: the close is by force.
_CLOSE_PERIOD_NS = 5_000_000
_CLOSE_TRIES = 2
_CLOSE_TURNS = 1000
_LEAST_TURNS = 8  # in which cancelled receives go
_MAX_LANES = 16
_FIELD_TRANSPORTS = 1 << 3


@functools.cache
def load() -> tuple[Any, Any]:
    """ucxx, with the settings in place. Half a second the first time; call it before a deadline runs."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    from ucxx._lib import arr, libucxx  # type: ignore[import-untyped]  # only after UCX has its settings

    return libucxx, arr.Array


@functools.cache
def context(transport: Transport, *, is_loopback: bool) -> Any:
    """The process's context for this transport; over loopback TCP listens on `lo` alone."""
    libucxx, _ = load()
    options = {"TLS": _UCX_NAME[transport]}
    if transport == "tcp" and is_loopback:
        options["NET_DEVICES"] = "lo"
    return libucxx.UCXContext(options, (libucxx.Feature.TAG, libucxx.Feature.WAKEUP))


def host_identity() -> str:
    """Equal for two processes that can map each other's shared memory and see each other's death."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    spaces = [Path(f"/proc/self/ns/{name}").readlink().name for name in ("ipc", "pid")]
    return "/".join([boot, *spaces, str(Path("/dev/shm").stat().st_dev), str(os.geteuid())])


class _Entry(ctypes.Structure):
    _fields_ = (("transport", ctypes.c_char_p), ("device", ctypes.c_char_p))


class _Transports(ctypes.Structure):
    _fields_ = (("entries", ctypes.POINTER(_Entry)), ("n", ctypes.c_uint), ("entry_bytes", ctypes.c_size_t))


class _EndpointAttributes(ctypes.Structure):
    """ucp_ep_attr_t of UCX 1.21."""

    _fields_ = (
        ("field_mask", ctypes.c_uint64),
        ("name", ctypes.c_char * 32),
        ("local", ctypes.c_char * 128),
        ("remote", ctypes.c_char * 128),
        ("transports", _Transports),
        ("user_data", ctypes.c_void_p),
    )


def _loaded(name: str) -> ctypes.CDLL:
    """The library that this process has loaded already, not another one of its name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in lines if f"/{name}" in line))


@functools.cache
def _libucp() -> ctypes.CDLL:
    library = _loaded("libucp.so")
    library.ucp_ep_query.argtypes = [ctypes.c_void_p, ctypes.POINTER(_EndpointAttributes)]
    library.ucp_ep_query.restype = ctypes.c_int8
    return library


def lanes(endpoint: Any) -> tuple[str, ...]:
    """What the endpoint runs over, as UCX itself reports it, e.g. ("posix/memory",)."""
    entries = (_Entry * _MAX_LANES)()
    attributes = _EndpointAttributes(field_mask=_FIELD_TRANSPORTS)
    attributes.transports = _Transports(entries, _MAX_LANES, ctypes.sizeof(_Entry))
    status = _libucp().ucp_ep_query(endpoint.handle, ctypes.byref(attributes))
    if status:
        raise TransportDowngraded(f"UCX does not say what the connection runs over (status {status})")
    used = entries[: attributes.transports.n]
    return tuple(f"{entry.transport.decode()}/{entry.device.decode()}" for entry in used)


@functools.cache
def _canceling_size() -> Any:
    """ucxx::Endpoint::getCancelingSize, which Python does not have."""
    function = _loaded("libucxx.so")._ZNK4ucxx8Endpoint16getCancelingSizeEv
    function.argtypes = [ctypes.c_void_p]
    function.restype = ctypes.c_size_t
    return function


def close_endpoint(worker: Any, endpoint: Any) -> None:
    """By force, without the peer's help; requests in flight are cancelled.

    UCXX keeps cancelled sends alive, and by them the endpoint and the worker, until it is asked how many are left.
    """
    endpoint.close_blocking(_CLOSE_PERIOD_NS, _CLOSE_TRIES)
    for turn in range(_CLOSE_TURNS):
        worker.progress()
        if not _canceling_size()(endpoint.ucxx_ptr) and turn >= _LEAST_TURNS:
            return


def check_lanes(endpoint: Any, transport: Transport) -> str:
    """The lanes as one string. Raises TransportDowngraded unless every one of them is of the transport agreed on."""
    used = lanes(endpoint)
    wanted = _UCX_NAME[transport]
    if not used or any(lane.split("/")[0] != wanted for lane in used):
        raise TransportDowngraded(f"the connection was to use {wanted} and uses {', '.join(used) or 'nothing'}")
    return ",".join(used)
