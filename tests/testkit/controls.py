"""The control plane's gRPC side as other processes need it: blobs by digest, rewards where the first write wins."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

from headrace.service.grpc import server
from headrace.wire.control.v1 import control_pb2, control_pb2_grpc

RewardKey = tuple[str, int, str]


@dataclass
class RecordingControl(control_pb2_grpc.ControlServicer):
    """Keeps what it is sent. Rewards are stored under (trajectory, attempt, name); ``n_reports`` counts all."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    rewards: dict[RewardKey, control_pb2.RewardReport] = field(default_factory=dict)
    workers: dict[str, control_pb2.RegisterRequest] = field(default_factory=dict)
    stats: dict[str, dict[str, float]] = field(default_factory=dict)
    n_reports: int = 0
    n_blob_calls: int = 0
    address: str = ""
    _server: Any = None

    async def __aenter__(self) -> "RecordingControl":
        await self.listen(0)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    async def listen(self, port: int) -> None:
        self._server = server()
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def put(self, data: bytes) -> str:
        """Store a blob from the test's side."""
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return digest

    async def Register(self, request: control_pb2.RegisterRequest, context: Any) -> control_pb2.RegisterResponse:
        worker_id = f"{request.name}@{request.incarnation}"
        self.workers[worker_id] = request
        return control_pb2.RegisterResponse(worker_id=worker_id, heartbeat_interval_s=0.2, lapse_after_s=2.0)

    async def Heartbeat(self, request: control_pb2.HeartbeatRequest, context: Any) -> control_pb2.HeartbeatResponse:
        self.stats[request.worker_id] = dict(request.stats)
        return control_pb2.HeartbeatResponse(known=request.worker_id in self.workers)

    async def Deregister(self, request: control_pb2.DeregisterRequest, context: Any) -> control_pb2.DeregisterResponse:
        self.workers.pop(request.worker_id, None)
        return control_pb2.DeregisterResponse()

    async def PutBlobs(self, request: control_pb2.PutBlobsRequest, context: Any) -> control_pb2.PutBlobsResponse:
        self.n_blob_calls += 1
        for blob in request.blobs:
            assert hashlib.sha256(blob.data).hexdigest() == blob.digest
            self.blobs[blob.digest] = blob.data
        return control_pb2.PutBlobsResponse()

    async def GetBlobs(self, request: control_pb2.GetBlobsRequest, context: Any) -> control_pb2.GetBlobsResponse:
        found = [(digest, self.blobs[digest]) for digest in request.digests if digest in self.blobs]
        return control_pb2.GetBlobsResponse(blobs=[{"digest": digest, "data": data} for digest, data in found])

    async def ReportRewards(
        self, request: control_pb2.ReportRewardsRequest, context: Any
    ) -> control_pb2.ReportRewardsResponse:
        accepted = []
        for report in request.reports:
            self.n_reports += 1
            key = (report.key.trajectory_id, report.key.attempt, report.reward_name)
            accepted.append(key not in self.rewards)
            self.rewards.setdefault(key, report)
        return control_pb2.ReportRewardsResponse(accepted=accepted)
