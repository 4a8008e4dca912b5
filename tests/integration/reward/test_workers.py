"""Real workers on a real Redis, reporting to a recording control plane."""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from celery import Celery
from testkit.controls import RecordingControl

from headrace.cli.up.redis import EmbeddedRedis
from headrace.client.rewards import DEAD_LETTER_QUEUE, QUEUE, TASK, QueueDepth, RewardItem, encode_batch, queue_depth


@pytest.fixture
async def control():
    async with RecordingControl() as control:
        yield control


class Desk:
    """Sends batches as the control plane does: by task name."""

    def __init__(self, broker_url, control):
        self.broker_url, self.control = broker_url, control
        self.app = Celery(broker=broker_url, set_as_current=False)
        self.app.conf.task_ignore_result = True

    def item(self, name, fn, *, reward="r", timeout_s=10.0, try_number=1, **document):
        blob = {"completion": "3", "answer": "3", "info": {}, "task": "t"} | document
        digest = self.control.put(json.dumps(blob).encode())
        return RewardItem("job_1", name, 1, reward, try_number, f"testkit.graders:{fn}", timeout_s, digest)

    def send(self, *items):
        self.send_raw(encode_batch(self.control.address, items, time.time()))

    def send_raw(self, message):
        self.app.send_task(TASK, args=[message], queue=QUEUE)

    async def settled(self, n, timeout_s=20.0):
        async with asyncio.timeout(timeout_s):
            while len(self.control.rewards) < n:
                await asyncio.sleep(0.02)
        return {key[0] + "/" + key[2]: report for key, report in self.control.rewards.items()}

    @asynccontextmanager
    async def worker(self, *flags, name="reward-0"):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HEADRACE_BROKER_URL": self.broker_url}
        command = [sys.executable, "-m", "reward_svc", "worker", "--control-address", self.control.address]
        process = await asyncio.create_subprocess_exec(
            *command, "--name", name, "--log-level", "WARNING", *flags, env=environment
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise
            assert process.returncode in (0, -signal.SIGKILL)


@pytest.fixture
def desk(clean_redis_url, control):
    return Desk(clean_redis_url, control)


async def test_scores_are_reported_under_their_names_in_any_order(desk):  # REW-01
    async with desk.worker("--concurrency", "3"):
        for name, seconds, score in (("t1", 0.6, 0.1), ("t2", 0.4, 0.2), ("t3", 0.2, 0.3)):
            desk.send(desk.item(name, "slow", info={"sleep_s": seconds, "score": score}))
        reports = await desk.settled(3)
    assert {name: r.score for name, r in reports.items()} == {"t1/r": 0.1, "t2/r": 0.2, "t3/r": 0.3}
    report = reports["t1/r"]
    assert report.worker_id.startswith("reward-0@") and report.grader_s >= 0.6 and report.queue_s > 0
    assert report.job_id == "job_1" and getattr(report, "try") == 1


async def test_a_fault_is_one_items_outcome(desk):  # CE-03, GR-01
    items = [
        desk.item("t0", "right"),
        desk.item("t1", "raises"),
        desk.item("t2", "tower", timeout_s=1.0),
        desk.item("t3", "returns", info={"kind": "nan"}),
        desk.item("t4", "abstains"),
        desk.item("t5", "parts"),
        desk.item("t6", "right", answer="4"),
    ]
    async with desk.worker():
        desk.send(*items)
        reports = await desk.settled(7)
    codes = {name[:2]: r.fault.code for name, r in reports.items() if r.HasField("fault")}
    assert codes == {"t1": "grader_error", "t2": "timeout", "t3": "not_finite"}
    assert "no number in \ufffd it" in reports["t1/r"].fault.detail and reports["t1/r"].fault.retryable
    scores = {name[:2]: r.score for name, r in reports.items() if r.HasField("score")}
    assert scores == {"t0": 1.0, "t5": 0.75, "t6": 0.0}
    assert dict(reports["t5/r"].components) == {"form": 1.0, "fact": 0.5}
    assert not reports["t4/r"].HasField("score") and not reports["t4/r"].HasField("fault")


async def test_delivered_twice_is_written_once(desk):  # CE-01
    item = desk.item("t0", "slow", info={"sleep_s": 0.3, "score": 0.5})
    async with desk.worker("--concurrency", "2"):
        desk.send(item)
        desk.send(item)
        reports = await desk.settled(1)
        await _until(lambda: desk.control.n_reports == 2)
        await _until(lambda: any(s.get("duplicates") == 1 for s in desk.control.stats.values()))
    assert len(desk.control.rewards) == 1 and reports["t0/r"].score == 0.5


async def test_a_task_that_outlives_the_visibility_timeout_runs_twice_and_counts_once(desk, tmp_path):  # CE-01
    begun, release = tmp_path / "begun", tmp_path / "release"
    begun.touch()
    item = desk.item("t0", "waits", timeout_s=60, info={"begun": str(begun), "release": str(release)})
    async with desk.worker("--visibility-timeout-s", "1"):
        desk.send(item)
        await _until(lambda: len(begun.read_text().split()) == 1, 30)
        await asyncio.sleep(1.5)
        # The broker looks for overdue messages when somebody connects; it hands this one out a second time.
        async with desk.worker("--visibility-timeout-s", "1", name="reward-1"):
            await _until(lambda: len(begun.read_text().split()) == 2, 30)
            release.touch()
            await _until(lambda: desk.control.n_reports == 2)
            await _until(lambda: sum(s.get("duplicates", 0) for s in desk.control.stats.values()) == 1)
    assert [report.score for report in desk.control.rewards.values()] == [0.5]


async def test_fast_items_do_not_wait_behind_a_slow_one(desk):  # CE-04
    async with desk.worker(name="reward-0"), desk.worker(name="reward-1"):
        desk.send(desk.item("warm0", "slow", info={"sleep_s": 0.5, "score": 0}))
        desk.send(desk.item("warm1", "slow", info={"sleep_s": 0.5, "score": 0}))
        await desk.settled(2)
        desk.send(desk.item("slow", "slow", info={"sleep_s": 4, "score": 1}))
        await asyncio.sleep(0.3)
        for number in range(6):
            desk.send(desk.item(f"fast{number}", "slow", info={"sleep_s": 0.1, "score": 1}))
        started = time.monotonic()
        reports = await desk.settled(8, timeout_s=5)
        assert time.monotonic() - started < 3 and "slow/r" not in reports
        await desk.settled(9)


async def test_a_worker_killed_in_the_middle_of_a_task_loses_only_that_task(desk):
    async with desk.worker() as process:
        desk.send(desk.item("t0", "slow", info={"sleep_s": 30, "score": 1}))
        await _until(lambda: queue_depth(desk.broker_url).unacknowledged == 1)
        await asyncio.sleep(0.3)
        graders = _descendants(process.pid)
        assert graders
        process.kill()
        await process.wait()
    await _until(lambda: not any(_is_running(pid) for pid in graders))  # its grader does not outlive it
    async with desk.worker(name="reward-1"):
        desk.send(desk.item("t0", "right", try_number=2))  # the runner's deadline passed: it sends again
        reports = await desk.settled(1)
    assert getattr(reports["t0/r"], "try") == 2 and reports["t0/r"].score == 1.0


async def test_scores_wait_for_a_control_plane_that_restarts(desk, control):
    async with desk.worker():
        desk.send(desk.item("warm", "right"))
        await desk.settled(1)
        await _until(lambda: queue_depth(desk.broker_url) == QueueDepth(0, 0))
        desk.send(desk.item("t0", "slow", info={"sleep_s": 1.0, "score": 0.5}))
        await _until(lambda: queue_depth(desk.broker_url).unacknowledged == 1)
        await asyncio.sleep(0.2)
        await control.stop()
        await asyncio.sleep(1.5)
        assert queue_depth(desk.broker_url).unacknowledged == 1  # not acknowledged before the report was taken
        await control.listen(int(control.address.rsplit(":", 1)[1]))
        reports = await desk.settled(2)
        await _until(lambda: queue_depth(desk.broker_url).unacknowledged == 0)
    assert reports["t0/r"].score == 0.5


async def test_a_broker_that_dies_and_comes_back_empty_loses_nothing_that_is_sent_again(tmp_path, control):
    redis_server = EmbeddedRedis(tmp_path, tmp_path / "redis.log")
    redis_server.start()
    try:
        desk = Desk(redis_server.url, control)
        async with desk.worker():
            desk.send(desk.item("t0", "right"))
            await desk.settled(1)
            await _until(lambda: queue_depth(desk.broker_url) == QueueDepth(0, 0))
            desk.send(desk.item("t1", "slow", info={"sleep_s": 1.0, "score": 0.5}))
            await _until(lambda: queue_depth(desk.broker_url).unacknowledged == 1)
            redis_server.process.send(signal.SIGKILL)
            redis_server.process.finish(5)
            await asyncio.sleep(0.5)
            redis_server.start()
            reports = await desk.settled(2)  # what was in hand is reported all the same
            assert reports["t1/r"].score == 0.5
            desk.send(desk.item("t2", "right"))
            await desk.settled(3)
    finally:
        redis_server.stop()


async def test_messages_that_are_no_batch_are_set_aside(desk):
    async with desk.worker():
        desk.send_raw("{")
        desk.send_raw(json.dumps({"items": [{}], "control_address": "x"}))
        desk.send(desk.item("t0", "right"))
        await desk.settled(1)
        await _until(lambda: queue_depth(desk.broker_url, DEAD_LETTER_QUEUE).waiting == 2)


async def test_a_missing_document_is_nobodys_score(desk):
    item = desk.item("t0", "right")
    desk.control.blobs.clear()
    async with desk.worker():
        desk.send(item)
        reports = await desk.settled(1)
    fault = reports["t0/r"].fault
    assert (fault.code, fault.kind, fault.retryable) == ("blob_missing", "infra", True)


async def test_workers_register_and_say_goodbye(desk):
    async with desk.worker():
        await _until(lambda: desk.control.workers)
        (worker_id,) = desk.control.workers
        assert desk.control.workers[worker_id].kind == "reward" and worker_id.startswith("reward-0@")
        await _until(lambda: desk.control.stats)
    await _until(lambda: not desk.control.workers)


async def test_depth_counts_what_waits(desk):
    assert queue_depth(desk.broker_url).waiting == 0
    desk.send(desk.item("t0", "right"))
    desk.send(desk.item("t1", "right"))
    assert queue_depth(desk.broker_url).waiting == 2


async def _until(condition, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def _descendants(pid):
    listings = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for listing in listings for child in listing.read_text().split()]


def _is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
