"""Ports of this machine."""

import socket

LOOPBACK = "127.0.0.1"


def free_port(host: str = LOOPBACK) -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on `port`."""
    with socket.socket() as probe:
        # A server sets this too, so that connections of a server that ended a moment ago do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def choose_port(wanted: int, host: str = LOOPBACK) -> int:
    """`wanted` if it is free and not 0, otherwise another one."""
    return wanted if wanted and is_free(wanted, host) else free_port(host)


def accepts(port: int, host: str = LOOPBACK, timeout_s: float = 0.2) -> bool:
    """Whether something listens on `port`."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s):
            return True
    except OSError:
        return False
