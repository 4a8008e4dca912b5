"""One worker as the proxy sees it: what runs on it, and the swap of its weights.

    UNLOADED ──ask──► LOADING ──answer──► REBUILDING ──first tokens came──► SERVING
                       ▲   ▲ └─refused─► SERVING or UNLOADED                 │
                       │   └──nothing runs any more── DRAINING ◄─finish_first┤
                       └─────────────────continue, discard───────────────────┘

The engine ends every request at a load, so those of the worker are suspended when the load is sent and dispatched
again after it. Asks while a swap is under way coalesce: the last one is what the worker ends with. A worker that is
held at a version (pinned) remembers the last ask and takes it up when the hold ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from headrace.core.requests.record import Fault, LoadMode, LogicalRequest, RequestState, TableError

if TYPE_CHECKING:
    from headrace.core.requests.bindings import Binding


class SwapPhase(StrEnum):
    UNLOADED = "unloaded"
    SERVING = "serving"
    DRAINING = "draining"
    LOADING = "loading"
    REBUILDING = "rebuilding"


TRANSITIONS: Mapping[SwapPhase, frozenset[SwapPhase]] = {
    SwapPhase.UNLOADED: frozenset({SwapPhase.LOADING}),
    SwapPhase.SERVING: frozenset({SwapPhase.DRAINING, SwapPhase.LOADING}),
    SwapPhase.DRAINING: frozenset({SwapPhase.LOADING}),
    SwapPhase.LOADING: frozenset({SwapPhase.REBUILDING, SwapPhase.SERVING, SwapPhase.UNLOADED}),
    SwapPhase.REBUILDING: frozenset({SwapPhase.SERVING}),
}
OPEN = frozenset({SwapPhase.SERVING, SwapPhase.REBUILDING})


@dataclass(frozen=True, slots=True)
class Update:
    policy_version: int
    mode: LoadMode


@dataclass(frozen=True, slots=True)
class PauseWorker:
    worker_id: str


@dataclass(frozen=True, slots=True)
class LoadWeights:
    worker_id: str
    policy_version: int


@dataclass(frozen=True, slots=True)
class ResumeWorker:
    worker_id: str


@dataclass(frozen=True, slots=True)
class ReportUpdate:
    """A swap ended. `pause_s`: generation stood still; `rebuild_s`: from resume until each continued request gave a
    token; `rebuild_tokens`: prompt and kept tokens that were prefilled again for it."""

    worker_id: str
    policy_version: int
    weight_digest: str = ""
    pause_s: float = 0.0
    load_s: float = 0.0
    rebuild_s: float = 0.0
    rebuild_tokens: int = 0
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class CloseWorker:
    """End the worker's stream; whoever owns the connection may open it again if the worker is still wanted."""

    worker_id: str
    reason: str


SwapAction = PauseWorker | LoadWeights | ResumeWorker | ReportUpdate | CloseWorker


@dataclass(slots=True, eq=False)
class Worker:
    """A live worker. Satisfies the router's view of it."""

    worker_id: str
    pool: str
    max_running: int
    serving_version: int | None = None
    weight_digest: str = ""
    phase: SwapPhase = SwapPhase.UNLOADED
    is_pinned: bool = False
    is_leaving: bool = False
    requests: dict[str, LogicalRequest] = field(default_factory=dict)
    target: Update | None = None  # under way
    deferred: Update | None = None  # for after the hold
    loading_version: int | None = None  # sent to the engine, not answered
    since: float = 0.0  # of the phase
    paused_at: float = 0.0
    awaited: set[str] = field(default_factory=set)  # continued requests without a token yet
    report: ReportUpdate | None = None  # of the swap that is being rebuilt
    resident: set[int] = field(default_factory=set)  # versions in its host memory, as far as it said
    # Where trajectories are bound to a worker:
    bound: "dict[str, Binding]" = field(default_factory=dict)
    kv_bound: int = 0  # tokens that the next turns of what is bound need
    kv_peak: int = 0  # the most of it under this version
    local_batch: int | None = None  # trajectories that it begins under one version
    n_begun: int = 0
    reserved_for: int | None = None  # a version that bound trajectories wait for; it is to load that next
    asked: int | None = None  # the version that the runner wants on a worker that serves nothing

    @property
    def n_running(self) -> int:
        return len(self.requests)

    @property
    def n_bound(self) -> int:
        return len(self.bound)

    @property
    def newest_resident(self) -> int | None:
        return max(self.resident, default=None)

    @property
    def takes_new(self) -> bool:
        """Begins trajectories under its version: it has not had its local batch, and holds no newer version."""
        newest = self.newest_resident
        is_outdated = newest is not None and self.serving_version is not None and newest > self.serving_version
        is_full = self.local_batch is not None and self.n_begun >= self.local_batch
        return self.reserved_for is None and not is_outdated and not is_full

    @property
    def is_idle(self) -> bool:
        """Nothing runs on it, nothing is bound to it, and it may load."""
        is_still = self.phase is SwapPhase.UNLOADED or self.phase in OPEN
        return is_still and not (self.requests or self.bound or self.is_pinned or self.is_leaving)

    @property
    def is_open(self) -> bool:
        return self.phase in OPEN and not self.is_leaving

    @property
    def next_version(self) -> int | None:
        return self.target.policy_version if self.target else None

    def ask(self, update: Update, now: float) -> list[SwapAction]:
        """Bring the worker to a version, by the last word that was said about it."""
        if self.is_pinned:
            self.deferred = update
            return []
        if self.target is None and self.serving_version == update.policy_version:
            return self.report_again()
        actions = self._report_rebuilt(now)
        self.target = update
        if self.phase is SwapPhase.LOADING:
            return actions
        if update.mode is LoadMode.FINISH_FIRST and self.requests:
            if self.phase is not SwapPhase.DRAINING:
                self._move(SwapPhase.DRAINING, now)
            return actions
        return actions + self._begin_load(now)

    def report_again(self) -> list[SwapAction]:
        """Answer for the version served, unless that answer is still to come."""
        if self.report is not None or self.serving_version is None:
            return []
        return [ReportUpdate(self.worker_id, self.serving_version, self.weight_digest)]

    def answered(
        self, policy_version: int, weight_digest: str, *, load_s: float, fault: Fault | None, now: float
    ) -> list[SwapAction]:
        """The engine's word on the load. Afterwards the worker is open, or loads a later version at once."""
        if self.phase is not SwapPhase.LOADING or policy_version != self.loading_version:
            return []
        if fault is None:
            self.serving_version, self.weight_digest = policy_version, weight_digest
            self.resident.add(policy_version)
            self.n_begun = self.kv_peak = 0
        else:
            self.resident.discard(policy_version)
        report = ReportUpdate(
            self.worker_id, policy_version, self.weight_digest, now - self.paused_at, load_s, fault=fault
        )
        if self.target and self.target.policy_version != policy_version:
            self.loading_version, self.since = self.target.policy_version, now
            return [report, LoadWeights(self.worker_id, self.target.policy_version)]
        self.target = self.loading_version = None
        if fault is None:
            self._move(SwapPhase.REBUILDING, now)
            self.report = report
            return [ResumeWorker(self.worker_id)]
        self._move(SwapPhase.UNLOADED if self.serving_version is None else SwapPhase.SERVING, now)
        return [ResumeWorker(self.worker_id), report]

    def await_tokens(self, continued: Iterable[LogicalRequest], now: float) -> list[SwapAction]:
        """Name the requests whose first token ends the rebuild; without any it ends at once."""
        if self.report is None:
            return []
        requests = list(continued)
        self.awaited = {request.request_id for request in requests}
        n_tokens = sum(len(request.prompt) + len(request.tokens) for request in requests)
        self.report = replace(self.report, rebuild_tokens=n_tokens)
        return self._report_rebuilt(now) if not self.awaited else []

    def token_came(self, request_id: str, now: float) -> list[SwapAction]:
        self.awaited.discard(request_id)
        return self._report_rebuilt(now) if not self.awaited else []

    def take(self, request: LogicalRequest) -> None:
        self.requests[request.request_id] = request

    def release(self, request_id: str, now: float) -> list[SwapAction]:
        """A request is not on the worker any more."""
        self.requests.pop(request_id, None)
        actions: list[SwapAction] = self.token_came(request_id, now) if request_id in self.awaited else []
        if self.requests:
            return actions
        if self.is_leaving:  # whatever it was to load, nobody will use it
            actions.append(CloseWorker(self.worker_id, "drained after it was left out"))
        elif self.phase is SwapPhase.DRAINING:
            actions += self._begin_load(now)
        return actions

    def hold(self, is_pinned: bool, now: float) -> list[SwapAction]:
        """Begin or end a hold; at its end the update that was put off begins."""
        self.is_pinned = is_pinned
        if is_pinned or self.deferred is None:
            return []
        update, self.deferred = self.deferred, None
        return self.ask(update, now)

    def leave(self) -> list[SwapAction]:
        """Take nothing new; close when nothing runs."""
        self.is_leaving = True
        return [] if self.requests else [CloseWorker(self.worker_id, "left out and idle")]

    def overdue(self, now: float, *, load_s: float, drain_s: float, rebuild_s: float) -> list[SwapAction]:
        """What deadlines demand: a late load or drain gives the worker up, a late rebuild is reported as it is."""
        age_s = now - self.since
        if self.phase is SwapPhase.LOADING and age_s > load_s:
            return [
                CloseWorker(self.worker_id, f"no answer to the load of version {self.loading_version} in {load_s} s")
            ]
        if self.phase is SwapPhase.DRAINING and age_s > drain_s:
            return [CloseWorker(self.worker_id, f"{self.n_running} requests did not finish within {drain_s} s")]
        if self.phase is SwapPhase.REBUILDING and age_s > rebuild_s:
            return self._report_rebuilt(now)
        return []

    def check(self) -> None:
        """Raises TableError when the record contradicts itself."""
        is_swapping = self.phase in (SwapPhase.LOADING, SwapPhase.DRAINING)
        problems = {
            "serves nothing but is open": self.is_open and self.serving_version is None,
            "more requests than lanes": self.n_running > self.max_running,
            "target without a swap": is_swapping != (self.target is not None),
            "unanswered load outside LOADING": (self.phase is SwapPhase.LOADING) != (self.loading_version is not None),
            "rebuild without a report": (self.phase is SwapPhase.REBUILDING) != (self.report is not None),
            "awaits tokens of requests that it does not run": not self.awaited <= self.requests.keys(),
            "loads what trajectories are bound to": self.phase is SwapPhase.LOADING and bool(self.bound),
            "an update put off without a hold": self.deferred is not None and not self.is_pinned,
        }
        if broken := [problem for problem, is_true in problems.items() if is_true]:
            raise TableError(f"worker {self.worker_id} ({self.phase}): {', '.join(broken)}")

    def _begin_load(self, now: float) -> list[SwapAction]:
        assert self.target is not None
        self._move(SwapPhase.LOADING, now)
        self.loading_version, self.paused_at = self.target.policy_version, now
        for request in self.requests.values():
            request.move(RequestState.SUSPENDED, f"{self.worker_id} loads {self.loading_version}")
        return [PauseWorker(self.worker_id), LoadWeights(self.worker_id, self.loading_version)]

    def _report_rebuilt(self, now: float) -> list[SwapAction]:
        if self.report is None:
            return []
        report = replace(self.report, rebuild_s=now - self.since)
        self.report, self.awaited = None, set()
        self._move(SwapPhase.SERVING, now)
        return [report]

    def _move(self, phase: SwapPhase, now: float) -> None:
        if phase not in TRANSITIONS[self.phase]:
            raise TableError(f"worker {self.worker_id}: {self.phase} -> {phase}")
        self.phase, self.since = phase, now
