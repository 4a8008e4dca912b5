"""Rewards to be computed leave for the reward workers through the outbox, in small batches.

First tries travel together as long as graders are quick, for a worker grades a batch one by one; a repeated one travels
alone, so that it cannot wait behind the one that made it late.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from celery import Celery

from headrace.client.jobspec import JobSpec
from headrace.client.rewards import QUEUE, TASK, RewardItem, encode_batch
from headrace.core.job.actions import ScoreAttempt

MAX_ITEMS = 16
BATCH_S = 0.25
"""Work in one batch, by what gradings took so far: past it other workers could have begun."""
SEND_TIMEOUT_S = 5.0


def batches(
    job_id: str, spec: JobSpec, wanted: Iterable[ScoreAttempt], *, grader_s: float = 0.0
) -> list[dict[str, Any]]:
    """Outbox payloads for these actions; `grader_s`: what one grading takes, as far as that is known."""
    together: list[dict[str, Any]] = []
    payloads: list[dict[str, Any]] = []
    for action in wanted:
        for item in _items(job_id, spec, action):
            if action.reward_try > 1:
                payloads.append({"items": [item]})
            else:
                together.append(item)
    size = max(1, min(MAX_ITEMS, int(BATCH_S / grader_s))) if grader_s > 0 else MAX_ITEMS
    payloads += [{"items": together[start : start + size]} for start in range(0, len(together), size)]
    return payloads


def _items(job_id: str, spec: JobSpec, action: ScoreAttempt) -> list[dict[str, Any]]:
    named = {reward.name: reward for reward in spec.task(action.task).rewards if reward.fn is not None}
    return [
        {
            "job_id": job_id,
            "trajectory_id": action.key.trajectory_id,
            "attempt": action.key.attempt,
            "reward_name": name,
            "try_number": action.reward_try,
            "fn": named[name].fn,
            "timeout_s": named[name].timeout_s,
            "grading_blob": action.grading_blob,
        }
        for name in action.reward_names
    ]


class RewardSender:
    """The control plane's side of the broker. One per process."""

    def __init__(self, broker_url: str, control_address: str) -> None:
        self._control_address = control_address
        self._celery = Celery("headrace", broker=broker_url)
        self._celery.conf.update(
            task_ignore_result=True,
            broker_connection_retry=False,
            broker_transport_options={"socket_timeout": SEND_TIMEOUT_S, "socket_connect_timeout": SEND_TIMEOUT_S},
        )

    async def send(self, payloads: Sequence[Mapping[str, Any]]) -> None:
        """Raises what the broker raises; the runner sends again when a reward's deadline passes."""
        async with asyncio.timeout(SEND_TIMEOUT_S * 2):
            await asyncio.to_thread(self._send, payloads)

    def _send(self, payloads: Sequence[Mapping[str, Any]]) -> None:
        for payload in payloads:
            items = [RewardItem(**item) for item in payload["items"]]
            message = encode_batch(self._control_address, items, time.time())
            self._celery.send_task(TASK, args=[message], queue=QUEUE, retry=False)

    def close(self) -> None:
        self._celery.close()
