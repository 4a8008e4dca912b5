"""A strict, scripted control plane: answers registrations and heartbeats, and records what it was told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from headrace.service.grpc import server
from headrace.wire.control.v1 import control_pb2, control_pb2_grpc


@dataclass
class ScriptedControl(control_pb2_grpc.ControlServicer):
    """Knows the workers that registered since it was made; `draining` are told to drain, `refusing` refuses all."""

    refusing: grpc.StatusCode | None = None
    draining: set[str] = field(default_factory=set)
    registered: list[control_pb2.RegisterRequest] = field(default_factory=list)
    heartbeats: list[control_pb2.HeartbeatRequest] = field(default_factory=list)
    deregistered: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    put_calls: int = 0

    async def Register(self, request: control_pb2.RegisterRequest, context: Any) -> control_pb2.RegisterResponse:
        if self.refusing is not None:
            await context.abort(self.refusing, "told to refuse")
        self.registered.append(request)
        worker_id = f"{request.name}@{request.incarnation}"
        return control_pb2.RegisterResponse(worker_id=worker_id, heartbeat_interval_s=0.05, lapse_after_s=1)

    async def Heartbeat(self, request: control_pb2.HeartbeatRequest, context: Any) -> control_pb2.HeartbeatResponse:
        self.heartbeats.append(request)
        known = {f"{r.name}@{r.incarnation}" for r in self.registered}
        return control_pb2.HeartbeatResponse(
            known=request.worker_id in known, drain=request.worker_id.partition("@")[0] in self.draining
        )

    async def Deregister(self, request: control_pb2.DeregisterRequest, context: Any) -> control_pb2.DeregisterResponse:
        self.deregistered.append(request.worker_id)
        return control_pb2.DeregisterResponse()

    async def PutBlobs(self, request: control_pb2.PutBlobsRequest, context: Any) -> control_pb2.PutBlobsResponse:
        self.put_calls += 1
        self.blobs.update({blob.digest: blob.data for blob in request.blobs})
        return control_pb2.PutBlobsResponse()

    async def GetBlobs(self, request: control_pb2.GetBlobsRequest, context: Any) -> control_pb2.GetBlobsResponse:
        found = [d for d in request.digests if d in self.blobs]
        return control_pb2.GetBlobsResponse(blobs=[{"digest": d, "data": self.blobs[d]} for d in found])


@asynccontextmanager
async def serving(control: ScriptedControl, address: str = "127.0.0.1:0") -> AsyncIterator[str]:
    """Serve it at `address`; gives the address it got."""
    grpc_server = server()
    control_pb2_grpc.add_ControlServicer_to_server(control, grpc_server)
    port = grpc_server.add_insecure_port(address)
    await grpc_server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await grpc_server.stop(grace=0)
