"""The trainer: torch in one thread, behind the order of commands that all trainers keep."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.core.weights.manifest import VersionId
from headrace.service.logging import get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc import blobs, checkpoint, model_dir
from trainer_svc.commands import CommandLoop, HeldJob
from trainer_svc.errors import ModelUnusable
from trainer_svc.parts import PartResult
from trainer_svc.plan import TrainingPlan, read_plan
from trainer_svc.publication import Publication, VersionPublisher
from trainer_svc.results import StepResult
from trainer_svc.rows import RowRules, build_rows, token_blobs
from trainer_svc.samples import probe_rows
from trainer_svc.settings import TrainerSettings
from trainer_svc.training import Training
from weightstore.publisher import Publisher
from weightstore.snapshot import Snapshot

log = get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class _Job(HeldJob):
    plan: TrainingPlan
    training: Training

    @property
    def step(self) -> int:
        return self.training.step


class TrainerService(CommandLoop[_Job]):
    """Trains a Hugging Face model with torch."""

    def __init__(self, settings: TrainerSettings, *, worker_id: str, source: blobs.BlobSource) -> None:
        super().__init__(settings, worker_id=worker_id, source=source)
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")

    async def run(self) -> None:
        """As the base's, and ends the torch thread with it."""
        try:
            await super().run()
        finally:
            self._torch.shutdown(wait=False, cancel_futures=True)

    def describe(self, path: str) -> pb.InspectResponse:
        """What a model directory holds, or the fault that says why it cannot be trained. Blocks."""
        try:
            facts = model_dir.inspect(path)
        except ModelUnusable as error:
            return pb.InspectResponse(fault=common_pb2.Fault(code=error.code, kind="infra", detail=str(error)))
        return pb.InspectResponse(architecture=facts.architecture, vocab_size=facts.vocab_size, max_len=facts.max_len)

    async def _load(self, command: pb.OpenTraining) -> _Job:
        plan = read_plan(command.spec_json, command.job_id, self._settings.data_dir)
        training: Training = await self._in_thread(Training, plan, command.job_id, self._settings.device)
        if command.HasField("restore_step"):
            state = await self._in_thread(checkpoint.load, plan.checkpoint_dir, at_or_before=command.restore_step)
            if state is not None:
                await self._in_thread(training.restore, state)
        publisher = VersionPublisher(
            command.weights_address, bucket_bytes=plan.bucket_bytes, timeout_s=self._settings.push_timeout_s
        )
        return _Job(
            job_id=command.job_id,
            epoch=command.job_epoch,
            publisher=publisher,
            checkpoint_every=plan.spec.checkpoint.every,
            checkpoint_step=training.step,
            plan=plan,
            training=training,
        )

    def _opened(self, job: _Job) -> pb.TrainingOpened:
        training = job.training
        return pb.TrainingOpened(
            policy_version=training.policy_version,
            model_files=training.files,
            n_parameters=training.n_parameters,
            vocab_size=training.facts.vocab_size,
            max_len=training.max_len,
        )

    async def _make_part(self, job: _Job, command: pb.TrainStep) -> PartResult:
        training, plan = job.training, job.plan
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
        result.metrics |= batch.counts | gap
        return PartResult(command.part, command.batch_digest, result, seconds | result.seconds)

    async def _push(self, job: _Job, version: VersionId) -> Publication:
        async def stage(publisher: Publisher) -> Snapshot:
            snapshot: Snapshot = await self._in_thread(_stage, publisher, job.training, version)
            return snapshot

        done = await job.publisher.publish(version, stage, epoch=job.epoch)
        job.training.policy_version = version.policy_version
        return done

    async def _save(self, job: _Job) -> Path:
        path: Path = await self._in_thread(_save, job.plan.checkpoint_dir, job.training)
        return path

    async def _export(self, job: _Job, path: Path) -> None:
        await self._in_thread(job.training.export, path)

    async def _in_thread(self, call: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._torch, lambda: call(*args, **keywords))

    def _threadsafe_progress(self, step: int) -> Callable[[str, int, int], None]:
        loop = asyncio.get_running_loop()
        return lambda phase, done, total: loop.call_soon_threadsafe(self._progress, step, phase, done, total)  # type: ignore[return-value]


def _save(folder: Path, training: Training) -> Path:
    return checkpoint.save(folder, training.state())


def _stage(publisher: Publisher, training: Training, version: VersionId) -> Snapshot:
    parameters = training.parameters()
    return publisher.stage(
        version, parameters.tensors, dtypes=parameters.dtypes, aliases=parameters.aliases, files=training.files
    )
