"""The runner's streams: one to each environment process, one to the proxy, one to the trainer.

A link reopens by itself and says first what its peer has to know; what arrives becomes events in the inbox. Commands
sent while it is down are dropped: the machine says again what still matters when the peer reports itself.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import grpc.aio

from control_plane.runner.turn import StoredManifest
from headrace.client.assignments import outcome_from_wire
from headrace.client.weights import manifest_from_wire
from headrace.core.job import events as did
from headrace.service.grpc import channel
from headrace.service.streams import Frames, StreamClient
from headrace.wire.environments.v1 import environments_pb2 as env_pb
from headrace.wire.environments.v1 import environments_pb2_grpc as env_rpc
from headrace.wire.inference.v1 import inference_pb2 as inf_pb
from headrace.wire.inference.v1 import inference_pb2_grpc as inf_rpc
from headrace.wire.trainer.v1 import trainer_pb2 as trn_pb
from headrace.wire.trainer.v1 import trainer_pb2_grpc as trn_rpc


class Listener(Protocol):
    """What a runner does with what its links hear, and what they ask it when they open."""

    def put(self, event: did.Event) -> None: ...

    def keep_manifest(self, policy_version: int, manifest: StoredManifest) -> None: ...

    def trainer_opened(self, opened: trn_pb.TrainingOpened) -> None: ...

    def trainer_progressed(self, progress: trn_pb.StepProgress) -> None: ...

    def weights_moved(self, moved: inf_pb.WeightsPrefetched | inf_pb.WeightsUpdated) -> None: ...

    def worker_reported(self, status: inf_pb.WorkerStatus) -> None: ...

    def routing_reported(self, stats: inf_pb.RoutingStats) -> None: ...

    def version_wanted(self, policy_version: int) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def restore_step(self) -> int | None: ...

    def is_paused(self) -> bool: ...

    def env_ids(self) -> set[str]: ...


_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "refused_by_service",
    grpc.StatusCode.UNIMPLEMENTED: "service_too_old",
}


class Link:
    """One stream to one incarnation of a process, run as a task of its own."""

    def __init__(self, worker_id: str, address: str, listener: Listener) -> None:
        self.worker_id = worker_id
        self._listener = listener
        self.address = address
        self._channel = channel(address)
        self._task: asyncio.Task[None] | None = None
        self.stream: StreamClient[Any, Any]

    def start(self, on_error: Callable[[BaseException], None]) -> None:
        """`on_error` hears of a failure of our own handling; broken streams are reopened without a word."""
        self._task = asyncio.create_task(self.stream.run(), name=f"link {self.worker_id}")

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                on_error(error)

        self._task.add_done_callback(ended)

    async def _on_close(self, reason: Exception | None) -> None:
        """A peer that refuses the job says why; anything else is a broken stream, which is opened again."""
        if isinstance(reason, grpc.aio.AioRpcError) and reason.code() in _REFUSALS:
            self._listener.put(did.TrainingFailed(_REFUSALS[reason.code()], f"{self.worker_id}: {reason.details()}"))

    def send(self, commands: Iterable[Any]) -> None:
        self.stream.send_nowait(*commands)

    async def close(self, *, linger_s: float = 0.0) -> None:
        """With `linger_s` what waits is still written."""
        if self._task is not None:
            if linger_s:
                self.stream.close()
                await asyncio.wait([self._task], timeout=linger_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close(None)


class EnvLink(Link):
    """To an environment process. `opening` gives OpenJob and SetProxy as they are at that moment."""

    def __init__(
        self,
        worker_id: str,
        address: str,
        listener: Listener,
        opening: Callable[[], Iterable[env_pb.AssignmentCommand]],
    ) -> None:
        super().__init__(worker_id, address, listener)
        self._opening = opening
        stub = env_rpc.EnvironmentsStub(self._channel)
        self.stream = StreamClient(
            stub.Run,
            Frames(
                lambda items: env_pb.AssignmentFrame(commands=items),
                lambda frame: frame.outcomes,
                lambda item: item.ByteSize(),
            ),
            on_item=self._on_item,
            on_open=self._on_open,
            on_close=self._on_close,
            name=f"env {worker_id}",
        )

    async def _on_open(self) -> Iterable[env_pb.AssignmentCommand]:
        return list(self._opening())

    async def _on_item(self, outcome: env_pb.Outcome) -> None:
        self._listener.put(outcome_from_wire(outcome, self.worker_id))


class ProxyLink(Link):
    """To the LLM proxy. `opening` gives OpenRollout and SetWorkers."""

    def __init__(
        self,
        worker_id: str,
        address: str,
        listener: Listener,
        opening: Callable[[], Iterable[inf_pb.ManageCommand]],
    ) -> None:
        super().__init__(worker_id, address, listener)
        self._opening = opening
        self.generate = inf_rpc.InferenceStub(self._channel).Generate
        self.stream = StreamClient(
            inf_rpc.InferenceStub(self._channel).Manage,
            Frames(lambda items: inf_pb.ManageFrame(commands=items), lambda frame: frame.events),
            on_item=self._on_item,
            on_open=self._on_open,
            on_close=self._on_close,
            name=f"proxy {worker_id}",
        )

    async def _on_open(self) -> Iterable[inf_pb.ManageCommand]:
        return list(self._opening())

    async def _on_item(self, event: inf_pb.ManageEvent) -> None:
        listener = self._listener
        match event.WhichOneof("event"):
            case "opened":
                listener.put(did.ProxyOpened(self.worker_id))
            case "worker":
                self._on_worker(event.worker)
            case "prefetched":
                moved = event.prefetched
                listener.weights_moved(moved)
                listener.put(did.WeightsPrefetched(moved.worker_id, moved.policy_version, _fault(moved)))
            case "updated":
                listener.weights_moved(event.updated)
                updated = event.updated
                listener.put(did.WeightsUpdated(updated.worker_id, updated.policy_version, _fault(updated)))
            case "stats":
                listener.routing_reported(event.stats)
            case "wanted":
                listener.version_wanted(event.wanted.policy_version)

    def _on_worker(self, status: inf_pb.WorkerStatus) -> None:
        serving = status.serving_version if status.HasField("serving_version") else None
        self._listener.worker_reported(status)
        self._listener.put(did.WorkerReported(status.worker_id, serving, frozenset(status.resident_versions)))


class TrainerLink(Link):
    """To the trainer. `opening` gives OpenTraining."""

    def __init__(
        self,
        worker_id: str,
        address: str,
        listener: Listener,
        opening: Callable[[], Iterable[trn_pb.TrainerCommand]],
    ) -> None:
        super().__init__(worker_id, address, listener)
        self._opening = opening
        stub = trn_rpc.TrainerStub(self._channel)
        self.stream = StreamClient(
            stub.Run,
            Frames(
                lambda items: trn_pb.TrainerFrame(commands=items),
                lambda frame: frame.events,
                lambda item: item.ByteSize(),
            ),
            on_item=self._on_item,
            on_open=self._on_open,
            on_close=self._on_close,
            name=f"trainer {worker_id}",
        )

    async def _on_open(self) -> Iterable[trn_pb.TrainerCommand]:
        return list(self._opening())

    async def _on_item(self, event: trn_pb.TrainerEvent) -> None:
        listener = self._listener
        match event.WhichOneof("event"):
            case "opened":
                listener.trainer_opened(event.opened)
                opened = event.opened
                listener.put(did.TrainerOpened(self.worker_id, opened.step, opened.is_attached))
            case "published":
                self._on_published(event.published)
            case "finished":
                self._on_finished(event.finished)
            case "progress":
                listener.trainer_progressed(event.progress)
            case "closed":
                listener.put(did.TrainingClosed(event.closed.export_path))
            case "fault":
                fault = event.fault.fault
                listener.put(did.TrainingFailed(fault.code or "trainer", fault.detail, fault.retryable))

    def _on_published(self, published: trn_pb.StatePublished) -> None:
        digest, total_bytes = self._keep(published.policy_version, published.manifest)
        seconds = {"push": published.push_s, "publication_stall": published.publication_stall_s}
        self._listener.put(did.StatePublished(published.policy_version, digest, total_bytes, seconds))

    def _on_finished(self, finished: trn_pb.StepFinished) -> None:
        digest, total_bytes = self._keep(finished.publish_version, finished.manifest)
        self._listener.put(
            did.StepFinished(
                finished.step,
                finished.batch_digest,
                finished.publish_version,
                digest,
                total_bytes,
                {**finished.metrics, "is_skipped": float(finished.is_skipped)},
                dict(finished.seconds),
                finished.checkpoint_step,
            )
        )

    def _keep(self, policy_version: int, data: bytes) -> tuple[str, int]:
        manifest = manifest_from_wire(data)
        self._listener.keep_manifest(policy_version, StoredManifest(data, manifest.digest))
        return manifest.digest, manifest.total_bytes


def _fault(moved: inf_pb.WeightsPrefetched | inf_pb.WeightsUpdated) -> str:
    return f"{moved.fault.code}: {moved.fault.detail}" if moved.HasField("fault") else ""


def policy_json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
