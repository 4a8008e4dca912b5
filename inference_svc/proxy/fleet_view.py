"""What workers last said of themselves, for the runner's view of them."""

from dataclasses import dataclass, field

from headrace.core.requests import RequestTable, TableCounts
from headrace.core.requests.swap import Worker
from headrace.wire.engine.v1 import engine_pb2
from headrace.wire.inference.v1 import inference_pb2

MAX_RESIDENT = 8
COUNTED = frozenset(inference_pb2.RoutingStats.DESCRIPTOR.fields_by_name) & frozenset(TableCounts.__slots__)


def routing_stats(table: RequestTable) -> inference_pb2.RoutingStats:
    """The table's counters that the runner reports, and the profile."""
    return inference_pb2.RoutingStats(
        **{name: getattr(table.counts, name) for name in COUNTED},
        open_requests=table.n_open,
        queued_requests=table.n_queued,
        bound_trajectories=table.n_bound,
        homeless_trajectories=table.n_homeless,
        regret_s=table.profile.regret_s,
        profile_s_per_token=table.profile.means(),
    )


@dataclass(slots=True)
class WorkerNotes:
    """One connected worker."""

    resident: set[int] = field(default_factory=set)
    kv_total_tokens: int = 0
    kv_bytes_per_token: int = 0
    stats: engine_pb2.EngineStats = field(default_factory=engine_pb2.EngineStats)
    exposed_pull_s: dict[int, float] = field(default_factory=dict)

    def hello(self, hello: engine_pb2.EngineHello) -> None:
        self.resident = set(hello.resident_versions)
        self.kv_total_tokens = hello.kv_total_tokens
        self.kv_bytes_per_token = hello.kv_bytes_per_token

    def prefetched(self, event: engine_pb2.WeightsPrefetched) -> None:
        if not event.HasField("fault"):
            self.resident.add(event.policy_version)
            self.resident = set(sorted(self.resident)[-MAX_RESIDENT:])
            self.exposed_pull_s[event.policy_version] = event.exposed_pull_s

    def loaded(self, event: engine_pb2.WeightsLoaded) -> None:
        """A version that could not be loaded is not counted on until it is fetched again."""
        if event.HasField("fault"):
            self.resident.discard(event.policy_version)
        else:
            self.resident.add(event.policy_version)

    @property
    def kv_capacity_tokens(self) -> int:
        return self.stats.kv_total_tokens or self.kv_total_tokens

    def status(self, worker: Worker) -> inference_pb2.ManageEvent:
        """The worker as the runner sees it."""
        stats = self.stats
        return inference_pb2.ManageEvent(
            worker=inference_pb2.WorkerStatus(
                worker_id=worker.worker_id,
                serving_version=worker.serving_version,
                weight_digest=worker.weight_digest,
                resident_versions=sorted(self.resident),
                running=worker.n_running,
                waiting=stats.waiting,
                kv_used_tokens=stats.kv_used_tokens,
                kv_total_tokens=self.kv_capacity_tokens,
                pinned=worker.is_pinned,
                busy_s=stats.busy_s,
                generated_tokens=stats.generated_tokens,
                prefill_tokens=stats.prefill_tokens,
            )
        )
