"""A trainer on loopback with a real weight node, and the runner's side of its stream."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testkit.controls import RecordingControl
from testkit.weight_node import RunningNode, running_node

from headrace.service.control_client import ControlClient
from headrace.service.grpc import channel, server
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from headrace.wire.trainer.v1 import trainer_pb2_grpc
from trainer_svc.service import TrainerService
from trainer_svc.servicer import TrainerServicer
from trainer_svc.settings import TrainerSettings

WAIT_S = 30.0
WORKER = "inference-0@i1"


def spec_json(model: Path, **blocks: Any) -> str:
    """A job spec with one task; ``blocks`` replace whole blocks."""
    task = {
        "name": "lake",
        "env": {"entry_point": "env_svc.environments.frozen_lake:FrozenLake"},
        "rewards": [{"env": True}],
    }
    document = {
        "schema": "headrace/v1",
        "name": "test",
        "max_steps": 10,
        "model": {"path": str(model), "max_len": 100},
        "tasks": [task],
        "optimizer": {"lr": 0.01},
        "checkpoint": {"every": 2, "keep_last": 1},
    }
    return json.dumps(document | blocks)


def tokens(n_prompt: int, answer: Sequence[int], version: int = 0, logprob: float = -2.0) -> bytes:
    """A serialized TrajectoryTokens of one turn; prompt ids count from 5."""
    prompt = [5 + place % 20 for place in range(n_prompt)]
    blob = environments_pb2.TrajectoryTokens(
        token_ids=[*prompt, *answer],
        spans=[environments_pb2.TokenSpan(start=n_prompt, n_tokens=len(answer))] if answer else [],
        logprobs=[logprob] * len(answer),
        segments=[common_pb2.Segment(policy_version=version, worker_id=WORKER, weight_digest="d", n_tokens=len(answer))]
        if answer
        else [],
        temperature=1.0,
    )
    return blob.SerializeToString()


@dataclass
class Client:
    """The runner's side: commands out, events in, each wait with a deadline."""

    call: Any
    events: list[pb.TrainerEvent] = field(default_factory=list)
    _seen: int = 0

    async def send(self, **command: Any) -> None:
        await self.call.write(pb.TrainerFrame(commands=[pb.TrainerCommand(**command)]))

    async def expect(self, kind: str) -> Any:
        """The next event of this kind; progress is passed over, any other kind is an error."""
        async with asyncio.timeout(WAIT_S):
            while True:
                while self._seen < len(self.events):
                    event = self.events[self._seen]
                    self._seen += 1
                    got = event.WhichOneof("event")
                    if got == kind:
                        return getattr(event, kind)
                    if got != "progress":
                        raise AssertionError(f"expected {kind}, got {event}")
                frame = await self.call.read()
                self.events.extend(frame.events)

    def close(self) -> None:
        self.call.cancel()


@dataclass
class Rig:
    """Everything that a trainer meets."""

    control: RecordingControl
    node: RunningNode
    service: TrainerService
    stub: Any

    def client(self) -> Client:
        return Client(self.stub.Run())

    async def open(
        self, spec: str, *, epoch: int = 1, restore_step: int | None = None, weights_address: str = ""
    ) -> tuple[Client, Any]:
        client = self.client()
        await client.send(
            open=pb.OpenTraining(
                job_id="job",
                job_epoch=epoch,
                spec_json=spec,
                weights_address=weights_address or self.node.address,
                restore_step=restore_step,
            )
        )
        return client, await client.expect("opened")

    def group(
        self, *rewards: float | None, answers: Sequence[Sequence[int]] | None = None, version: int = 0
    ) -> pb.TrainGroup:
        """A group whose members answered differently, their tokens stored in the control plane."""
        members = []
        for sibling, reward in enumerate(rewards):
            answer = answers[sibling] if answers is not None else [6 + sibling, 4]
            member = pb.TrainMember(
                key=common_pb2.AttemptKey(trajectory_id=f"t{sibling}", attempt=1),
                sibling=sibling,
                token_blob=self.control.put(tokens(6, answer, version)),
                reward=reward,
                weight=1.0,
            )
            members.append(member)
        return pb.TrainGroup(group_id="g", task="lake", members=members)

    def step(
        self, number: int, *groups: pb.TrainGroup, digest: str = "batch", publish: int | None = None
    ) -> pb.TrainStep:
        return pb.TrainStep(
            step=number,
            batch_digest=digest,
            policy_version=number - 1,
            publish_version=number if publish is None else publish,
            groups=groups or [self.group(1.0, 0.0)],
        )


@asynccontextmanager
async def running_trainer(data_dir: Path, kind: type[Any] = TrainerService) -> AsyncIterator[Rig]:
    """A trainer service in this event loop; `kind` is its class."""
    async with (
        RecordingControl() as control,
        running_node() as node,
        _serving(data_dir, control, kind) as (service, address),
    ):
        wire = channel(address)
        try:
            yield Rig(control, node, service, trainer_pb2_grpc.TrainerStub(wire))
        finally:
            await wire.close(None)


@asynccontextmanager
async def _serving(
    data_dir: Path, control: RecordingControl, kind: type[Any]
) -> AsyncIterator[tuple[TrainerService, str]]:
    source = ControlClient(control.address)
    settings = TrainerSettings(data_dir=data_dir, push_timeout_s=20, blob_timeout_s=10)
    service = kind(settings, worker_id="trainer-0@i1", source=source)
    grpc_server = server()
    trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerServicer(service), grpc_server)
    address = f"127.0.0.1:{grpc_server.add_insecure_port('127.0.0.1:0')}"
    await grpc_server.start()
    working = asyncio.ensure_future(service.run())
    try:
        yield service, address
    finally:
        await grpc_server.stop(0)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
        await source.close()
