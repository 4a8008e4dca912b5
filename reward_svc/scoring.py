"""One batch: fetch the documents, grade item by item, report. The broker's message is acknowledged after this.

An item's failure is that item's report; it never fails the batch.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.client.rewards import RewardBatch, RewardItem
from headrace.service.logging import bound_ids, get_logger
from headrace.wire.common.v1 import common_pb2
from headrace.wire.control.v1 import control_pb2
from reward_svc.call import GraderFault, Score
from reward_svc.grader_process import GraderProcess
from reward_svc.outgoing import LINGER_S, Outgoing
from reward_svc.tally import Tally

MAX_DETAIL_CHARACTERS = 2000
INFRA_CODES = ("blob_missing", "crashed")

log = get_logger(__name__)


class Control(Protocol):
    """What scoring needs of the control plane."""

    worker_id: str

    def get_blobs(self, address: str, digests: Sequence[str]) -> dict[str, bytes]: ...
    def report(self, address: str, reports: Sequence[control_pb2.RewardReport]) -> list[bool]: ...


class Scorer:
    """Scores batches. Each thread that uses it has a grader process of its own."""

    def __init__(
        self, control: Control, tally: Tally, *, grader_memory_mb: int = 0, linger_s: float = LINGER_S
    ) -> None:
        self._control, self._tally = control, tally
        self._grader_memory_mb, self._linger_s = grader_memory_mb, linger_s
        self._local = threading.local()
        self._graders: list[GraderProcess] = []

    def score(self, batch: RewardBatch) -> None:
        """Grade and report every item.

        Raises:
            grpc.aio.AioRpcError: the control plane could not be reached for as long as settings allow.
        """
        queue_s = max(time.time() - batch.sent_at_s, 0.0) if batch.sent_at_s else 0.0
        blobs = self._control.get_blobs(batch.control_address, sorted({item.grading_blob for item in batch.items}))
        with Outgoing(lambda reports: self._report(batch.control_address, reports), self._linger_s) as outgoing:
            for item in batch.items:
                outgoing.add(self._one(item, blobs, queue_s))

    def close(self) -> None:
        """End every grader process."""
        for grader in self._graders:
            grader.close()

    def _one(self, item: RewardItem, blobs: Mapping[str, bytes], queue_s: float) -> control_pb2.RewardReport:
        report = control_pb2.RewardReport(
            key=common_pb2.AttemptKey(trajectory_id=item.trajectory_id, attempt=item.attempt),
            job_id=item.job_id,
            reward_name=item.reward_name,
            queue_s=queue_s,
            worker_id=self._control.worker_id,
        )
        # The field is called `try`, which Python does not let one write as a keyword.
        setattr(report, "try", item.try_number)
        started_s = time.monotonic()
        with bound_ids(job_id=item.job_id, trajectory_id=item.trajectory_id, reward=item.reward_name):
            try:
                score = self._grader().grade(item.fn, _document(item, blobs), item.timeout_s)
                _write_score(report, score)
                outcome = "abstained" if score.value is None else "scored"
            except GraderFault as fault:
                log.info("grader_fault", code=fault.code, detail=fault.detail, fn=item.fn)
                report.fault.CopyFrom(_fault(fault))
                outcome = fault.code
        report.grader_s = time.monotonic() - started_s
        self._tally.graded(outcome, report.grader_s)
        return report

    def _report(self, address: str, reports: list[control_pb2.RewardReport]) -> None:
        self._tally.reported(self._control.report(address, reports))

    def _grader(self) -> GraderProcess:
        grader: GraderProcess | None = getattr(self._local, "grader", None)
        if grader is None:
            grader = self._local.grader = GraderProcess(self._grader_memory_mb)
            self._graders.append(grader)
        return grader


def _document(item: RewardItem, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    if item.grading_blob not in blobs:
        raise GraderFault("blob_missing", f"the control plane has no blob {item.grading_blob}", retryable=True)
    document: dict[str, Any] = json.loads(blobs[item.grading_blob])
    return document


def _write_score(report: control_pb2.RewardReport, score: Score) -> None:
    if score.value is not None:
        report.score = score.value
    for name, value in score.components.items():
        report.components[name] = value


def _fault(fault: GraderFault) -> common_pb2.Fault:
    kind = "infra" if fault.code in INFRA_CODES else "env"
    detail = fault.detail.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return common_pb2.Fault(
        code=fault.code, kind=kind, detail=detail[:MAX_DETAIL_CHARACTERS], retryable=fault.retryable
    )
