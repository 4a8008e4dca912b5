"""Rewards leave for a real broker; a broker that is not there is an error within seconds, never a hang."""

import asyncio
import base64
import json
import time

import pytest
import redis

from control_plane.runner.scoring import SEND_TIMEOUT_S, RewardSender
from headrace.client.rewards import QUEUE, TASK

ITEM = {
    "job_id": "job_t", "trajectory_id": "trj_1", "attempt": 1, "reward_name": "grade", "try_number": 2,
    "fn": "pkg.mod:fn", "timeout_s": 5.0, "grading_blob": "blob",
}  # fmt: skip


async def test_each_payload_is_one_task_on_the_queue(clean_redis_url: str) -> None:
    sender = RewardSender(clean_redis_url, "127.0.0.1:7071")
    try:
        await sender.send([{"items": [ITEM, {**ITEM, "trajectory_id": "trj_2"}]}, {"items": [ITEM]}])
    finally:
        sender.close()
    with redis.Redis.from_url(clean_redis_url) as broker:
        messages = [json.loads(message) for message in broker.lrange(QUEUE, 0, -1)]
    assert [message["headers"]["task"] for message in messages] == [TASK] * 2
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages]
    items = [json.loads(body[0][0])["items"] for body in bodies]
    assert sorted(len(found) for found in items) == [1, 2]
    assert {(item["reward_name"], item["try"]) for found in items for item in found} == {("grade", 2)}


async def test_a_broker_that_is_down_raises_in_time() -> None:
    sender = RewardSender("redis://127.0.0.1:1/0", "127.0.0.1:7071")
    began = time.monotonic()
    try:
        with pytest.raises(Exception, match=r"(?i)connect|refused|timed|operational"):
            await sender.send([{"items": [ITEM]}])
    finally:
        sender.close()
    assert time.monotonic() - began < 3 * SEND_TIMEOUT_S


async def test_sending_does_not_hold_the_loop(clean_redis_url: str) -> None:
    sender = RewardSender(clean_redis_url, "127.0.0.1:7071")
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    try:
        await sender.send([{"items": [ITEM]} for _ in range(50)])
    finally:
        ticking.cancel()
        sender.close()
    assert ticks > 0
