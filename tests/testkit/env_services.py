"""A real environment service on a real gRPC server, with a recording control plane behind it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from testkit.controls import RecordingControl

from env_svc.service import EnvService
from env_svc.settings import EnvSettings
from headrace.service.control_client import ControlClient
from headrace.service.grpc import server
from headrace.wire.environments.v1 import environments_pb2, environments_pb2_grpc


@dataclass
class RunningEnv:
    """The service, where it listens, and what it uploaded."""

    service: EnvService
    address: str
    control: RecordingControl

    def tokens(self, digest: str) -> environments_pb2.TrajectoryTokens:
        return environments_pb2.TrajectoryTokens.FromString(self.control.blobs[digest])


@asynccontextmanager
async def running_env(control: RecordingControl, **settings: object) -> AsyncIterator[RunningEnv]:
    """Serve until the block ends."""
    client = ControlClient(control.address, rpc_timeout_s=2.0)
    given = EnvSettings(control_address=control.address, **settings)
    async with EnvService(given, worker_id="env-0@test", blobs=client) as service:
        host = server()
        environments_pb2_grpc.add_EnvironmentsServicer_to_server(service.servicer, host)
        address = f"127.0.0.1:{host.add_insecure_port('127.0.0.1:0')}"
        await host.start()
        try:
            yield RunningEnv(service, address, control)
        finally:
            await host.stop(0.2)
    await client.close()
