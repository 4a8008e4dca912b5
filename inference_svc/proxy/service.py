"""The proxy's order of effects: an event comes in, the request table decides, the actions go out.

    Generate streams ─► GenerationStarted …  ┐                      ┌ EmitChunk ─► the caller's stream
    Manage stream ───► WeightUpdateAsked …   ├─► RequestTable ──────┤ SendAdd … ─► the worker's stream
    Engine streams ──► ChunkReceived …       ┘   Membership         └ ReportUpdate ─► the runner's stream

Everything happens on one event loop, one event at a time. No state is on disk: callers hold the tokens of their open
turns and ask again after a proxy was lost, the runner names the workers and versions again.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from headrace.core import membership as members
from headrace.core.requests import Fault, FinishReason, RequestTable
from headrace.core.requests.actions import Action, EmitChunk, SendAbort, SendAdd, WantVersion
from headrace.core.requests.events import (
    CallerLeft,
    Event,
    GenerationAborted,
    RepackDue,
    RolloutClosed,
    RolloutPaused,
    RolloutResumed,
    Ticked,
    TrajectoryEnded,
    VersionPinned,
    VersionsResident,
    WorkerJoined,
    WorkerLost,
    WorkerReleased,
)
from headrace.core.requests.swap import CloseWorker, LoadWeights, PauseWorker, ReportUpdate, ResumeWorker
from headrace.core.router import LearnedRouter
from headrace.service.logging import get_logger
from headrace.wire.engine.v1 import engine_pb2
from headrace.wire.inference.v1 import inference_pb2
from inference_svc.proxy import convert
from inference_svc.proxy.fleet_view import WorkerNotes, routing_stats
from inference_svc.proxy.link import EngineLink
from inference_svc.proxy.policy import RolloutPolicy, parse_policy
from inference_svc.proxy.settings import ProxySettings

log = get_logger(__name__)

PutChunk = Callable[[inference_pb2.TokenChunk], object]
PutEvent = Callable[[inference_pb2.ManageEvent], object]


class Fenced(Exception):
    """A runner with an older epoch, or of another job, spoke; its stream ends."""


@dataclass(eq=False, slots=True)
class ManageSession:
    """A runner's stream. `ended` is set, with the reason, when a newer runner takes over."""

    put: PutEvent
    ended: asyncio.Future[str]
    job_id: str = ""
    job_epoch: int = 0


class ProxyService:
    """The shell around the request table and the membership of workers."""

    def __init__(self, worker_id: str, settings: ProxySettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.worker_id = worker_id
        self.table = RequestTable()
        self._settings = settings
        self._clock = clock
        self._members = members.Membership()
        self._links: dict[str, EngineLink] = {}
        self._notes: dict[str, WorkerNotes] = {}
        self._callers: dict[int, PutChunk] = {}
        self._n_streams = 0
        self._early: list[tuple[int, inference_pb2.GenerateCommand]] = []
        self._repacked_at = 0.0
        self._manager: ManageSession | None = None
        self._job_id = self._ended_job_id = ""
        self._job_epoch = 0
        self._policy = RolloutPolicy()
        self._prefetch: inference_pb2.PrefetchWeights | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._stats = self._count()

    # ---- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look at deadlines and report, until cancelled."""
        reported_at = self._clock()
        while True:
            await asyncio.sleep(self._settings.tick_s)
            self._feed(Ticked())
            if self._policy.has_repack and self._clock() - self._repacked_at >= self._policy.repack_every_s:
                self._repack()
            self._stats = self._count()
            for link in list(self._links.values()):
                if link.is_silent(silence_s=self._settings.worker_silence_s, hello_s=self._settings.hello_timeout_s):
                    self._chore(link.reset("nothing was heard from it"))
            if self._clock() - reported_at >= self._settings.status_interval_s:
                reported_at = self._clock()
                self._report_all()

    async def close(self) -> None:
        """Drop all streams to workers."""
        for link in list(self._links.values()):
            await link.close()
        self._links.clear()
        for chore in list(self._chores):
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    def stats(self) -> dict[str, float]:
        """Gauges and counters as of the last tick; safe to read from another thread."""
        return self._stats

    def _count(self) -> dict[str, float]:
        counts = self.table.counts
        return {
            "open_requests": self.table.n_open,
            "queued_requests": self.table.n_queued,
            "bound_trajectories": self.table.n_bound,
            "homeless_trajectories": self.table.n_homeless,
            "workers": len(self._notes),
            **{name: getattr(counts, name) for name in counts.__slots__},
        }

    # ---- callers ---------------------------------------------------------------------------------------------------

    def caller_opened(self, put: PutChunk) -> int:
        """A Generate stream began; returns its id. `put` must not block."""
        self._n_streams += 1
        self._callers[self._n_streams] = put
        return self._n_streams

    def caller_closed(self, stream_id: int) -> None:
        del self._callers[stream_id]
        self._early = [(owner, command) for owner, command in self._early if owner != stream_id]
        self._feed(CallerLeft(stream_id))

    def generate(self, stream_id: int, command: inference_pb2.GenerateCommand) -> None:
        """One command of a caller."""
        match command.WhichOneof("command"):
            case "start":
                self._start(stream_id, command)
            case "abort":
                request_id = command.abort.request_id
                self._early = [(owner, other) for owner, other in self._early if other.start.request_id != request_id]
                self._feed(GenerationAborted(stream_id, request_id))
            case "end":
                self._feed(TrajectoryEnded(convert.prefix_key(command.end.key)))
            case "live" if self._job_id:
                self._feed(convert.named_from_wire(stream_id, command.live, self._job_id))
            case "live":
                self._early.append((stream_id, command))

    def _start(self, stream_id: int, command: inference_pb2.GenerateCommand) -> None:
        start = command.start
        if not self._job_id and start.job_id == self._ended_job_id:
            self._refuse(stream_id, start, Fault("rollout_closed", "infra", f"the rollout of {start.job_id} is over"))
        elif not self._job_id:
            self._early.append((stream_id, command))  # after a proxy was lost, callers may be back before the runner
        elif start.job_id != self._job_id:
            self._refuse(stream_id, start, Fault("unknown_job", "infra", f"this proxy serves job {self._job_id}", True))
        else:
            self._feed(convert.started_from_wire(stream_id, start))

    def _refuse(self, stream_id: int, start: inference_pb2.StartGeneration, fault: Fault) -> None:
        n_kept = len(start.kept_token_ids)
        self._perform(
            EmitChunk(
                stream_id,
                start.request_id,
                start.assignment_epoch,
                n_kept,
                finish_reason=FinishReason.FAILED,
                fault=fault,
            )
        )

    # ---- the runner ------------------------------------------------------------------------------------------------

    def manage_opened(self, session: ManageSession, opening: inference_pb2.OpenRollout) -> None:
        """A runner takes over. Raises Fenced, InvalidPolicy."""
        policy = parse_policy(opening.policy_json)
        if opening.job_id == self._job_id and opening.job_epoch < self._job_epoch:
            raise Fenced(f"job epoch {opening.job_epoch} is older than {self._job_epoch}")
        if self._job_id and opening.job_id != self._job_id:
            if self._manager is not None:
                raise Fenced(f"this proxy serves job {self._job_id}")
            self._end_job(f"job {opening.job_id} took this proxy over")
        if self._manager is not None:
            self._manager.ended.set_result(f"a runner with job epoch {opening.job_epoch} took over")
        session.job_id, session.job_epoch = opening.job_id, opening.job_epoch
        self._manager, self._policy = session, policy
        self._job_id, self._job_epoch = opening.job_id, opening.job_epoch
        router = LearnedRouter(self.table.profile) if policy.is_learned else policy.tags
        self.table.set_policy(router, policy.limits, policy.on_load)
        self.table.set_static_tags(policy.tags)
        self.table.bind_trajectories(policy.is_bound, policy.local_batch)
        opened = inference_pb2.RolloutOpened(job_epoch=opening.job_epoch, worker_id=self.worker_id)
        session.put(inference_pb2.ManageEvent(opened=opened))
        log.info("rollout_opened", job_id=self._job_id, job_epoch=self._job_epoch)
        self._report_all()
        early, self._early = self._early, []
        for stream_id, command in early:
            self.generate(stream_id, command)

    def manage_closed(self, session: ManageSession) -> None:
        """A runner's stream ended; the rollout goes on and waits for the next one."""
        if self._manager is session:
            self._manager = None

    def manage(self, session: ManageSession, command: inference_pb2.ManageCommand) -> None:
        """One command of a runner. Raises Fenced for an older one, ValueError for a command that makes no sense."""
        if session is not self._manager:
            raise Fenced("another runner took over")
        match command.WhichOneof("command"):
            case "workers":
                named = [members.Member(w.worker_id, w.address, w.pool or "default") for w in command.workers.workers]
                self._feed_members(members.MembersNamed(tuple(named)))
            case "prefetch":
                self._prefetch_asked(command.prefetch)
            case "update":
                self._feed(convert.update_from_wire(command.update, is_barrier=not self._policy.is_bound))
            case "pin":
                self._feed(VersionPinned(command.pin.policy_version, command.pin.n_workers))
                self._report_all()
            case "pause":
                self._feed(RolloutPaused())
            case "resume":
                self._feed(RolloutResumed())
            case "close":
                self._end_job("the runner closed the rollout")
            case other:
                raise ValueError(f"command {other!r} has no place here")

    def _prefetch_asked(self, prefetch: inference_pb2.PrefetchWeights) -> None:
        """A new version goes to every worker; an older one, which bound trajectories wait for, to those that may
        load it: they have nothing bound."""
        is_newest = self._prefetch is None or prefetch.policy_version >= self._prefetch.policy_version
        if is_newest or not self._policy.is_bound:
            self._prefetch = prefetch
            wanting = list(self._notes)
        else:
            wanting = [worker.worker_id for worker in self.table.workers if worker.is_idle]
        for worker_id in wanting:
            self._send_prefetch(worker_id, prefetch)

    def _repack(self) -> None:
        self._repacked_at = self._clock()
        notes = self._notes.items()
        self._feed(
            RepackDue(
                {worker_id: note.kv_capacity_tokens for worker_id, note in notes},
                {worker_id: note.kv_bytes_per_token for worker_id, note in notes},
            )
        )

    def _became_resident(self, worker_id: str) -> None:
        """Tell the table; a version that has just reached the last worker ends a step: tails are merged then."""
        self._feed(VersionsResident(worker_id, tuple(self._notes[worker_id].resident)))
        newest = self._prefetch.policy_version if self._prefetch else None
        serving = [worker for worker in self.table.workers if worker.serving_version is not None]
        is_everywhere = all(newest in worker.resident for worker in serving)
        if self._policy.has_repack and serving and is_everywhere:
            self._repack()

    def _end_job(self, detail: str) -> None:
        """Forget the job: its requests end, its workers are let go, counters start anew."""
        self._feed(RolloutClosed(detail))
        self._feed_members(members.MembersNamed(()))
        for link in self._links.values():
            self._chore(link.close())
        self._links.clear()
        self._notes.clear()
        self.table, self._members = RequestTable(), members.Membership()
        self._ended_job_id, self._job_id, self._prefetch = self._job_id, "", None
        log.info("rollout_ended", reason=detail)

    def _tell_runner(self, event: inference_pb2.ManageEvent) -> None:
        if self._manager is not None:
            self._manager.put(event)

    def _report_all(self) -> None:
        for worker_id in self._notes:
            self._report(worker_id)
        self._tell_runner(inference_pb2.ManageEvent(stats=routing_stats(self.table)))

    def _report(self, worker_id: str) -> None:
        worker = self.table.worker(worker_id)
        if worker is not None:
            self._tell_runner(self._notes[worker_id].status(worker))

    # ---- workers ---------------------------------------------------------------------------------------------------

    def opening(self) -> engine_pb2.OpenEngine:
        """What a worker is told first."""
        return engine_pb2.OpenEngine(
            job_id=self._job_id, job_epoch=self._job_epoch, engine_json=self._policy.engine_json
        )

    def link_opened(self, worker_id: str, hello: engine_pb2.EngineHello) -> None:
        """A worker answered our Open: it takes part from here on."""
        link = self._links.get(worker_id)
        if link is None:
            return
        self._notes[worker_id] = WorkerNotes()
        self._notes[worker_id].hello(hello)
        version = hello.serving_version if hello.HasField("serving_version") else None
        joined = WorkerJoined(
            worker_id,
            max(1, hello.max_running),
            link.member.pool,
            version,
            hello.weight_digest,
            tuple(hello.resident_versions),
        )
        self._feed_members(members.LinkOpened(worker_id))
        self._feed(joined)
        if self._prefetch is not None:
            self._send_prefetch(worker_id, self._prefetch)
        log.info("worker_joined", worker_id=worker_id, policy_version=version, job_id=self._job_id)

    def link_closed(self, worker_id: str, detail: str) -> None:
        """A worker's stream is gone; its link keeps trying."""
        self._feed_members(members.LinkClosed(worker_id, detail))

    def engine_event(self, worker_id: str, event: engine_pb2.EngineEvent) -> None:
        """What a worker that takes part says."""
        notes = self._notes.get(worker_id)
        if notes is None:
            return
        match event.WhichOneof("event"):
            case "chunk":
                self._feed(convert.chunk_from_wire(worker_id, event.chunk))
            case "stats":
                notes.stats = event.stats
            case "loaded":
                notes.loaded(event.loaded)
                self._feed(convert.loaded_from_wire(worker_id, event.loaded))
                self._report(worker_id)
            case "prefetched":
                notes.prefetched(event.prefetched)
                self._became_resident(worker_id)
                self._tell_runner(convert.prefetched_to_wire(worker_id, event.prefetched))
                self._report(worker_id)
            case "hello":
                notes.hello(event.hello)
                self._feed(VersionsResident(worker_id, tuple(notes.resident)))
                self._report(worker_id)

    def _send_prefetch(self, worker_id: str, prefetch: inference_pb2.PrefetchWeights) -> None:
        command = engine_pb2.PrefetchWeights(
            policy_version=prefetch.policy_version,
            node_address=prefetch.node_address,
            manifest=prefetch.manifest,
            deadline_s=self._policy.prefetch_deadline_s,
        )
        self._send(worker_id, engine_pb2.EngineCommand(prefetch=command))

    def _send(self, worker_id: str, command: engine_pb2.EngineCommand) -> None:
        link = self._links.get(worker_id)
        if link is not None and not link.send(command):
            log.debug("command_dropped", worker_id=worker_id)  # its stream broke; the loss is about to be reported

    # ---- effects ---------------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        for action in self.table.handle(event, self._clock()):
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case EmitChunk():
                put = self._callers.get(action.stream_id)
                if put is not None:
                    put(convert.chunk_to_wire(action))
            case SendAdd(worker_id):
                self._send(worker_id, convert.add_to_wire(action))
            case SendAbort(worker_id, request_id):
                abort = engine_pb2.AbortRequest(request_id=request_id)
                self._send(worker_id, engine_pb2.EngineCommand(abort=abort))
            case PauseWorker(worker_id):
                self._send(worker_id, engine_pb2.EngineCommand(pause=engine_pb2.PauseGeneration()))
            case LoadWeights(worker_id, policy_version):
                load = engine_pb2.LoadWeights(policy_version=policy_version)
                self._send(worker_id, engine_pb2.EngineCommand(load=load))
            case ResumeWorker(worker_id):
                self._send(worker_id, engine_pb2.EngineCommand(resume=engine_pb2.ResumeGeneration()))
            case ReportUpdate():
                self._report_update(action)
            case CloseWorker(worker_id, reason):
                self._close_worker(worker_id, reason)
            case WantVersion(policy_version):
                wanted = inference_pb2.VersionWanted(policy_version=policy_version)
                self._tell_runner(inference_pb2.ManageEvent(wanted=wanted))

    def _report_update(self, report: ReportUpdate) -> None:
        notes = self._notes.get(report.worker_id)
        exposed_s = notes.exposed_pull_s.pop(report.policy_version, 0.0) if notes else 0.0
        self._tell_runner(convert.updated_to_wire(report, exposed_s))

    def _close_worker(self, worker_id: str, reason: str) -> None:
        link = self._links.get(worker_id)
        if self._members.state(worker_id) is members.MemberState.LEAVING:
            self._feed_members(members.MemberDrained(worker_id))
        elif link is not None:
            self._chore(link.reset(reason))

    def _feed_members(self, event: members.MembershipEvent) -> None:
        for action in self._members.handle(event):
            self._perform_member(action)

    def _perform_member(self, action: members.MembershipAction) -> None:
        match action:
            case members.OpenLink(member):
                self._links[member.worker_id] = EngineLink(member, self, clock=self._clock)
            case members.CloseLink(worker_id):
                self._notes.pop(worker_id, None)
                self._chore(self._links.pop(worker_id).close())
            case members.AnnounceJoined(worker_id):
                log.debug("link_opened", worker_id=worker_id)
            case members.AnnounceLost(worker_id, detail):
                self._notes.pop(worker_id, None)
                log.warning("worker_lost", worker_id=worker_id, reason=detail, job_id=self._job_id)
                self._tell_runner(
                    inference_pb2.ManageEvent(lost=inference_pb2.WorkerLost(worker_id=worker_id, detail=detail))
                )
                self._feed(WorkerLost(worker_id, detail))
            case members.DrainMember(worker_id):
                self._feed(WorkerReleased(worker_id))

    def _chore(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)
