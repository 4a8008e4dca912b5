"""One Engine stream over loopback gRPC: commands in frames, chunks back, sessions that end each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from testkit.engine_client import EngineClient, abort, add, drop, load, open_job, pause, prefetch, resume
from testkit.engines import MAX_LENGTH, TINY_CONFIG, VOCAB_SIZE, HfHarness, prompt_of, tiny_weights
from testkit.weight_source import MemorySource

from headrace.core.weights.errors import PeerLost
from headrace.core.weights.manifest import Manifest
from headrace.service.grpc import server
from headrace.wire.common.v1 import common_pb2
from headrace.wire.engine.v1 import engine_pb2, engine_pb2_grpc
from inference_svc.engine.engine import EngineDied
from inference_svc.engine.sampling import log_softmax
from inference_svc.worker.build import build_engine
from inference_svc.worker.options import EngineOptions
from inference_svc.worker.service import WorkerIdentity, WorkerService
from inference_svc.worker.servicer import EngineServicer
from inference_svc.worker.shelf import WeightShelf

PROMPT = prompt_of(12, salt=20)
WORKER_ID = "inference-0@abc"


ONLY_HF = pytest.mark.parametrize("worker", ["hf"], indirect=True)
"""For what only a model can show."""


@dataclass
class Worker:
    """A worker's service on a port, its weight source, and the clients that were opened."""

    kind: str
    service: WorkerService
    source: MemorySource
    address: str
    clients: list[EngineClient] = field(default_factory=list)

    async def client(self) -> EngineClient:
        """A new stream, past its hello."""
        client = EngineClient(self.address)
        self.clients.append(client)
        await client.until(lambda: bool(client.hellos))
        return client

    def manifest(self, policy_version: int, job_id: str = "job_1") -> Manifest:
        """A version of the tiny model, ready to be pulled."""
        return self.source.put(policy_version, tiny_weights(policy_version), TINY_CONFIG, job_id=job_id)

    async def until_idle(self, within_s: float = 1.0) -> None:
        """The engine's load is 0 within ``within_s``."""
        deadline = time.perf_counter() + within_s
        while (stats := self.service.stats()).running + stats.waiting > 0:
            assert time.perf_counter() < deadline, stats
            await asyncio.sleep(0.01)


@pytest.fixture(params=["hf", "scripted"])
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[Worker]:
    source = MemorySource()
    options = EngineOptions(kv_tokens=8192, max_len=MAX_LENGTH, t0_s=0.001)
    identity = WorkerIdentity(WORKER_ID, request.param, build_engine, options, chunk_linger_s=0.005)
    service = WorkerService(identity, WeightShelf(source, 3))
    grpc_server = server()
    engine_pb2_grpc.add_EngineServicer_to_server(EngineServicer(service, stats_interval_s=0.05), grpc_server)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    made = Worker(request.param, service, source, f"127.0.0.1:{port}")
    yield made
    for client in made.clients:
        await client.close()
    await grpc_server.stop(grace=0.1)
    await service.close()
    assert source.unreleased == []


@pytest.fixture
async def client(worker: Worker) -> EngineClient:
    """A stream to a worker that serves version 1."""
    client = await worker.client()
    await client.send(open_job())
    assert not (await client.serve(worker.manifest(1))).HasField("fault")
    return client


async def test_hello_says_what_the_worker_holds(worker: Worker) -> None:
    client = await worker.client()
    first = client.hellos[0]
    assert (first.worker_id, first.engine, first.weight_digest) == (WORKER_ID, worker.kind, "")
    assert not first.HasField("serving_version")
    manifest = worker.manifest(1)
    await client.send(open_job())
    await client.serve(manifest)
    again = (await worker.client()).hellos[0]
    assert (again.serving_version, again.weight_digest) == (1, manifest.digest)
    assert list(again.resident_versions) == [1]
    assert (again.max_running, again.max_len) == (64, MAX_LENGTH)
    assert again.kv_total_tokens > 0


async def test_nothing_is_served_before_weights_are_loaded(worker: Worker) -> None:
    client = await worker.client()
    await client.send(open_job(), add("early", PROMPT), prefetch(worker.manifest(5)))
    early = await client.finished("early")
    assert early.finish_reason == common_pb2.FINISH_REASON_FAILED
    assert early.fault is not None
    assert (early.fault.code, early.fault.kind, early.fault.retryable) == ("no_weights", "infra", True)
    await client.until(lambda: bool(client.prefetched))
    await client.send(add("resident", PROMPT))
    assert (await client.finished("resident")).finish_reason == common_pb2.FINISH_REASON_FAILED


async def test_a_turn_comes_back_with_version_digest_and_epoch(worker: Worker, client: EngineClient) -> None:
    await client.send(add("turn", PROMPT, epoch=7, max_new_tokens=20))
    turn = await client.finished("turn", epoch=7)
    assert turn.finish_reason == common_pb2.FINISH_REASON_LENGTH
    assert (len(turn.ids), turn.first_offset, set(turn.versions)) == (20, 0, {1})
    assert turn.digests == {worker.service.stats().weight_digest}
    assert all(0 <= token < VOCAB_SIZE for token in turn.ids)


@ONLY_HF
async def test_logprobs_on_the_wire_equal_a_fresh_forward(worker: Worker, client: EngineClient) -> None:
    reference = HfHarness()
    await client.send(add("turn", PROMPT, max_new_tokens=10))
    turn = await client.finished("turn")
    for index, (token, logprob) in enumerate(zip(turn.ids, turn.logprobs, strict=True)):
        logits = reference.next_logits(PROMPT + turn.ids[:index], 1)
        assert abs(log_softmax(logits, 1.0)[token] - logprob) <= 1e-5


async def test_many_turns_in_few_frames(worker: Worker, client: EngineClient) -> None:
    frames, chunks = client.n_frames, client.n_chunks
    await client.send(*(add(f"r{n}", prompt_of(20, salt=n), seed=n, max_new_tokens=10) for n in range(64)))
    for n in range(64):
        assert len((await client.finished(f"r{n}")).ids) == 10
    assert client.n_chunks - chunks <= 64 * 10
    assert client.n_frames - frames < (client.n_chunks - chunks) / 2


async def test_a_bad_add_fails_alone(client: EngineClient) -> None:
    await client.send(add("good", PROMPT, max_new_tokens=30))
    await client.send(add("bad", [*PROMPT, VOCAB_SIZE]), add("hot", PROMPT, temperature=-1.0), add("none", []))
    for request_id, code in (("bad", "token_out_of_range"), ("hot", "bad_temperature"), ("none", "empty_prompt")):
        turn = await client.finished(request_id)
        assert turn.fault is not None
        assert (turn.fault.code, turn.fault.retryable) == (code, False)
    assert len((await client.finished("good")).ids) == 30


async def test_an_abort_keeps_the_tokens_and_ends_the_request(worker: Worker, client: EngineClient) -> None:
    names = [f"r{n}" for n in range(8)]
    await client.send(*(add(name, PROMPT, seed=n, max_new_tokens=200) for n, name in enumerate(names)))
    for name in names:
        await client.tokens(name, 5)
    await client.send(*(abort(name) for name in names), abort("nobody"))
    for name in names:
        turn = await client.finished(name, timeout_s=1.0)
        assert turn.finish_reason == common_pb2.FINISH_REASON_ABORTED
        assert len(turn.ids) >= 5
    await worker.until_idle()


async def test_a_client_that_goes_leaves_no_load_behind(worker: Worker, client: EngineClient) -> None:
    await client.send(*(add(f"r{n}", PROMPT, seed=n, max_new_tokens=200) for n in range(50)))
    await client.tokens("r0", 2)
    await client.close()
    await worker.until_idle(1.0)
    fresh = await worker.client()
    await fresh.send(add("after", PROMPT, max_new_tokens=2))
    assert len((await fresh.finished("after", timeout_s=1.0)).ids) == 2


async def test_a_new_stream_ends_the_one_before_it(worker: Worker, client: EngineClient) -> None:
    await client.send(add("old", PROMPT, max_new_tokens=200))
    await client.tokens("old", 2)
    newer = await worker.client()
    await client.ended()
    await worker.until_idle()
    # The same id and epoch start from nothing: no chunk of the old stream's request reaches the new one.
    await newer.send(add("old", PROMPT, max_new_tokens=3))
    assert len((await newer.finished("old")).ids) == 3


async def test_a_load_cancels_without_an_end_and_the_rest_runs_under_the_new_version(
    worker: Worker, client: EngineClient
) -> None:
    await client.send(add("long", PROMPT, max_new_tokens=220))
    await client.tokens("long", 5)
    second = worker.manifest(2)
    await client.send(prefetch(second))
    await client.until(lambda: len(client.prefetched) == 2)
    await client.send(pause(), load(2))
    await client.until(lambda: len(client.loaded) == 2)
    loaded = client.loaded[-1]
    assert (loaded.policy_version, loaded.weight_digest) == (2, second.digest)
    assert (loaded.cancelled_requests, loaded.kv_freed_tokens > 0) == (1, True)
    old = client.turn("long")
    assert not old.is_finished
    await client.send(add("long", PROMPT + old.ids, epoch=2, n_kept=len(old.ids), max_new_tokens=len(old.ids) + 8))
    await asyncio.sleep(0.05)
    assert client.turn("long", 2).ids == []
    await client.send(resume())
    rest = await client.finished("long", epoch=2)
    assert (rest.first_offset, len(rest.ids), set(rest.versions)) == (len(old.ids), 8, {2})
    assert set(old.versions) == {1}


async def test_adds_after_a_load_in_one_frame_run_under_it(worker: Worker, client: EngineClient) -> None:
    await client.send(prefetch(worker.manifest(2)))
    await client.until(lambda: len(client.prefetched) == 2)
    await client.send(load(2), add("after", PROMPT), resume())
    assert set((await client.finished("after")).versions) == {2}


async def test_a_version_that_is_not_here_is_not_loaded(worker: Worker, client: EngineClient) -> None:
    await client.send(add("running", PROMPT, max_new_tokens=100), load(9))
    await client.until(lambda: len(client.loaded) == 2)
    assert client.loaded[-1].fault.code == "not_resident"
    running = await client.finished("running")
    assert (len(running.ids), set(running.versions)) == (100, {1})


@ONLY_HF
async def test_weights_that_do_not_fit_leave_the_old_version_serving(worker: Worker, client: EngineClient) -> None:
    broken = worker.source.put(2, {"model.norm.weight": np.ones(48, np.float32)}, TINY_CONFIG)
    loaded = await client.serve(broken)
    assert loaded.fault.code == "layout_mismatch"
    await client.send(add("still", PROMPT))
    assert set((await client.finished("still")).versions) == {1}


async def test_a_pull_that_fails_is_reported_and_can_be_repeated(worker: Worker, client: EngineClient) -> None:
    second = worker.manifest(2)
    worker.source.fail_once(2, PeerLost("the node went away"))
    await client.send(prefetch(second))
    await client.until(lambda: len(client.prefetched) == 2)
    fault = client.prefetched[-1].fault
    assert (fault.code, fault.retryable) == ("peer_lost", True)
    await client.send(prefetch(second))
    await client.until(lambda: len(client.prefetched) == 3)
    report = client.prefetched[-1]
    assert (report.weight_digest, report.bytes_moved, report.transport) == (second.digest, 123, "memory")


async def test_generation_goes_on_while_weights_are_pulled(worker: Worker, client: EngineClient) -> None:
    worker.source.gate = asyncio.Event()
    await client.send(prefetch(worker.manifest(2)), add("during", PROMPT, max_new_tokens=50))
    assert set((await client.finished("during")).versions) == {1}
    assert len(client.prefetched) == 1
    worker.source.gate.set()
    await client.until(lambda: len(client.prefetched) == 2)


async def test_a_higher_epoch_replaces_a_live_request(client: EngineClient) -> None:
    await client.send(add("moved", PROMPT, epoch=1, max_new_tokens=220))
    await client.tokens("moved", 3)
    await client.send(add("moved", PROMPT, epoch=2, max_new_tokens=4))
    assert len((await client.finished("moved", epoch=2)).ids) == 4
    await client.send(add("moved", PROMPT, epoch=3, max_new_tokens=100), add("moved", PROMPT, epoch=3))
    assert len((await client.finished("moved", epoch=3)).ids) == 100
    assert not client.turn("moved", 1).is_finished


async def test_dropped_versions_give_their_memory_back(worker: Worker, client: EngineClient) -> None:
    await client.serve(worker.manifest(2))
    await client.send(drop(1), drop(2), drop(77), add("turn", PROMPT))
    await client.finished("turn")
    # The version that is served stays, so that it can be loaded again.
    assert worker.source.unreleased == [2]


async def test_a_pause_does_not_outlive_its_stream(worker: Worker, client: EngineClient) -> None:
    await client.send(prefetch(worker.manifest(2)))
    await client.until(lambda: len(client.prefetched) == 2)
    await client.send(pause(), load(2))
    await client.until(lambda: len(client.loaded) == 2)
    await client.close()
    newer = await worker.client()
    await newer.send(open_job())
    await newer.until(lambda: len(newer.hellos) == 2)
    assert newer.hellos[1].serving_version == 2
    await newer.send(add("turn", PROMPT))
    assert set((await newer.finished("turn")).versions) == {2}


async def test_another_job_starts_from_nothing(worker: Worker, client: EngineClient) -> None:
    await client.send(open_job("job_2", '{"max_running": 3}'), add("early", PROMPT))
    assert (await client.finished("early")).fault is not None
    assert worker.source.unreleased == []
    await client.serve(worker.manifest(0, job_id="job_2"))
    assert client.hellos[-1].max_running == 3
    await client.send(add("late", PROMPT))
    assert set((await client.finished("late")).versions) == {0}


@pytest.mark.parametrize(
    "command",
    [
        engine_pb2.EngineCommand(),
        engine_pb2.EngineCommand(prefetch=engine_pb2.PrefetchWeights(policy_version=2, manifest=b"\xff\xff")),
    ],
)
async def test_a_command_that_cannot_be_read_ends_the_stream_and_not_the_worker(
    worker: Worker, client: EngineClient, command: engine_pb2.EngineCommand
) -> None:
    await client.send(command)
    await client.ended()
    fresh = await worker.client()
    await fresh.send(add("turn", PROMPT))
    assert len((await fresh.finished("turn")).ids) == 8


async def test_statistics_come_on_the_stream(client: EngineClient) -> None:
    await client.send(add("turn", PROMPT, max_new_tokens=10))
    await client.finished("turn")
    await client.until(lambda: bool(client.stats) and client.stats[-1].generated_tokens == 10)
    stats = client.stats[-1]
    assert (stats.running, stats.waiting, stats.prefill_tokens >= len(PROMPT)) == (0, 0, True)
    assert stats.busy_s > 0


@ONLY_HF
async def test_a_dead_engine_ends_the_worker(worker: Worker, client: EngineClient) -> None:
    weights = tiny_weights(2)
    weights["model.norm.weight"] = np.full_like(weights["model.norm.weight"], np.nan)
    await client.serve(worker.source.put(2, weights, TINY_CONFIG))
    await client.send(add("doomed", PROMPT))
    with pytest.raises(EngineDied, match="not finite"):
        await asyncio.wait_for(worker.service.run(), 10)
