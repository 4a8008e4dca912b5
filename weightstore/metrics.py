"""What a node shows to Prometheus."""

from prometheus_client import Gauge

from weightstore.node import Node

USED = Gauge("headrace_weights_used_bytes", "Bytes of buckets held, and room reserved for pushes")
CAP = Gauge("headrace_weights_cap_bytes", "Most bytes held")
SESSIONS = Gauge("headrace_weights_sessions", "Open sessions of publishers and readers")
MOVED = Gauge("headrace_weights_moved_bytes", "Bytes moved over UCX since the start", ["direction"])


def show(node: Node) -> None:
    """The node's figures, read when they are scraped."""
    USED.set_function(lambda: node.store.used_bytes)
    CAP.set(node.store.cap_bytes)
    SESSIONS.set_function(lambda: len(node.sessions))
    MOVED.labels("in").set_function(lambda: node.bytes_in)
    MOVED.labels("out").set_function(lambda: node.bytes_out)
