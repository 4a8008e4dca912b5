"""Scoring tasks as messages: how they are written, read, and counted in the broker.

A batch is one Celery task ``reward_svc.tasks.score(batch_json)`` on the queue ``headrace.reward``. It carries no text:
graders' documents are blobs of the control plane, named by digest.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

TASK = "reward_svc.tasks.score"
QUEUE = "headrace.reward"
DEAD_LETTER_QUEUE = "headrace.reward.dead"
REDIS_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class RewardItem:
    """One reward of one attempt, to be graded once. The report carries the same ids back.

    fn: the grader, ``pkg.module:function``; timeout_s: limit of this item alone; grading_blob: sha256 of the JSON
    document that arguments are taken from.
    """

    job_id: str
    trajectory_id: str
    attempt: int
    reward_name: str
    try_number: int
    fn: str
    timeout_s: float
    grading_blob: str


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """Items that travel together. ``sent_at_s``: seconds since the epoch, for the time spent in the queue."""

    control_address: str
    items: tuple[RewardItem, ...]
    sent_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """waiting: batches that no worker has; unacknowledged: batches in workers' hands."""

    waiting: int
    unacknowledged: int


def encode_batch(control_address: str, items: Sequence[RewardItem], sent_at_s: float) -> str:
    """The task's one argument."""
    document = {
        "control_address": control_address,
        "sent_at_s": sent_at_s,
        "items": [_renamed(asdict(item), "try_number", "try") for item in items],
    }
    return json.dumps(document)


def decode_batch(batch_json: str) -> RewardBatch:
    """Raises ValueError, naming the key, when the message is not a batch."""
    try:
        document = json.loads(batch_json)
        items = tuple(RewardItem(**_renamed(item, "try", "try_number")) for item in document["items"])
        return RewardBatch(document["control_address"], items, float(document.get("sent_at_s") or 0.0))
    except KeyError as error:
        raise ValueError(f"batch: key {error} is missing") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f"batch: {error}") from error


def queue_depth(broker_url: str, queue: str = QUEUE) -> QueueDepth:
    """How many batches wait, for whoever scales the workers. Redis brokers only.

    Raises:
        redis.RedisError: the broker does not answer.
    """
    from redis import Redis

    client = Redis.from_url(
        broker_url, socket_timeout=REDIS_TIMEOUT_S, socket_connect_timeout=REDIS_TIMEOUT_S, decode_responses=True
    )
    try:
        # kombu keeps a queue as a list of its name, and what is in workers' hands as the hash `unacked`.
        pipeline = client.pipeline()
        pipeline.llen(queue)
        pipeline.hlen("unacked")
        waiting, unacknowledged = pipeline.execute()
        return QueueDepth(int(waiting), int(unacknowledged))
    finally:
        client.close()


def _renamed(item: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in item.items()}
