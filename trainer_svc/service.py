"""The order of effects of a trainer process: one job, one command at a time, one torch thread.

Commands wait in one queue that outlives streams: when a stream breaks in the middle of a step the step goes on, and its
answer goes to the stream that is open by then. A step is made once; asked for again, its recorded answer is given.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.weights.errors import WeightsError
from headrace.core.weights.manifest import VersionId
from headrace.service.logging import bound_ids, get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc import blobs, checkpoint, model_dir
from trainer_svc.errors import ModelUnusable, NotOpen, StaleEpoch, StepConflict, TrainingError
from trainer_svc.parts import PartResult, has_part, merged
from trainer_svc.plan import TrainingPlan, read_plan
from trainer_svc.publication import Publication, VersionPublisher
from trainer_svc.rows import RowRules, build_rows, token_blobs
from trainer_svc.samples import probe_rows
from trainer_svc.settings import TrainerSettings
from trainer_svc.step import StepResult
from trainer_svc.streams import Stream
from trainer_svc.training import Training

log = get_logger(__name__)

PUSH_RETRY_S = 0.5
PUSH_TRY_S = 20.0


@dataclass(slots=True)
class _StepRecord:
    """The last step made, for the case that it is asked for again."""

    step: int
    batch_digest: str
    result: StepResult
    seconds: dict[str, float]
    answers: dict[int, pb.StepFinished] = field(default_factory=dict)


@dataclass(slots=True)
class _Job:
    """The job that this process holds."""

    job_id: str
    epoch: int
    plan: TrainingPlan
    training: Training
    publisher: VersionPublisher
    weights_address: str
    record: _StepRecord | None = None
    running_step: int | None = None
    parts: list[PartResult] = field(default_factory=list)  # of the step that is being made in parts
    checkpoint_step: int = 0


class TrainerService:
    """Holds at most one job. `run` is the worker; `submit` puts commands before it."""

    def __init__(self, settings: TrainerSettings, *, worker_id: str, source: blobs.BlobSource) -> None:
        self._settings, self._worker_id, self._source = settings, worker_id, source
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._commands: asyncio.Queue[tuple[Stream, pb.TrainerCommand]] = asyncio.Queue()
        self._job: _Job | None = None
        self._stream: Stream | None = None

    async def submit(self, stream: Stream, command: pb.TrainerCommand) -> None:
        """Queue a command; an open that only attaches is answered at once, for it must not wait behind a step."""
        kind = command.WhichOneof("command")
        if kind == "open" and self._attach(stream, command.open):
            return
        if kind in ("train", "publish") and self._job is not None and stream is self._stream:
            self._job.weights_address = getattr(command, kind).weights_address or self._job.weights_address
        await self._commands.put((stream, command))

    async def run(self) -> None:
        """Perform commands in order until cancelled."""
        try:
            while True:
                stream, command = await self._commands.get()
                await self._perform(stream, command)
        finally:
            await self._forget()
            self._torch.shutdown(wait=False, cancel_futures=True)

    def stats(self) -> dict[str, float]:
        """For heartbeats."""
        job = self._job
        if job is None:
            return {"is_busy": 0.0}
        return {"is_busy": float(job.running_step is not None), "step": float(job.training.step)}

    @staticmethod
    def describe(path: str) -> pb.InspectResponse:
        """What a model directory holds, or the fault that says why it cannot be trained. Blocks."""
        try:
            facts = model_dir.inspect(path)
        except ModelUnusable as error:
            return pb.InspectResponse(fault=common_pb2.Fault(code=error.code, kind="infra", detail=str(error)))
        return pb.InspectResponse(architecture=facts.architecture, vocab_size=facts.vocab_size, max_len=facts.max_len)

    async def _perform(self, stream: Stream, command: pb.TrainerCommand) -> None:
        kind = command.WhichOneof("command") or ""
        step = command.train.step if kind == "train" else 0
        try:
            with bound_ids(job_id=self._job.job_id if self._job else command.open.job_id):
                await self._dispatch(stream, kind, command)
        except (TrainingError, WeightsError) as error:
            log.warning("command_failed", command=kind, code=error.code, reason=str(error))
            self._fault(stream, error.code, str(error), retryable=error.retryable, step=step)
        except Exception as error:  # the boundary of one command: the process and its stream go on
            log.exception("command_crashed", command=kind)
            self._fault(stream, "internal", f"{type(error).__name__}: {error}", retryable=False, step=step)

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

    def _own(self, stream: Stream) -> _Job:
        if self._job is None:
            raise NotOpen("no job is open; send open first")
        if stream is not self._stream:
            raise StaleEpoch(f"job {self._job.job_id} is driven by another stream, epoch {self._job.epoch}")
        return self._job

    def _attach(self, stream: Stream, command: pb.OpenTraining) -> bool:
        """Hand the job that is held at this step, or in the step after it, over to a new stream."""
        job, wanted = self._job, command.restore_step
        if job is None or job.job_id != command.job_id or command.job_epoch < job.epoch:
            return False
        made_next = job.record is not None and job.record.step == wanted + 1 == job.training.step
        if not made_next and job.training.step != wanted:
            return False
        job.epoch, self._stream = command.job_epoch, stream
        job.weights_address = command.weights_address or job.weights_address
        self._opened(job, wanted, is_attached=True)
        return True

    async def _open(self, stream: Stream, command: pb.OpenTraining) -> None:
        if self._attach(stream, command):
            return
        if self._job is not None and self._job.job_id == command.job_id and command.job_epoch < self._job.epoch:
            raise StaleEpoch(f"job {command.job_id} is held under epoch {self._job.epoch}, not {command.job_epoch}")
        await self._forget()
        self._stream = stream
        plan = read_plan(command.spec_json, command.job_id, self._settings.data_dir)
        training: Training = await self._in_thread(Training, plan, command.job_id, self._settings.device)
        if command.HasField("restore_step"):
            state = await self._in_thread(checkpoint.load, plan.checkpoint_dir, at_or_before=command.restore_step)
            if state is not None:
                await self._in_thread(training.restore, state)
        publisher = VersionPublisher(plan.bucket_bytes, min(PUSH_TRY_S, self._settings.push_timeout_s))
        self._job = _Job(
            command.job_id, command.job_epoch, plan, training, publisher, command.weights_address,
            checkpoint_step=training.step,
        )  # fmt: skip
        log.info("opened", step=training.step, policy_version=training.policy_version, model=plan.model_path)
        self._opened(self._job, training.step, is_attached=False)

    def _opened(self, job: _Job, step: int, *, is_attached: bool) -> None:
        training = job.training
        opened = pb.TrainingOpened(
            job_epoch=job.epoch,
            worker_id=self._worker_id,
            step=step,
            policy_version=training.policy_version,
            model_files=training.files,
            n_parameters=training.n_parameters,
            vocab_size=training.facts.vocab_size,
            max_len=training.max_len,
            is_attached=is_attached,
        )
        self._emit(opened=opened)

    async def _publish_state(self, job: _Job, command: pb.PublishState) -> None:
        if command.step != job.training.step:
            raise StepConflict(f"parameters stand at step {job.training.step}, not {command.step}")
        parent = command.parent_version if command.HasField("parent_version") else None
        version = VersionId(job.job_id, command.policy_version, job.epoch, parent, command.step)
        done = await self._publish(job, version)
        published = pb.StatePublished(
            policy_version=done.policy_version,
            manifest=done.manifest,
            push_s=done.push_s,
            publication_stall_s=done.publication_stall_s,
            bytes_moved=done.bytes_moved,
        )
        self._emit(published=published)

    async def _train(self, job: _Job, command: pb.TrainStep) -> None:
        record = job.record
        if record is None or record.step != command.step:
            record = await self._make_step(job, command)
            if record is None:
                return  # a part of the step; more follow
        elif command.part < max(command.n_parts, 1) - 1:
            return  # an earlier part of a step that is made, sent again
        elif record.batch_digest != command.batch_digest:
            raise StepConflict(f"step {command.step} was made from batch {record.batch_digest}")
        if command.publish_version not in record.answers:
            self._progress(command.step, "publish", 0, 1)
            version = VersionId(job.job_id, command.publish_version, job.epoch, command.policy_version, command.step)
            done = await self._publish(job, version)
            record.answers[command.publish_version] = _finished(job, record, done)
        self._emit(finished=record.answers[command.publish_version])
        every = job.plan.spec.checkpoint.every
        if every and command.step % every == 0 and job.checkpoint_step != command.step:
            await self._checkpoint(job)

    async def _make_step(self, job: _Job, command: pb.TrainStep) -> _StepRecord | None:
        """The step's record, or None where it was a part and others follow."""
        training = job.training
        if command.step != training.step + 1:
            raise StepConflict(f"parameters stand at step {training.step}; step {command.step} does not follow")
        if has_part(job.parts, command):
            return None
        made = await self._make_part(job, command)
        job.parts.append(made)
        if command.part < max(command.n_parts, 1) - 1:
            return None
        result, seconds = merged(job.parts)
        job.parts = []
        job.record = _StepRecord(command.step, command.batch_digest, result, seconds)
        return job.record

    async def _make_part(self, job: _Job, command: pb.TrainStep) -> PartResult:
        training, plan = job.training, job.plan
        job.running_step = command.step
        try:
            started = time.monotonic()
            # An earlier step's checkpoints may go only now: that this step is asked for says that it was committed.
            await self._in_thread(checkpoint.prune, plan.checkpoint_dir, plan.spec.checkpoint.keep_last)
            self._progress(command.step, "fetch", 0, 1)
            found = await blobs.fetch(self._source, token_blobs(command.groups), self._settings.blob_timeout_s)
            rules = RowRules(plan.estimate, plan.spec.algorithm.mask_truncated, training.facts.vocab_size)
            batch = await self._in_thread(build_rows, command.groups, found, rules)
            seconds = {"fetch": time.monotonic() - started}
            training.policy_version = command.policy_version
            gap_started = time.monotonic()
            gap = await self._in_thread(training.logprob_gap, batch.rows, probe_rows(command.probe))
            seconds["logprob_gap"] = time.monotonic() - gap_started
            report = self._threadsafe_progress(command.step)
            result: StepResult
            if command.n_parts > 1:
                numbers = {"part": command.part, "n_parts": command.n_parts}
                result = await self._in_thread(training.train_part, batch.rows, batch.groups, report, **numbers)
            else:
                result = await self._in_thread(training.train, batch.rows, batch.groups, report)
        finally:
            job.running_step = None
        result.metrics |= batch.counts | gap
        return PartResult(command.part, command.batch_digest, result, seconds | result.seconds)

    async def _publish(self, job: _Job, version: VersionId) -> Publication:
        """Push until the deadline: a node that restarts, or is full for a moment, costs time and not the job."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.push_timeout_s
        while True:
            try:
                # The address is read anew: a command that waits may have brought a restarted node's.
                done = await job.publisher.publish(job.training, version, job.weights_address, self._in_thread)
                break
            except WeightsError as error:
                if not error.retryable or loop.time() + PUSH_RETRY_S >= end:
                    raise
                log.warning("push_failed", version=version.policy_version, code=error.code, reason=str(error))
            await asyncio.sleep(PUSH_RETRY_S)
        job.training.policy_version = version.policy_version
        return done

    async def _checkpoint(self, job: _Job) -> None:
        path: Path = await self._in_thread(_save, job.plan.checkpoint_dir, job.training)
        job.checkpoint_step = job.training.step
        log.info("checkpoint", step=job.training.step, path=str(path))
        self._emit(checkpoint=pb.CheckpointSaved(step=job.training.step, path=str(path)))

    async def _close(self, job: _Job, export_path: str) -> None:
        if export_path:
            await self._in_thread(job.training.export, Path(export_path))
        await self._forget()
        self._emit(closed=pb.TrainingClosed(export_path=export_path))

    async def _forget(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job.publisher.close()

    async def _in_thread(self, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._torch, lambda: call(*args, **keywords))

    def _threadsafe_progress(self, step: int) -> Callable[[str, int, int], None]:
        loop = asyncio.get_running_loop()
        return lambda phase, done, total: loop.call_soon_threadsafe(self._progress, step, phase, done, total)  # type: ignore[return-value]

    def _progress(self, step: int, phase: str, done: int, total: int) -> None:
        self._emit(progress=pb.StepProgress(step=step, phase=phase, done=done, total=total))

    def _emit(self, **event: Any) -> None:
        if self._stream is not None:
            self._stream.emit(pb.TrainerEvent(**event))

    def _fault(self, stream: Stream, code: str, detail: str, *, retryable: bool, step: int) -> None:
        fault = common_pb2.Fault(code=code, kind="infra", detail=detail, retryable=retryable)
        stream.emit(pb.TrainerEvent(fault=pb.TrainingFault(fault=fault, step=step)))


def _save(folder: Path, training: Training) -> Path:
    return checkpoint.save(folder, training.state())


def _finished(job: _Job, record: _StepRecord, done: Publication) -> pb.StepFinished:
    return pb.StepFinished(
        step=record.step,
        batch_digest=record.batch_digest,
        publish_version=done.policy_version,
        manifest=done.manifest,
        metrics=record.result.metrics,
        seconds=record.seconds | {"push": done.push_s, "publication_stall": done.publication_stall_s},
        bytes_moved=done.bytes_moved,
        is_skipped=bool(record.result.skip_reason),
        skip_reason=record.result.skip_reason,
        checkpoint_step=job.checkpoint_step,
    )
