"""The jobs that this process has work for: what runs, what waits for the runner, and who may command."""

import asyncio
from collections.abc import Iterable

from env_svc.codec import Codec
from env_svc.faults import ENV, AttemptFault, InfraFault, JobRefused, StaleEpoch
from env_svc.generation import ProxyStreams
from env_svc.lockstep import Cohorts
from env_svc.manager import EnvManager, JobTools, Shared
from env_svc.metrics import count
from env_svc.outbox import Key, Outbox
from env_svc.pauses import Gate
from env_svc.records import unknown
from env_svc.spec import JobSpec, parse_job_spec
from headrace.service.logging import get_logger
from headrace.wire.environments.v1 import environments_pb2

log = get_logger(__name__)


class Attempt:
    """A running attempt: its manager, its task, and why it was told to end."""

    def __init__(self, manager: EnvManager) -> None:
        self.manager = manager
        self.task: asyncio.Task[None] | None = None
        self.abort_reason: str | None = None


class Job:
    """One job's attempts. It outlives any stream; a stream of a higher epoch takes it over."""

    def __init__(self, job_id: str, spec: JobSpec, tools: JobTools, shared: Shared) -> None:
        self.job_id = job_id
        self.epoch = 0
        self.outbox = Outbox()
        self.superseded = asyncio.Event()
        self._spec, self._tools, self._shared = spec, tools, shared
        self._running: dict[Key, Attempt] = {}

    @property
    def running(self) -> list[Key]:
        return list(self._running)

    def take_over(self, epoch: int) -> None:
        """A new stream commands from here on; the former one ends, and everything unacknowledged is sent again."""
        self.superseded.set()
        self.superseded = asyncio.Event()
        self.epoch = epoch
        # A pause belongs to the stream: a runner that resumed while it had none could not tell us.
        self._tools.gate.resume()
        self.outbox.restart()

    def assign(self, assign: environments_pb2.Assign) -> None:
        """Begin an attempt. One that is known already is not begun twice: what there is of it is sent again."""
        key = Key.of(assign.key)
        if key in self._running or self.outbox.is_known(key):
            self.outbox.resend(key)
            return
        task = self._spec.tasks.get(assign.task)
        if task is None:
            self._refuse(key, f"task {assign.task!r} is not in the job; it has {', '.join(self._spec.tasks)}")
            return
        manager = EnvManager(assign, task, self._tools, self._shared, lambda version: self.outbox.started(key, version))
        attempt = Attempt(manager)
        self._running[key] = attempt
        attempt.task = asyncio.create_task(self._play(key, attempt))

    def abort(self, key: Key, reason: str) -> None:
        """End an attempt; its outcome names ``reason``. A finished one keeps the outcome that it has."""
        attempt = self._running.get(key)
        if attempt is None:
            if self.outbox.is_known(key):
                self.outbox.resend(key)
            else:
                self.outbox.finished(key, unknown(key))
            return
        if attempt.abort_reason is None and attempt.task is not None:
            attempt.abort_reason = reason or "aborted"
            attempt.task.cancel()

    def acknowledge(self, keys: Iterable[Key]) -> None:
        self.outbox.acknowledge(keys)

    async def set_proxy(self, address: str) -> None:
        await self._tools.route.set_address(address)

    def pause(self) -> None:
        self._tools.gate.pause()

    def resume(self) -> None:
        self._tools.gate.resume()

    async def stop(self) -> None:
        """End every attempt as lost by this process, and wait until their environments are closed."""
        tasks = [attempt.task for attempt in self._running.values() if attempt.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """The same, and the stream ends."""
        await self.stop()
        self.superseded.set()

    async def _play(self, key: Key, attempt: Attempt) -> None:
        try:
            outcome = await attempt.manager.run()
        except asyncio.CancelledError:
            outcome = attempt.manager.failure(_ended(attempt.abort_reason))
        finally:
            del self._running[key]
        count(attempt.manager.record.task.name, outcome)
        self.outbox.finished(key, outcome)

    def _refuse(self, key: Key, detail: str) -> None:
        fault = unknown(key)
        fault.failed.fault.code, fault.failed.fault.kind, fault.failed.fault.detail = "unknown_task", ENV, detail
        self.outbox.finished(key, fault)


def _ended(abort_reason: str | None) -> AttemptFault:
    if abort_reason is None:
        return InfraFault("env_svc_stopped", "the environment process was told to stop")
    return AttemptFault(abort_reason, "ended by the runner's command", kind="", retryable=False)


class JobTable:
    """All jobs of this process."""

    def __init__(self, shared: Shared, streams: ProxyStreams, *, lockstep_grace_s: float) -> None:
        self._shared, self._streams, self._grace_s = shared, streams, lockstep_grace_s
        self._jobs: dict[str, Job] = {}
        self._opening = asyncio.Lock()

    async def open(self, command: environments_pb2.OpenJob) -> Job:
        """The job, taken over by ``job_epoch``.

        Raises:
            StaleEpoch: a higher epoch has been here.
            JobRefused: the spec or the model's files do not do.
        """
        async with self._opening:
            job = self._jobs.get(command.job_id)
            if job is None:
                job = self._jobs[command.job_id] = await self._build(command)
            if command.job_epoch < job.epoch:
                raise StaleEpoch(f"job_epoch {command.job_epoch} is older than {job.epoch} of job {job.job_id}")
            job.take_over(command.job_epoch)
            return job

    async def close(self, job: Job) -> None:
        """Forget a job and everything of it."""
        self._jobs.pop(job.job_id, None)
        await job.close()

    async def drain(self) -> None:
        """End every attempt and wait until the runners have taken the outcomes. The caller sets the deadline."""
        jobs = list(self._jobs.values())
        await asyncio.gather(*(job.stop() for job in jobs))
        await asyncio.gather(*(job.outbox.emptied() for job in jobs))

    async def close_all(self) -> None:
        """Forget all jobs."""
        for job in list(self._jobs.values()):
            await self.close(job)

    @property
    def n_running(self) -> int:
        return sum(len(job.running) for job in self._jobs.values())

    @property
    def n_unacknowledged(self) -> int:
        return sum(len(job.outbox) for job in self._jobs.values())

    async def _build(self, command: environments_pb2.OpenJob) -> Job:
        spec = parse_job_spec(command.spec_json)
        codec = await asyncio.to_thread(Codec.from_files, dict(command.model_files))
        if codec.rewrites_history:
            log.info(
                "template_rewrites_history", job_id=command.job_id, rows="append-only, older turns stay as sampled"
            )
        tools = JobTools(
            job_id=command.job_id,
            max_len=min(spec.max_len, codec.max_len or spec.max_len),
            codec=codec,
            route=self._streams.route(command.job_id),
            gate=Gate(spec.pause_ttl_s),
            cohorts=Cohorts(self._grace_s),
            stop_token_ids={name: codec.stop_token_ids(task.sampling.stop) for name, task in spec.tasks.items()},
        )
        without_end = [name for name, ids in tools.stop_token_ids.items() if not ids]
        if without_end:
            raise JobRefused(f"tasks {', '.join(without_end)}: neither sampling.stop nor the model's files end a turn")
        return Job(command.job_id, spec, tools, self._shared)
