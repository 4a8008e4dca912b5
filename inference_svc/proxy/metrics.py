"""Prometheus metrics of the proxy, read from the request table when they are scraped."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

GAUGES = frozenset({"open_requests", "queued_requests", "bound_trajectories", "homeless_trajectories", "workers"})


class ProxyMetrics(Collector):
    """`headrace_proxy_*`: gauges of requests and workers, counters of routing."""

    def __init__(self, stats: Callable[[], Mapping[str, float]], registry: CollectorRegistry = REGISTRY) -> None:
        self._stats = stats
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing yet: names come with the first scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        for name, value in self._stats().items():
            family = GaugeMetricFamily if name in GAUGES else CounterMetricFamily
            yield family(f"headrace_proxy_{name}", f"Proxy: {name.replace('_', ' ')}", value=value)
