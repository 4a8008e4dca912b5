"""`Environments` on the wire."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from env_svc.faults import JobRefused, StaleEpoch
from env_svc.jobs import Job, JobTable
from env_svc.outbox import Key
from env_svc.probe import probe
from env_svc.process_host import ProcessPool
from headrace.service.logging import bound_ids, get_logger
from headrace.service.streams import first_of, pump
from headrace.wire.environments.v1 import environments_pb2, environments_pb2_grpc

log = get_logger(__name__)


class _JobEnded(Exception):
    """The runner closed the job, which ends its stream."""


class EnvironmentsServicer(environments_pb2_grpc.EnvironmentsServicer):
    """One `Run` stream per job, and probes."""

    def __init__(self, jobs: JobTable, pool: ProcessPool, *, worker_id: str, slots: int, orphan_ttl_s: float) -> None:
        self._jobs, self._pool = jobs, pool
        self._worker_id, self._slots = worker_id, slots
        self._orphan_ttl_s = orphan_ttl_s
        self._orphans: dict[str, asyncio.Task[None]] = {}

    async def Run(self, request_iterator: AsyncIterator[environments_pb2.AssignmentFrame], context: Any) -> None:
        """Commands in, outcomes out; see the proto."""
        frames = aiter(request_iterator)
        first = await anext(frames, None)
        if first is None or not first.commands or first.commands[0].WhichOneof("command") != "open":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first command on the stream must be open")
            return
        job = await self._open(first.commands[0].open, context)
        superseded = job.superseded
        with bound_ids(job_id=job.job_id):
            try:
                await self._carry(job, superseded, first, frames, context)
            except _JobEnded:
                await self._jobs.close(job)
            finally:
                if not superseded.is_set():
                    self._watch_orphan(job)

    async def Probe(self, request: environments_pb2.ProbeRequest, context: Any) -> environments_pb2.ProbeResponse:
        """Play scripted turns in a process apart."""
        return await probe(request, self._pool)

    def close(self) -> None:
        """Stop watching over jobs without a runner."""
        for task in self._orphans.values():
            task.cancel()

    async def _open(self, command: environments_pb2.OpenJob, context: Any) -> Job:
        try:
            return await self._jobs.open(command)
        except StaleEpoch as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except JobRefused as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort raises")

    async def _carry(
        self,
        job: Job,
        superseded: asyncio.Event,
        first: environments_pb2.AssignmentFrame,
        frames: AsyncIterator[environments_pb2.AssignmentFrame],
        context: Any,
    ) -> None:
        if orphan := self._orphans.pop(job.job_id, None):
            orphan.cancel()
        opened = environments_pb2.JobOpened(
            job_epoch=job.epoch,
            worker_id=self._worker_id,
            slots=self._slots,
            running=[key.message() for key in job.running],
        )
        await context.write(environments_pb2.OutcomeFrame(outcomes=[environments_pb2.Outcome(opened=opened)]))
        log.info("job_stream_open", job_epoch=job.epoch, running=len(opened.running))

        async def perform(command: environments_pb2.AssignmentCommand) -> None:
            if not superseded.is_set():
                await _perform(job, command)

        for command in list(first.commands)[1:]:
            await perform(command)
        await first_of(
            pump(frames, lambda frame: frame.commands, perform),
            job.outbox.write(context.write),
            _wait(superseded),
        )
        if superseded.is_set():
            await context.abort(grpc.StatusCode.ABORTED, "another stream has taken the job over")

    def _watch_orphan(self, job: Job) -> None:
        async def expire() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(self._orphan_ttl_s)
                log.warning("job_orphaned", job_id=job.job_id)
                await self._jobs.close(job)

        if former := self._orphans.pop(job.job_id, None):
            former.cancel()
        self._orphans[job.job_id] = asyncio.create_task(expire())


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _perform(job: Job, command: environments_pb2.AssignmentCommand) -> None:
    match command.WhichOneof("command"):
        case "assign":
            job.assign(command.assign)
        case "abort":
            job.abort(Key.of(command.abort.key), command.abort.reason)
        case "acknowledge":
            job.acknowledge(Key.of(key) for key in command.acknowledge.keys)
        case "proxy":
            await job.set_proxy(command.proxy.address)
        case "pause":
            job.pause()
        case "resume":
            job.resume()
        case "close":
            raise _JobEnded
        case other:
            log.warning("command_ignored", command=other)
