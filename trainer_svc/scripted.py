"""The scripted trainer: no torch and no learning, step time from a formula, everything else as the real one does it.

    step_s = t0 + per_token x (tokens of the batch)

It reads its numbers from the model's config (`scripted.trainer`), fetches every blob of its batch, and publishes a
small vector through the weight store, whose contents are a function of the job's seed and the steps made. So whatever
is around it can be tested and measured without a model.
"""

import asyncio
import json
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.client.jobspec import JobSpec, parse_json
from headrace.core.seeds import derive
from headrace.core.weights.manifest import VersionId
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc import blobs
from trainer_svc.commands import CommandLoop, HeldJob
from trainer_svc.errors import ModelUnusable, SpecUnusable
from trainer_svc.parts import PartResult
from trainer_svc.publication import Publication, VersionPublisher
from trainer_svc.results import StepResult
from weightstore.publisher import Publisher
from weightstore.snapshot import Snapshot

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


@dataclass(slots=True, kw_only=True)
class _Job(HeldJob):
    spec: JobSpec
    model: ScriptedModel
    files: dict[str, bytes]
    config: dict[str, Any]
    folder: Path
    steps_made: int = 0
    policy_version: int = 0

    @property
    def step(self) -> int:
        return self.steps_made


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


class ScriptedTrainer(CommandLoop[_Job]):
    """The counterpart of `trainer_svc.service.TrainerService`."""

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

    async def _load(self, command: pb.OpenTraining) -> _Job:
        try:
            spec = parse_json(command.spec_json).resolve()
        except ValueError as error:
            raise SpecUnusable(f"spec_json does not parse: {error}") from error
        model, config = inspect(spec.model.path)
        root = Path(spec.checkpoint.path) if spec.checkpoint.path else self._settings.data_dir
        publisher = VersionPublisher(
            command.weights_address,
            bucket_bytes=int(spec.weights.bucket_mb * (1 << 20)),
            timeout_s=self._settings.push_timeout_s,
        )
        job = _Job(
            job_id=command.job_id,
            epoch=command.job_epoch,
            publisher=publisher,
            checkpoint_every=spec.checkpoint.every,
            spec=spec,
            model=model,
            files=_small_files(Path(spec.model.path)),
            config=config,
            folder=root / command.job_id / "scripted",
        )
        if command.HasField("restore_step"):
            _restore(job, command.restore_step)
        return job

    def _opened(self, job: _Job) -> pb.TrainingOpened:
        window = int(job.config.get("max_position_embeddings") or job.spec.model.max_len)
        return pb.TrainingOpened(
            policy_version=job.policy_version,
            model_files=job.files,
            n_parameters=job.model.n_parameters,
            vocab_size=int(job.config.get("vocab_size", 0)),
            max_len=min(job.spec.model.max_len, window),
        )

    async def _make_part(self, job: _Job, command: pb.TrainStep) -> PartResult:
        started = time.monotonic()
        n_parts = max(1, command.n_parts)
        members = [member for group in command.groups for member in group.members]
        found = await blobs.fetch(self._source, [m.token_blob for m in members], self._settings.blob_timeout_s)
        n_tokens = sum(
            len(environments_pb2.TrajectoryTokens.FromString(found[member.token_blob]).logprobs) for member in members
        )
        fetched = time.monotonic()
        self._progress(command.step, "update", command.part, n_parts)
        share = replace(job.model, t0_s=job.model.t0_s / n_parts)
        await asyncio.sleep(share.step_s(n_tokens))
        if command.part == n_parts - 1:
            job.steps_made = command.step
        seconds = {"fetch": fetched - started, "update": time.monotonic() - fetched}
        metrics = {"n_loss_tokens": float(n_tokens), "n_rows": float(len(members))}
        return PartResult(command.part, command.batch_digest, StepResult(metrics=metrics), seconds)

    async def _push(self, job: _Job, version: VersionId) -> Publication:
        async def stage(publisher: Publisher) -> Snapshot:
            return await asyncio.to_thread(publisher.stage, version, {"theta": parameters(job)}, files=job.files)

        done = await job.publisher.publish(version, stage, epoch=job.epoch)
        job.policy_version = version.policy_version
        return done

    async def _save(self, job: _Job) -> Path:
        return _save(job)

    async def _export(self, job: _Job, path: Path) -> None:
        await asyncio.to_thread(_export, path, job.files)


def parameters(job: _Job) -> "np.ndarray[Any, Any]":
    """Shape [n_parameters], float32: what the parameters are after the job's steps; no two steps agree."""
    seed = derive("scripted", job.spec.seed, job.step)
    return np.random.default_rng(seed).standard_normal(job.model.n_parameters, dtype=np.float32)


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
            job.steps_made, job.policy_version, job.checkpoint_step = state.step, state.policy_version, state.step
            return
