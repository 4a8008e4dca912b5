"""The scripted trainer: no torch and no learning, step time from a formula, everything else as the real one does it.

    step_s = t0 + per_token x (tokens of the batch)

It reads its numbers from the model's config (`scripted.trainer`), fetches every blob of its batch, and publishes a
small vector through the weight store, whose contents are a function of the job's seed and the steps made. So whatever
is around it can be tested and measured without a model.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.client.jobspec import JobSpec, parse_json
from headrace.client.weights import manifest_to_wire
from headrace.core.seeds import derive
from headrace.core.weights.errors import WeightsError
from headrace.core.weights.manifest import VersionId
from headrace.service.logging import get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc import blobs
from trainer_svc.errors import ModelUnusable, NotOpen, SpecUnusable, StaleEpoch, StepConflict, TrainingError
from trainer_svc.settings import TrainerSettings
from trainer_svc.streams import Stream
from weightstore.publisher import Published, Publisher

log = get_logger(__name__)

PUSH_RETRY_S = 0.3
PUSH_TRY_S = 10.0
CONFIG_FILE = "config.json"
SMALL_FILES = (".json", ".jinja", ".txt")


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """`scripted.trainer` of a model's config: seconds, and the size of the vector that stands for the parameters."""

    t0_s: float = 0.0
    per_token_s: float = 0.0
    n_parameters: int = 1024

    def step_s(self, n_tokens: int) -> float:
        return self.t0_s + self.per_token_s * n_tokens


@dataclass(slots=True)
class _Step:
    """The step that is being made, or the last one made, part by part."""

    step: int
    digests: list[str] = field(default_factory=list)
    n_parts: int = 1
    n_tokens: int = 0
    n_rows: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    answers: dict[int, pb.StepFinished] = field(default_factory=dict)

    @property
    def is_made(self) -> bool:
        return len(self.digests) == self.n_parts


@dataclass(slots=True)
class _Job:
    job_id: str
    epoch: int
    spec: JobSpec
    model: ScriptedModel
    files: dict[str, bytes]
    config: dict[str, Any]
    folder: Path
    publisher: Publisher
    weights_address: str
    step: int = 0
    policy_version: int = 0
    checkpoint_step: int = 0
    record: _Step | None = None
    published: dict[int, Published] = field(default_factory=dict)


def inspect(path: str) -> tuple[ScriptedModel, dict[str, Any]]:
    """What a scripted model directory says, and its whole config. Raises ModelUnusable."""
    try:
        config = json.loads((Path(path) / CONFIG_FILE).read_text())
        given = (config.get("scripted") or {}).get("trainer") or {}
        known = {field.name for field in fields(ScriptedModel)}
        if unknown := sorted(set(given) - known):
            raise ModelUnusable(f"model.path {path!r}: scripted.trainer.{unknown[0]} is none of {', '.join(known)}")
        return ScriptedModel(**given), config
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelUnusable(
            f"model.path {path!r} has no {CONFIG_FILE} that a scripted trainer can read: {error}"
        ) from error


class ScriptedTrainer:
    """Holds at most one job; the counterpart of `trainer_svc.service.TrainerService`, with the same contract."""

    def __init__(self, settings: TrainerSettings, *, worker_id: str, source: blobs.BlobSource) -> None:
        self._settings, self._worker_id, self._source = settings, worker_id, source
        self._commands: asyncio.Queue[tuple[Stream, pb.TrainerCommand]] = asyncio.Queue()
        self._job: _Job | None = None
        self._stream: Stream | None = None

    async def submit(self, stream: Stream, command: pb.TrainerCommand) -> None:
        """Queue a command; an open that only attaches is answered at once."""
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
                await self._perform(*await self._commands.get())
        finally:
            await self._forget()

    def stats(self) -> dict[str, float]:
        """For heartbeats."""
        return {"is_busy": float(self._job is not None), "step": float(self._job.step if self._job else 0)}

    def describe(self, path: str) -> pb.InspectResponse:
        """The answer to Inspect."""
        try:
            _, config = inspect(path)
        except ModelUnusable as error:
            return pb.InspectResponse(fault=common_pb2.Fault(code=error.code, kind="infra", detail=str(error)))
        return pb.InspectResponse(
            architecture="Scripted",
            vocab_size=int(config.get("vocab_size", 0)),
            max_len=int(config.get("max_position_embeddings", 0)),
        )

    async def _perform(self, stream: Stream, command: pb.TrainerCommand) -> None:
        kind = command.WhichOneof("command") or ""
        try:
            await self._dispatch(stream, kind, command)
        except (TrainingError, WeightsError) as error:
            log.warning("command_failed", command=kind, code=error.code, reason=str(error))
            fault = common_pb2.Fault(code=error.code, kind="infra", detail=str(error), retryable=error.retryable)
            step = command.train.step if kind == "train" else 0
            stream.emit(pb.TrainerEvent(fault=pb.TrainingFault(fault=fault, step=step)))

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
                self._checkpoint(job)
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

    # -- opening -------------------------------------------------------------------------------------------------------

    def _attach(self, stream: Stream, command: pb.OpenTraining) -> bool:
        job, wanted = self._job, command.restore_step
        if job is None or job.job_id != command.job_id or command.job_epoch < job.epoch:
            return False
        is_next = job.record is not None and job.record.step == wanted + 1 == job.step
        if not is_next and job.step != wanted:
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
        try:
            spec = parse_json(command.spec_json).resolve()
        except ValueError as error:
            raise SpecUnusable(f"spec_json does not parse: {error}") from error
        model, config = inspect(spec.model.path)
        root = Path(spec.checkpoint.path) if spec.checkpoint.path else self._settings.data_dir
        publisher = Publisher([command.weights_address], bucket_bytes=int(spec.weights.bucket_mb * (1 << 20)))
        job = _Job(
            command.job_id, command.job_epoch, spec, model, _small_files(Path(spec.model.path)), config,
            root / command.job_id / "scripted", publisher, command.weights_address,
        )  # fmt: skip
        if command.HasField("restore_step"):
            _restore(job, command.restore_step)
        self._job = job
        log.info("opened", job_id=job.job_id, step=job.step)
        self._opened(job, job.step, is_attached=False)

    def _opened(self, job: _Job, step: int, *, is_attached: bool) -> None:
        window = int(job.config.get("max_position_embeddings") or job.spec.model.max_len)
        opened = pb.TrainingOpened(
            job_epoch=job.epoch,
            worker_id=self._worker_id,
            step=step,
            policy_version=job.policy_version,
            model_files=job.files,
            n_parameters=job.model.n_parameters,
            vocab_size=int(job.config.get("vocab_size", 0)),
            max_len=min(job.spec.model.max_len, window),
            is_attached=is_attached,
        )
        self._emit(opened=opened)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _train(self, job: _Job, command: pb.TrainStep) -> None:
        record = job.record
        if record is None or record.step != command.step:
            record = self._begin(job, command)
        await self._add_part(job, record, command)
        if not record.is_made or command.part + 1 < record.n_parts:
            return
        if command.publish_version not in record.answers:
            parent = command.policy_version
            version = VersionId(job.job_id, command.publish_version, job.epoch, parent, command.step)
            published = await self._publish(job, version)
            record.answers[command.publish_version] = _finished(job, record, published)
        self._emit(finished=record.answers[command.publish_version])
        every = job.spec.checkpoint.every
        if every and command.step % every == 0 and job.checkpoint_step != command.step:
            self._checkpoint(job)

    def _begin(self, job: _Job, command: pb.TrainStep) -> _Step:
        if command.step != job.step + 1 or (job.record is not None and not job.record.is_made):
            raise StepConflict(f"parameters stand at step {job.step}; step {command.step} does not follow")
        job.record = _Step(command.step, n_parts=max(1, command.n_parts))
        return job.record

    async def _add_part(self, job: _Job, record: _Step, command: pb.TrainStep) -> None:
        """Train on a part once; asked for again, it must be the same one."""
        if command.part < len(record.digests):
            if record.digests[command.part] != command.batch_digest:
                raise StepConflict(f"part {command.part} of step {command.step} was made from another batch")
            return
        if command.part > len(record.digests):
            raise StepConflict(f"part {command.part} of step {command.step} came after {len(record.digests)} parts")
        started = time.monotonic()
        members = [member for group in command.groups for member in group.members]
        found = await blobs.fetch(self._source, [m.token_blob for m in members], self._settings.blob_timeout_s)
        n_tokens = sum(
            len(environments_pb2.TrajectoryTokens.FromString(found[member.token_blob]).logprobs) for member in members
        )
        fetched = time.monotonic()
        self._emit(progress=pb.StepProgress(step=command.step, phase="update", done=command.part, total=record.n_parts))
        share = replace(job.model, t0_s=job.model.t0_s / record.n_parts)
        await asyncio.sleep(share.step_s(n_tokens))
        record.digests.append(command.batch_digest)
        record.n_tokens += n_tokens
        record.n_rows += len(members)
        for name, seconds in (("fetch", fetched - started), ("update", time.monotonic() - fetched)):
            record.seconds[name] = record.seconds.get(name, 0.0) + seconds
        if record.is_made:
            job.step = record.step

    # -- publication and checkpoints -----------------------------------------------------------------------------------

    async def _publish_state(self, job: _Job, command: pb.PublishState) -> None:
        if command.step != job.step:
            raise StepConflict(f"parameters stand at step {job.step}, not {command.step}")
        parent = command.parent_version if command.HasField("parent_version") else None
        version = VersionId(job.job_id, command.policy_version, job.epoch, parent, command.step)
        done = await self._publish(job, version)
        published = pb.StatePublished(
            policy_version=command.policy_version,
            manifest=manifest_to_wire(done.manifest).SerializeToString(),
            push_s=done.report.push_s,
            publication_stall_s=done.report.publication_stall_s,
            bytes_moved=done.report.bytes_moved,
        )
        self._emit(published=published)

    async def _publish(self, job: _Job, version: VersionId) -> Published:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.push_timeout_s
        address = job.weights_address
        while True:
            try:
                if job.weights_address != address:
                    address = job.weights_address
                    await job.publisher.move_to([address])
                done = await _push(job, version)
                break
            except WeightsError as error:
                if not error.retryable or loop.time() + PUSH_RETRY_S >= end:
                    raise
                log.warning("push_failed", version=version.policy_version, code=error.code, reason=str(error))
            await asyncio.sleep(PUSH_RETRY_S)
        job.policy_version = version.policy_version
        job.published = {version.policy_version: done}
        return done

    def _checkpoint(self, job: _Job) -> None:
        path = _save(job)
        job.checkpoint_step = job.step
        self._emit(checkpoint=pb.CheckpointSaved(step=job.step, path=str(path)))

    async def _close(self, job: _Job, export_path: str) -> None:
        if export_path:
            await asyncio.to_thread(_export, Path(export_path), job.files)
        await self._forget()
        self._emit(closed=pb.TrainingClosed(export_path=export_path))

    async def _forget(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job.publisher.close()

    def _emit(self, **event: Any) -> None:
        if self._stream is not None:
            self._stream.emit(pb.TrainerEvent(**event))


async def _push(job: _Job, version: VersionId) -> Published:
    """The same version again comes from its snapshot, so that a node that lost its bytes gets the same ones."""
    known = job.published.get(version.policy_version)
    if known is not None:
        try:
            return await job.publisher.republish(known.manifest, epoch=version.epoch, deadline_s=PUSH_TRY_S)
        except LookupError:
            pass
    return await job.publisher.publish(version, {"theta": parameters(job)}, files=job.files, deadline_s=PUSH_TRY_S)


def parameters(job: _Job) -> "np.ndarray[Any, Any]":
    """Shape [n_parameters], float32: what the parameters are after the job's steps; no two steps agree."""
    seed = derive("scripted", job.spec.seed, job.step)
    return np.random.default_rng(seed).standard_normal(job.model.n_parameters, dtype=np.float32)


def _finished(job: _Job, record: _Step, done: Published) -> pb.StepFinished:
    pushed = {"push": done.report.push_s, "publication_stall": done.report.publication_stall_s}
    return pb.StepFinished(
        step=record.step,
        batch_digest=record.digests[-1],
        publish_version=done.manifest.version.policy_version,
        manifest=manifest_to_wire(done.manifest).SerializeToString(),
        metrics={"n_loss_tokens": float(record.n_tokens), "n_rows": float(record.n_rows)},
        seconds=record.seconds | pushed,
        bytes_moved=done.report.bytes_moved,
        checkpoint_step=job.checkpoint_step,
    )


def _small_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.suffix in SMALL_FILES}


def _export(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    job_id: str
    step: int
    policy_version: int


def _save(job: _Job) -> Path:
    job.folder.mkdir(parents=True, exist_ok=True)
    path = job.folder / f"step-{job.step:08d}.json"
    draft = path.with_suffix(".partial")
    draft.write_text(json.dumps(asdict(_Checkpoint(job.job_id, job.step, job.policy_version))))
    draft.replace(path)
    for old in sorted(job.folder.glob("step-*.json"))[: -job.spec.checkpoint.keep_last]:
        old.unlink()
    return path


def _restore(job: _Job, at_or_before: int) -> None:
    """The newest checkpoint at or before a step; without one the job stands at its beginning."""
    for path in sorted(job.folder.glob("step-*.json"), reverse=True):
        state = _Checkpoint(**json.loads(path.read_text()))
        if state.step <= at_or_before:
            job.step, job.policy_version, job.checkpoint_step = state.step, state.policy_version, state.step
            return
