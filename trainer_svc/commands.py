"""The order of effects of a trainer process: one job, one command at a time, whatever does the training.

Commands wait in one queue that outlives streams: when a stream breaks in the middle of a step the step goes on, and its
answer goes to the stream that is open by then. A step is made once; asked for again, its recorded answer is given.
"""

import abc
import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from headrace.core.weights.errors import WeightsError
from headrace.core.weights.manifest import VersionId
from headrace.service.logging import bound_ids, get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc import blobs
from trainer_svc.errors import NotOpen, StaleEpoch, StepConflict, TrainingError
from trainer_svc.parts import PartResult, has_part, merged
from trainer_svc.publication import Publication, VersionPublisher
from trainer_svc.results import StepResult
from trainer_svc.settings import TrainerSettings

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Stream:
    """A runner's stream, as the service behind it sees it; two are never the same, even with the same sink."""

    emit: Callable[[pb.TrainerEvent], object]


@dataclass(slots=True)
class MadeStep:
    """The last step made, for the case that it is asked for again."""

    step: int
    batch_digest: str
    result: StepResult
    seconds: dict[str, float]
    answers: dict[int, pb.StepFinished] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class HeldJob(abc.ABC):
    """The job that a trainer process holds, as far as the order of commands needs to know it."""

    job_id: str
    epoch: int
    publisher: VersionPublisher
    checkpoint_every: int
    checkpoint_step: int = 0
    running_step: int | None = None
    made: MadeStep | None = None
    parts: list[PartResult] = field(default_factory=list)  # of the step that is being made in parts

    @property
    @abc.abstractmethod
    def step(self) -> int:
        """The step that the parameters stand at."""

    def takes_over(self, command: pb.OpenTraining) -> bool:
        """Whether a new stream finds the job as it wants it: at its step, or in the step after it."""
        if self.job_id != command.job_id or command.job_epoch < self.epoch:
            return False
        has_next = self.made is not None and self.made.step == command.restore_step + 1 == self.step
        return has_next or self.step == command.restore_step


Job = TypeVar("Job", bound=HeldJob)


class CommandLoop(abc.ABC, Generic[Job]):
    """Holds at most one job. `run` is the worker; `submit` puts commands before it. Subclasses train."""

    def __init__(self, settings: TrainerSettings, *, worker_id: str, source: blobs.BlobSource) -> None:
        self._settings, self._worker_id, self._source = settings, worker_id, source
        self._commands: asyncio.Queue[tuple[Stream, pb.TrainerCommand]] = asyncio.Queue()
        self._job: Job | None = None
        self._stream: Stream | None = None

    # -- what a trainer does ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def describe(self, path: str) -> pb.InspectResponse:
        """What a model directory holds, or the fault that says why it cannot be trained. Blocks."""

    @abc.abstractmethod
    async def _load(self, command: pb.OpenTraining) -> Job:
        """The job as the command describes it, at its newest checkpoint at or before ``restore_step``."""

    @abc.abstractmethod
    def _opened(self, job: Job) -> pb.TrainingOpened:
        """The model's facts; the job's are filled in."""

    @abc.abstractmethod
    async def _make_part(self, job: Job, command: pb.TrainStep) -> PartResult:
        """Train on one part of a step; the job's step moves with the last one."""

    @abc.abstractmethod
    async def _push(self, job: Job, version: VersionId) -> Publication:
        """Publish the parameters as they are."""

    @abc.abstractmethod
    async def _save(self, job: Job) -> Path:
        """Write a checkpoint of the job as it is."""

    @abc.abstractmethod
    async def _export(self, job: Job, path: Path) -> None:
        """Write a Hugging Face directory."""

    # -- commands ----------------------------------------------------------------------------------------------------

    async def submit(self, stream: Stream, command: pb.TrainerCommand) -> None:
        """Queue a command, but perform at once what must not wait behind a step: to attach, and where weights go."""
        match command.WhichOneof("command"):
            case "open" if self._attach(stream, command.open):
                return
            case "weights":
                if self._job is not None and stream is self._stream:
                    self._job.publisher.move_to(command.weights.weights_address)
            case _:
                await self._commands.put((stream, command))

    async def run(self) -> None:
        """Perform commands in order until cancelled."""
        try:
            while True:
                stream, command = await self._commands.get()
                await self._perform(stream, command)
        finally:
            await self._forget()

    def stats(self) -> dict[str, float]:
        """For heartbeats."""
        job = self._job
        if job is None:
            return {"is_busy": 0.0}
        return {"is_busy": float(job.running_step is not None), "step": float(job.step)}

    async def _perform(self, stream: Stream, command: pb.TrainerCommand) -> None:
        kind = command.WhichOneof("command") or ""
        step = command.train.step if kind == "train" else 0
        try:
            with bound_ids(job_id=self._job.job_id if self._job else command.open.job_id):
                await self._dispatch(stream, kind, command)
        except (TrainingError, WeightsError) as error:
            log.warning("command_failed", command=kind, code=error.code, reason=str(error))
            _fault(stream, error.code, str(error), retryable=error.retryable, step=step)
        except Exception as error:  # the boundary of one command: the process and its stream go on
            log.exception("command_crashed", command=kind)
            _fault(stream, "internal", f"{type(error).__name__}: {error}", retryable=False, step=step)

    async def _dispatch(self, stream: Stream, kind: str, command: pb.TrainerCommand) -> None:
        if kind == "open":
            await self._open(stream, command.open)
            return
        if kind == "close" and self._job is None:
            self._emit(closed=pb.TrainingClosed(export_path=command.close.export_path))
            return
        job = self._own(stream)
        match kind:
            case "train":
                await self._train(job, command.train)
            case "publish":
                await self._publish_state(job, command.publish)
            case "checkpoint":
                await self._checkpoint(job)
            case "close":
                await self._close(job, command.close.export_path)
            case _:
                raise NotOpen("the command is empty; this trainer may be older than the runner")

    def _own(self, stream: Stream) -> Job:
        if self._job is None:
            raise NotOpen("no job is open; send open first")
        if stream is not self._stream:
            raise StaleEpoch(f"job {self._job.job_id} is driven by another stream, epoch {self._job.epoch}")
        return self._job

    def _attach(self, stream: Stream, command: pb.OpenTraining) -> bool:
        """Hand a job that is held already over to a new stream."""
        job = self._job
        if job is None or not job.takes_over(command):
            return False
        job.epoch, self._stream = command.job_epoch, stream
        job.publisher.move_to(command.weights_address)
        self._answer_open(job, command.restore_step, is_attached=True)
        return True

    async def _open(self, stream: Stream, command: pb.OpenTraining) -> None:
        if self._attach(stream, command):
            return
        if self._job is not None and self._job.job_id == command.job_id and command.job_epoch < self._job.epoch:
            raise StaleEpoch(f"job {command.job_id} is held under epoch {self._job.epoch}, not {command.job_epoch}")
        await self._forget()
        self._stream = stream
        self._job = await self._load(command)
        log.info("opened", step=self._job.step)
        self._answer_open(self._job, self._job.step, is_attached=False)

    def _answer_open(self, job: Job, step: int, *, is_attached: bool) -> None:
        opened = self._opened(job)
        opened.MergeFrom(
            pb.TrainingOpened(job_epoch=job.epoch, worker_id=self._worker_id, step=step, is_attached=is_attached)
        )
        self._emit(opened=opened)

    async def _train(self, job: Job, command: pb.TrainStep) -> None:
        made = job.made
        if made is None or made.step != command.step:
            made = await self._make_step(job, command)
            if made is None:
                return  # a part of the step; more follow
        elif command.part < max(command.n_parts, 1) - 1:
            return  # an earlier part of a step that is made, sent again
        elif made.batch_digest != command.batch_digest:
            raise StepConflict(f"step {command.step} was made from batch {made.batch_digest}")
        if command.publish_version not in made.answers:
            self._progress(command.step, "publish", 0, 1)
            version = VersionId(job.job_id, command.publish_version, job.epoch, command.policy_version, command.step)
            made.answers[command.publish_version] = _finished(job, made, await self._push(job, version))
        self._emit(finished=made.answers[command.publish_version])
        every = job.checkpoint_every
        if every and command.step % every == 0 and job.checkpoint_step != command.step:
            await self._checkpoint(job)

    async def _make_step(self, job: Job, command: pb.TrainStep) -> MadeStep | None:
        """The step made, or None where this was a part and others follow."""
        if command.step != job.step + 1:
            raise StepConflict(f"parameters stand at step {job.step}; step {command.step} does not follow")
        if has_part(job.parts, command):
            return None
        job.running_step = command.step
        try:
            job.parts.append(await self._make_part(job, command))
        finally:
            job.running_step = None
        if command.part < max(command.n_parts, 1) - 1:
            return None
        result, seconds = merged(job.parts)
        job.parts = []
        job.made = MadeStep(command.step, command.batch_digest, result, seconds)
        return job.made

    async def _publish_state(self, job: Job, command: pb.PublishState) -> None:
        is_lost = command.HasField("lost_epoch")
        if command.step != job.step and not job.publisher.has(command.policy_version):
            if is_lost:  # a restored trainer: what it publishes next replaces the version
                log.warning("bytes_are_gone", policy_version=command.policy_version)
                return
            raise StepConflict(f"parameters stand at step {job.step}, not {command.step}")
        parent = command.parent_version if command.HasField("parent_version") else None
        epoch = command.lost_epoch if is_lost else job.epoch
        done = await self._push(job, VersionId(job.job_id, command.policy_version, epoch, parent, command.step))
        published = pb.StatePublished(
            policy_version=done.policy_version,
            manifest=done.manifest,
            push_s=done.push_s,
            publication_stall_s=done.publication_stall_s,
            bytes_moved=done.bytes_moved,
        )
        self._emit(published=published)

    async def _checkpoint(self, job: Job) -> None:
        path = await self._save(job)
        job.checkpoint_step = job.step
        log.info("checkpoint", step=job.step, path=str(path))
        self._emit(checkpoint=pb.CheckpointSaved(step=job.step, path=str(path)))

    async def _close(self, job: Job, export_path: str) -> None:
        if export_path:
            await self._export(job, Path(export_path))
        await self._forget()
        self._emit(closed=pb.TrainingClosed(export_path=export_path))

    async def _forget(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job.publisher.close()

    def _progress(self, step: int, phase: str, done: int, total: int) -> None:
        self._emit(progress=pb.StepProgress(step=step, phase=phase, done=done, total=total))

    def _emit(self, **event: Any) -> None:
        if self._stream is not None:
            self._stream.emit(pb.TrainerEvent(**event))


def _fault(stream: Stream, code: str, detail: str, *, retryable: bool, step: int) -> None:
    fault = common_pb2.Fault(code=code, kind="infra", detail=detail, retryable=retryable)
    stream.emit(pb.TrainerEvent(fault=pb.TrainingFault(fault=fault, step=step)))


def _finished(job: HeldJob, made: MadeStep, done: Publication) -> pb.StepFinished:
    return pb.StepFinished(
        step=made.step,
        batch_digest=made.batch_digest,
        publish_version=done.policy_version,
        manifest=done.manifest,
        metrics=made.result.metrics,
        seconds=made.seconds | done.seconds,
        bytes_moved=done.bytes_moved,
        is_skipped=bool(made.result.skip_reason),
        skip_reason=made.result.skip_reason,
        checkpoint_step=job.checkpoint_step,
    )
