"""One question to one worker, with a deadline."""

import json
from dataclasses import dataclass

import grpc.aio

from headrace.client.jobspec import EnvBlock
from headrace.service.grpc import channel
from headrace.wire.common.v1.common_pb2 import Fault
from headrace.wire.environments.v1.environments_pb2 import ProbeRequest
from headrace.wire.environments.v1.environments_pb2_grpc import EnvironmentsStub
from headrace.wire.trainer.v1.trainer_pb2 import InspectRequest
from headrace.wire.trainer.v1.trainer_pb2_grpc import TrainerStub


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_known` False: nobody could be asked. Otherwise `fault` is empty where all is well."""

    is_known: bool
    code: str = ""
    fault: str = ""


def _verdict(fault: Fault) -> Verdict:
    return Verdict(True, fault.code, fault.detail or fault.code)


async def probe_environment(address: str, env: EnvBlock, *, timeout_s: float) -> Verdict:
    """Import the environment and reset it once on an env worker."""
    async with channel(address) as link:
        request = ProbeRequest(
            entry_point=env.entry_point,
            config_json=json.dumps(env.config),
            deadline_s=timeout_s * 0.8,
            split="train",
        )
        try:
            answer = await EnvironmentsStub(link).Probe(request, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return Verdict(False)
    return _verdict(answer.fault) if answer.HasField("fault") else Verdict(True)


async def inspect_model(address: str, path: str, *, timeout_s: float) -> Verdict:
    """Read a model directory on a trainer."""
    async with channel(address) as link:
        try:
            answer = await TrainerStub(link).Inspect(InspectRequest(model_path=path), timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return Verdict(False)
    return _verdict(answer.fault) if answer.HasField("fault") else Verdict(True)
