"""Control, as every other process sees it: wire values in, services called, wire values out."""

import re
from functools import partial
from typing import Any

import grpc.aio

from control_plane.blobs import service as blobs
from control_plane.blobs.codec import WrongDigest
from control_plane.blobs.service import TooMuch
from control_plane.context import Context
from control_plane.http.problems import ProblemError
from control_plane.rewards import service as rewards
from control_plane.rewards.service import Report
from control_plane.rpc.checks import worker_row
from control_plane.rpc.errors import answered
from control_plane.text_safety import safe_numbers, safe_text, safe_texts
from control_plane.workers import service as workers
from control_plane.workers.heartbeats import Heartbeats
from headrace.wire.control.v1 import control_pb2 as pb
from headrace.wire.control.v1.control_pb2_grpc import ControlServicer as Base

Call = grpc.aio.ServicerContext[Any, Any]
_DIGEST = re.compile(r"^[0-9a-f]{64}$")


class ControlServicer(Base):
    """One per process; requests are independent of each other."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heartbeats = Heartbeats(partial(workers.write_beats, context))

    @answered
    async def Register(self, request: pb.RegisterRequest, context: Call) -> pb.RegisterResponse:
        row = worker_row(request)
        try:
            await workers.register(self._context, row)
        except workers.Replaced as error:
            raise ProblemError(409, "replaced", str(error)) from error
        settings = self._context.settings
        return pb.RegisterResponse(
            worker_id=str(row["worker_id"]),
            heartbeat_interval_s=settings.heartbeat_interval_s,
            lapse_after_s=settings.lapse_after_s,
        )

    @answered
    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Call) -> pb.HeartbeatResponse:
        stats: dict[str, Any] = {**safe_texts(request.state), **safe_numbers(request.stats)}
        is_draining = await self._heartbeats.beat(safe_text(request.worker_id, limit=300), stats)
        return pb.HeartbeatResponse(known=is_draining is not None, drain=bool(is_draining))

    @answered
    async def Deregister(self, request: pb.DeregisterRequest, context: Call) -> pb.DeregisterResponse:
        await workers.deregister(self._context, safe_text(request.worker_id, limit=300))
        return pb.DeregisterResponse()

    @answered
    async def ReportRewards(self, request: pb.ReportRewardsRequest, context: Call) -> pb.ReportRewardsResponse:
        accepted = await rewards.report(self._context, [_report(item) for item in request.reports])
        return pb.ReportRewardsResponse(accepted=accepted)

    @answered
    async def PutBlobs(self, request: pb.PutBlobsRequest, context: Call) -> pb.PutBlobsResponse:
        try:
            await blobs.store(self._context, [(blob.digest, blob.data) for blob in request.blobs])
        except WrongDigest as error:
            raise ProblemError(422, "wrong_digest", str(error)) from error
        return pb.PutBlobsResponse()

    @answered
    async def GetBlobs(self, request: pb.GetBlobsRequest, context: Call) -> pb.GetBlobsResponse:
        digests = [digest for digest in request.digests if _DIGEST.match(digest)]
        try:
            async with self._context.database.connect() as connection:
                found = await blobs.fetch(connection, digests)
        except TooMuch as error:
            raise ProblemError(422, "answer_too_large", str(error)) from error
        answer = pb.GetBlobsResponse()
        for digest, data in found.items():
            answer.blobs.add(digest=digest, data=data)
        return answer


def _report(item: pb.RewardReport) -> Report:
    fault = {}
    if item.HasField("fault"):
        fault = {
            "code": safe_text(item.fault.code, limit=200),
            "kind": safe_text(item.fault.kind, limit=200),
            "detail": safe_text(item.fault.detail),
            "retryable": item.fault.retryable,
        }
    return Report(
        trajectory_id=safe_text(item.key.trajectory_id, limit=300),
        attempt=item.key.attempt & 0x7FFFFFFF,
        job_id=safe_text(item.job_id, limit=300),
        reward_name=safe_text(item.reward_name, limit=300),
        try_number=getattr(item, "try") & 0x7FFFFFFF,
        score=item.score if item.HasField("score") else None,
        components=dict(item.components),
        fault=fault,
        grader_s=item.grader_s,
        queue_s=item.queue_s,
        worker_id=item.worker_id,
    )
