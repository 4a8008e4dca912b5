"""Strict scripted Environments.Probe and Trainer.Inspect: an answer per question, an error for any other."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from headrace.service.grpc import server
from headrace.wire.common.v1.common_pb2 import Fault
from headrace.wire.environments.v1 import environments_pb2 as env_pb
from headrace.wire.environments.v1 import environments_pb2_grpc as env_grpc
from headrace.wire.trainer.v1 import trainer_pb2 as trainer_pb
from headrace.wire.trainer.v1 import trainer_pb2_grpc as trainer_grpc


class _Environments(env_grpc.EnvironmentsServicer):
    def __init__(self, answers: Mapping[str, Fault | None]) -> None:
        self._answers = answers

    async def Probe(self, request: env_pb.ProbeRequest, context: Any) -> env_pb.ProbeResponse:
        assert request.deadline_s > 0
        return env_pb.ProbeResponse(fault=self._answers[request.entry_point])


class _Trainer(trainer_grpc.TrainerServicer):
    def __init__(self, answers: Mapping[str, Fault | None]) -> None:
        self._answers = answers

    async def Inspect(self, request: trainer_pb.InspectRequest, context: Any) -> trainer_pb.InspectResponse:
        return trainer_pb.InspectResponse(fault=self._answers[request.model_path])


@asynccontextmanager
async def probed_services(
    environments: Mapping[str, Fault | None], models: Mapping[str, Fault | None]
) -> AsyncIterator[str]:
    """Address of a server that answers for these environments and models."""
    services = server()
    env_grpc.add_EnvironmentsServicer_to_server(_Environments(environments), services)
    trainer_grpc.add_TrainerServicer_to_server(_Trainer(models), services)
    port = services.add_insecure_port("127.0.0.1:0")
    await services.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await services.stop(0)
