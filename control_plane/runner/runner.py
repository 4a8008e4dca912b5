"""One job, one runner: all events that wait, one decision, one transaction, then the effects.

links, rewards, workers table, wishes ─► inbox ─► machine ─► transaction (under the lease) ─► performer
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Histogram
from sqlalchemy.ext.asyncio import AsyncEngine

from control_plane.hub import Hub
from control_plane.runner.fleet import Fleet
from control_plane.runner.inbox import Inbox
from control_plane.runner.performer import Performer
from control_plane.runner.planning import plan_of
from control_plane.runner.probe import Prober
from control_plane.runner.repository import JobRepository
from control_plane.runner.samplers import sampler_of
from control_plane.runner.scoring import RewardSender
from control_plane.runner.turn import StoredManifest
from control_plane.runner.turning import TurnTaker, ended
from headrace.client.jobspec import JobSpec
from headrace.core.job import actions as do
from headrace.core.job import events as did
from headrace.core.job import snapshot, swaps
from headrace.core.job.machine import JobMachine
from headrace.core.job.rows import Key
from headrace.core.job.state import Phase
from headrace.service.logging import get_logger
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb

log = get_logger(__name__)

TICK_S = 0.5
LOOK_S = 0.5

TURN_SECONDS = Histogram("headrace_runner_turn_seconds", "Time of one runner turn, its transaction included")
TURN_EVENTS = Histogram("headrace_runner_turn_events", "Events of one turn", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256))

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
    sampler_modules: str
    lease_ttl_s: float


class Runner:
    """Runs until the job ends, the lease is lost (LeaseLost), or it is cancelled."""

    def __init__(self, tools: Tools, job_id: str, epoch: int, spec: JobSpec) -> None:
        self._tools = tools
        self._job_id = job_id
        self._epoch = epoch
        self._spec = spec
        self._repository = JobRepository(tools.engine, job_id, epoch, tools.lease_ttl_s)
        self._plan = plan_of(
            job_id,
            spec,
            export_path=spec.checkpoint.export or f"{tools.export_root}/{job_id}",
            sampler=sampler_of(spec.buffer.sampler, tools.sampler_modules),
        )
        self._turns: TurnTaker
        self._inbox = Inbox()
        self._prober = Prober(job_id, spec.seed)
        self._fleet = Fleet(tools.engine, job_id, epoch, spec, self)
        self._vocab_size = 0
        self._seen_rewards: set[tuple[str, int, str, int]] = set()
        self._failure: BaseException | None = None
        self._performer = Performer(
            self._fleet,
            self._prober,
            job_id=job_id,
            epoch=epoch,
            keep_versions=spec.weights.keep,
            manifest_of=lambda version: self._turns.manifests[version],
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
        machine = JobMachine.fresh(self._plan) if stored is None else snapshot.restore(stored)
        self._turns = TurnTaker(machine, self._repository, self, self._spec)
        if stored is None:
            machine.state.totals["started"] = time.time()
            return
        self._turns.reporter.resume(stored.state.get("meter", {}))
        current = machine.state.lineage.current
        for version in sorted({current, *swaps.pinned(machine.state)} - {None}, key=int):  # type: ignore[arg-type]
            assert version is not None
            manifest = await self._repository.manifest(version)
            if manifest is not None:
                self._turns.manifests[version] = manifest
        await self._turns.send_rewards(await self._repository.unsent())
        log.info("job_taken_up", job_id=self._job_id, epoch=self._epoch, step=machine.state.step)

    # -- the turn ------------------------------------------------------------------------------------------------------

    async def _turn(self) -> bool:
        """One turn. True when the job has reached its end and everybody was told."""
        arrived = await self._inbox.drain(TICK_S)
        with TURN_SECONDS.time():
            actions = await self._turns.take(arrived, time.time())
        TURN_EVENTS.observe(len(arrived))
        self._tools.hub.notify(f"events:{self._job_id}")
        self._start_probe()
        return ended(actions)

    async def perform(self, actions: Sequence[do.Action]) -> None:
        await self._performer.perform(actions)

    async def send_rewards(self, entries: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
        """False where the broker did not take them: they are sent again at their deadline."""
        try:
            await self._tools.sender.send([payload for _, payload in entries])
        except Exception as error:  # noqa: BLE001 -- whatever the broker's client raises, the rewards are due again
            log.warning("rewards_not_sent", job_id=self._job_id, n_batches=len(entries), reason=str(error))
            return False
        return True

    def _start_probe(self) -> None:
        state, proxy = self._turns.machine.state, self._fleet.proxy
        current = state.lineage.current
        is_served = any(worker.serving_version == current for worker in state.workers.values())
        if current is None or proxy is None or not is_served or state.step >= self._plan.max_steps:
            return
        if swaps.is_settled(state):
            self._prober.start(proxy.generate, current, self._vocab_size)

    # -- beside the turn -----------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """The workers table and the owner's wishes."""
        seen = self._tools.hub.changes("workers") + self._tools.hub.changes("jobs")
        for event in await self._fleet.refresh():
            self._inbox.put(event)
        wish = await self._repository.desired()
        if wish is not None and wish != self._turns.answered:
            self._turns.answered = wish
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
                self._turns.reporter.graded(row["grader_s"], queue_s=row["queue_s"])
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
        self._turns.manifests[policy_version] = manifest

    def trainer_opened(self, opened: trn_pb.TrainingOpened) -> None:
        self._vocab_size = opened.vocab_size
        self._fleet.model_files = dict(opened.model_files)

    def trainer_progressed(self, progress: trn_pb.StepProgress) -> None:
        self._turns.reporter.trainer_progressed(progress)

    def weights_moved(self, moved: inf_pb.WeightsPrefetched | inf_pb.WeightsUpdated) -> None:
        self._turns.reporter.weights_moved(moved)

    def worker_reported(self, status: inf_pb.WorkerStatus) -> None:
        self._turns.reporter.worker_reported(status)

    def routing_reported(self, stats: inf_pb.RoutingStats) -> None:
        self._turns.reporter.routing_reported(stats)

    def version_wanted(self, policy_version: int) -> None:
        """Trajectories of a retained version lost their worker, and the proxy wants another one to load it."""
        self._performer.fetch_again(policy_version, self._manifest)

    async def _manifest(self, policy_version: int) -> StoredManifest | None:
        held = self._turns.manifests.get(policy_version)
        return held if held is not None else await self._repository.manifest(policy_version)

    def failed(self, error: BaseException) -> None:
        self._failure = error

    def restore_step(self) -> int | None:
        """Where the live lineage stands, a replay included; None for a job without any version yet."""
        lineage = self._turns.machine.state.lineage
        return None if lineage.current is None else lineage.versions[lineage.current].step

    def is_paused(self) -> bool:
        return self._turns.machine.state.phase in (Phase.PAUSING, Phase.PAUSED)

    def env_ids(self) -> set[str]:
        """Environment processes that the machine believes to hold episodes."""
        generating = ("queued", "running")
        return {a.env_worker_id for a in self._turns.machine.state.attempts.values() if a.state in generating} - {""}


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
