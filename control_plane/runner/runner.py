"""One job, one runner: all events that wait, one decision, one transaction, then the effects.

links, rewards, workers table, wishes ─► inbox ─► machine ─► transaction (under the lease) ─► performer
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Gauge, Histogram
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.hub import Hub
from control_plane.runner import reporting, scoring
from control_plane.runner.fleet import Fleet
from control_plane.runner.inbox import Inbox
from control_plane.runner.performer import Performer
from control_plane.runner.planning import plan_of
from control_plane.runner.probe import Prober
from control_plane.runner.reporting import Reporter
from control_plane.runner.repository import JobRepository
from control_plane.runner.scoring import RewardSender
from control_plane.runner.turn import MetricPoint, StoredManifest, Turn
from headrace.client.jobspec import JobSpec
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import snapshot, swaps
from headrace.core.job.machine import JobMachine
from headrace.core.job.rows import Key, StepState
from headrace.core.job.state import Changes, Phase
from headrace.core.ledger import LedgerError
from headrace.service.logging import get_logger
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

log = get_logger(__name__)

TICK_S = 0.5
LOOK_S = 0.5
PROGRESS_S = 1.0

TURN_SECONDS = Histogram("headrace_runner_turn_seconds", "Time of one runner turn, its transaction included")
TURN_EVENTS = Histogram("headrace_runner_turn_events", "Events of one turn", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256))
LEDGER_BALANCED = Gauge("headrace_ledger_is_balanced", "Whether the ledger equation holds", ["job"])

_WISHES: dict[str, did.Event] = {
    "pause": did.PauseRequested(),
    "resume": did.ResumeRequested(),
    "cancel": did.CancelRequested(),
}


@dataclass(frozen=True)
class Tools:
    """What all runners of a process share."""

    engine: AsyncEngine
    hub: Hub
    sender: RewardSender
    export_root: str
    lease_ttl_s: float


class Runner:
    """Runs until the job ends, the lease is lost (LeaseLost), or it is cancelled."""

    def __init__(self, tools: Tools, job_id: str, epoch: int, spec: JobSpec) -> None:
        self._tools = tools
        self._job_id = job_id
        self._epoch = epoch
        self._spec = spec
        self._repository = JobRepository(tools.engine, job_id, epoch, tools.lease_ttl_s)
        self._plan = plan_of(job_id, spec, export_path=spec.checkpoint.export or f"{tools.export_root}/{job_id}")
        self._machine: JobMachine
        self._inbox = Inbox()
        self._reporter = Reporter()
        self._prober = Prober(job_id, spec.seed)
        self._fleet = Fleet(tools.engine, job_id, epoch, spec, self)
        self._manifests: dict[int, StoredManifest] = {}
        self._vocab_size = 0
        self._sent: list[int] = []
        self._seen_rewards: set[tuple[str, int, str, int]] = set()
        self._answered: str | None = None
        self._progress_at = 0.0
        self._failure: BaseException | None = None
        self._export_path = ""
        self._performer = Performer(
            self._fleet,
            self._prober,
            job_id=job_id,
            epoch=epoch,
            keep_versions=spec.weights.keep,
            manifest_of=lambda version: self._manifests[version],
        )

    async def run(self) -> None:
        await self._load()
        helpers = [
            asyncio.create_task(self._forever(work), name=f"{self._job_id} {work.__name__}")
            for work in (self._look, self._collect_rewards, self._renew)
        ]
        is_over = False
        try:
            while not is_over:
                is_over = await self._turn()
                self._raise_failures(helpers)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            self._prober.cancel()
            await self._performer.close(is_over=is_over)
            await self._fleet.close(is_over=is_over)

    def _raise_failures(self, helpers: Sequence["asyncio.Task[None]"]) -> None:
        if self._failure is not None:
            raise self._failure
        for helper in helpers:
            if helper.done() and (error := helper.exception()) is not None:
                raise error

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await work()

    async def _load(self) -> None:
        stored = await self._repository.load(self._plan)
        if stored is None:
            self._machine = JobMachine.fresh(self._plan)
            self._machine.state.totals["started"] = time.time()
            return
        self._machine = snapshot.restore(stored)
        current = self._machine.state.lineage.current
        for version in {current, *swaps.pinned(self._machine.state)} - {None}:
            manifest = await self._repository.manifest(version or 0)
            if manifest is not None:
                self._manifests[version or 0] = manifest
        unsent = await self._repository.unsent()
        await self._send_rewards(unsent)
        log.info("job_taken_up", job_id=self._job_id, epoch=self._epoch, step=self._machine.state.step)

    # -- the turn ------------------------------------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """One turn. True when the job has reached its end and everybody was told."""
        arrived = await self._inbox.drain(TICK_S)
        began = time.perf_counter()
        now = time.time()
        state = self._machine.state
        phase_before = state.phase
        actions = self._machine.handle_all([*arrived, did.TimePassed()], now)
        self._machine.check()
        self._note_export(arrived)
        turn = self._make_turn(actions, phase_before, now)
        ended = next((action for action in actions if isinstance(action, do.EndJob)), None)
        if ended is not None:
            turn.result = reporting.result(state, now=now, is_balanced=self._is_balanced(), model=self._export_path)
        outbox_ids = await self._repository.commit(turn)
        self._sent = []
        self._answered = None
        self._tools.hub.notify(f"events:{self._job_id}")
        await self._performer.perform(actions)
        await self._send_rewards(list(zip(outbox_ids, turn.outbox, strict=True)))
        self._after(actions)
        TURN_SECONDS.observe(time.perf_counter() - began)
        TURN_EVENTS.observe(len(arrived))
        return ended is not None

    def _make_turn(self, actions: Sequence[do.Action], phase_before: Phase, now: float) -> Turn:
        state = self._machine.state
        changes = state.changes()
        announced = [action for action in actions if isinstance(action, do.Announce)]
        if state.phase is not phase_before:
            announced.append(do.Announce("job.phase", {"phase": state.phase.value, "reason": state.reason}))
        points = self._close_steps(changes, now)
        in_flight = ((a.purpose, a.task, a.state.value) for a in state.attempts.values() if a.is_in_flight)
        is_progress_due = bool(points) or now - self._progress_at >= PROGRESS_S
        if is_progress_due:
            self._progress_at = now
        return Turn(
            now=now,
            changes=changes,
            phase=state.phase,
            reason=state.reason,
            state=snapshot.dump(state),
            ledger=state.ledger.to_json(in_flight),
            step=state.step,
            current_version=state.lineage.current,
            announced=announced,
            outbox=scoring.batches(
                self._job_id, self._spec, [action for action in actions if isinstance(action, do.ScoreAttempt)]
            ),
            sent=self._sent,
            manifests=self._manifests,
            metrics=points,
            progress=self._reporter.progress(state, now) if is_progress_due else None,
            desired_done=self._answered,
        )

    def _close_steps(self, changes: Changes, now: float) -> list[MetricPoint]:
        self._reporter.ended(changes.finished)
        points: list[MetricPoint] = []
        for step in changes.steps:
            if step.state is StepState.COMMITTED and step.committed_at == now:
                points += self._reporter.close_step(self._machine.state, step, changes)
        return points

    def _is_balanced(self) -> bool:
        """The equation as the machine counts it; GET …/ledger checks it again from the stored rows."""
        state = self._machine.state
        try:
            state.ledger.check((a.purpose, a.task) for a in state.attempts.values() if a.is_in_flight)
        except LedgerError as error:
            log.error("ledger_unbalanced", job_id=self._job_id, reason=str(error))
            LEDGER_BALANCED.labels(self._job_id).set(0)
            return False
        LEDGER_BALANCED.labels(self._job_id).set(1)
        return True

    def _after(self, actions: Sequence[do.Action]) -> None:
        state = self._machine.state
        current = state.lineage.current
        if current is None:
            return
        if swaps.is_settled(state) and self._fleet.proxy is not None and state.step < self._plan.max_steps:
            self._prober.start(self._fleet.proxy.generate, current, self._vocab_size)
        if any(isinstance(action, do.RetainVersions) for action in actions):
            needed = {current, *swaps.pinned(state)}
            pushed = [version for version in self._manifests if version > current]
            self._manifests = {v: self._manifests[v] for v in {*needed, *pushed} if v in self._manifests}

    async def _send_rewards(self, entries: Sequence[tuple[int, Any]]) -> None:
        if not entries:
            return
        try:
            await self._tools.sender.send([payload for _, payload in entries])
        except Exception as error:  # noqa: BLE001 -- any broker error: the rewards are sent again at their deadline
            log.warning("rewards_not_sent", job_id=self._job_id, n_batches=len(entries), reason=str(error))
            return
        self._sent = [*self._sent, *(entry_id for entry_id, _ in entries)]

    def _note_export(self, arrived: Sequence[did.Event]) -> None:
        for event in arrived:
            if isinstance(event, did.TrainingClosed):
                self._export_path = event.export_path

    # -- beside the turn -----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """The workers table and the owner's wishes."""
        seen = self._tools.hub.changes("workers") + self._tools.hub.changes("jobs")
        for event in await self._fleet.refresh():
            self._inbox.put(event)
        wish = await self._repository.desired()
        if wish is not None and wish != self._answered:
            self._answered = wish
            self._inbox.put(_WISHES[wish])
        if self._tools.hub.changes("workers") + self._tools.hub.changes("jobs") == seen:
            await self._tools.hub.wait("workers", LOOK_S)

    async def _collect_rewards(self) -> None:
        topic = f"rewards:{self._job_id}"
        seen = self._tools.hub.changes(topic)
        waiting = set()
        for row in await self._repository.rewards_of_waiting():
            mark = (row["trajectory_id"], row["attempt"], row["reward_name"], row["try"])
            waiting.add(mark)
            if mark not in self._seen_rewards:
                self._reporter.graded(row["grader_s"])
                self._inbox.put(_reward_event(row))
        self._seen_rewards = waiting
        await self._tools.hub.wait(topic, 1.0, since=seen)

    async def _renew(self) -> None:
        """Turns renew the lease as well; this is for a job in which nothing happens."""
        await asyncio.sleep(self._tools.lease_ttl_s / 3)
        await self._repository.renew()

    # -- what links hear and ask (control_plane.runner.links.Listener) -------------------------------------------------

    def put(self, event: did.Event) -> None:
        self._inbox.put(event)

    def keep_manifest(self, policy_version: int, manifest: StoredManifest) -> None:
        self._manifests[policy_version] = manifest

    def trainer_opened(self, opened: trn_pb.TrainingOpened) -> None:
        self._vocab_size = opened.vocab_size
        self._fleet.model_files = dict(opened.model_files)

    def trainer_progressed(self, progress: trn_pb.StepProgress) -> None:
        self._reporter.trainer = {"step": progress.step, "phase": progress.phase, "done": progress.done}

    def weights_moved(self, moved: inf_pb.WeightsPrefetched | inf_pb.WeightsUpdated) -> None:
        self._reporter.weights_moved(moved)

    def worker_reported(self, status: inf_pb.WorkerStatus) -> None:
        self._reporter.worker_reported(status)

    def routing_reported(self, stats: inf_pb.RoutingStats) -> None:
        self._reporter.routing_reported(stats)

    def failed(self, error: BaseException) -> None:
        self._failure = error

    def restore_step(self) -> int | None:
        """None for a job without any version yet."""
        state = self._machine.state
        return state.step if state.lineage.current is not None else None

    def is_paused(self) -> bool:
        return self._machine.state.phase in (Phase.PAUSING, Phase.PAUSED)

    def env_ids(self) -> set[str]:
        """Environment processes that the machine believes to hold episodes."""
        generating = ("queued", "running")
        return {a.env_worker_id for a in self._machine.state.attempts.values() if a.state in generating} - {""}


def _reward_event(row: Any) -> did.RewardReported:
    fault = row["fault"]
    return did.RewardReported(
        key=Key(row["trajectory_id"], row["attempt"]),
        reward_name=row["reward_name"],
        score=row["score"] if row["state"] == "scored" else None,
        fault=f"{fault.get('code', 'abstained')}: {fault.get('detail', '')}" if fault else "",
        is_retryable=bool(fault.get("retryable")),
        components={name: value for name, value in row["components"].items() if value is not None},
    )
