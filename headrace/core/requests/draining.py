"""Workers that load on their own, when nothing is bound to them any more (`load_at: drain`); no barrier anywhere.

    OPEN ──local batch begun, or a newer version resident──► CLOSED ──nothing bound──► drained
      ▲                                                                                  │
      ├──nothing newer: a new local batch ◄──────────────────────────────────────────────┤
      └──────────── loaded ◄── the version that bound trajectories wait for, else the newest resident

A version that bound trajectories wait for, because its workers went, is loaded by an idle worker that serves nothing
or is drained; until that worker holds it, it is reserved and the version is asked for.
"""

from dataclasses import dataclass, field

from headrace.core.requests.actions import Action, WantVersion
from headrace.core.requests.bindings import Bindings
from headrace.core.requests.fleet import Fleet
from headrace.core.requests.record import LoadMode
from headrace.core.requests.swap import SwapPhase, Update, Worker

ASK_EVERY_S = 1.0


@dataclass(slots=True)
class Drains:
    """When drained workers load what."""

    asked_at: dict[int, float] = field(default_factory=dict)

    def advance(self, fleet: Fleet, bindings: Bindings, now: float) -> list[Action]:
        """Loads that are due; called after everything that may have drained a worker or made a version resident."""
        actions = self._serve_wanted(fleet, bindings.wanted(), now)
        for worker in fleet.workers.values():
            if worker.is_idle and worker.reserved_for is None:
                actions += _refresh(worker, now)
        return actions

    def _serve_wanted(self, fleet: Fleet, wanted: list[int], now: float) -> list[Action]:
        actions: list[Action] = []
        coming = {worker.loading_version for worker in fleet.workers.values()}
        unserved = [version for version in wanted if version not in coming]
        self.asked_at = {version: at for version, at in self.asked_at.items() if version in unserved}
        for worker in fleet.workers.values():
            if worker.reserved_for is not None and (worker.reserved_for not in unserved or not worker.is_idle):
                worker.reserved_for = None
        for version in unserved:
            chosen = _reserved(fleet, version)
            if chosen is not None and version in chosen.resident:
                chosen.reserved_for = None
                actions += chosen.ask(Update(version, LoadMode.CONTINUE), now)
            elif now - self.asked_at.get(version, -ASK_EVERY_S) >= ASK_EVERY_S:
                self.asked_at[version] = now
                actions.append(WantVersion(version))
        return actions


def _reserved(fleet: Fleet, version: int) -> Worker | None:
    """The worker that is to load the version: the one chosen before, else an idle one, chosen now."""
    for worker in fleet.workers.values():
        if worker.reserved_for == version:
            return worker
    idle = [worker for worker in fleet.workers.values() if worker.is_idle and worker.reserved_for is None]
    if not idle:
        return None
    chosen = min(
        idle,
        key=lambda w: (
            version not in w.resident,
            w.phase is not SwapPhase.UNLOADED,
            w.serving_version or 0,
            w.worker_id,
        ),
    )
    chosen.reserved_for = version
    return chosen


def _refresh(worker: Worker, now: float) -> list[Action]:
    """An idle worker's next version, if it is to have another one."""
    if worker.phase is SwapPhase.UNLOADED:
        version, worker.asked = worker.asked, None
        return [] if version is None else [*worker.ask(Update(version, LoadMode.CONTINUE), now)]
    newest = worker.newest_resident
    if newest is not None and worker.serving_version is not None and newest > worker.serving_version:
        return [*worker.ask(Update(newest, LoadMode.CONTINUE), now)]
    if not worker.takes_new:
        worker.n_begun = worker.kv_peak = 0
    return []
