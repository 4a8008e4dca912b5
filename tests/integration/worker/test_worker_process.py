"""`python -m inference_svc worker` as a process of its own, with a real weight node and a recording control plane."""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from testkit.controls import RecordingControl
from testkit.engine_client import EngineClient, add, open_job
from testkit.engines import TINY_CONFIG, VOCAB_SIZE, HfHarness, prompt_of, tiny_weights
from testkit.weight_node import RunningNode, running_node, version

from headrace.core.weights.manifest import Manifest
from headrace.wire.control.v1 import control_pb2
from inference_svc.engine.hf_model import build_model
from inference_svc.engine.sampling import log_softmax
from weightstore import Publisher

FILES = {"config.json": json.dumps(TINY_CONFIG).encode()}
PROMPT = prompt_of(40, salt=3)


@dataclass
class Process:
    """A worker process and how it registered."""

    process: asyncio.subprocess.Process
    registered: control_pb2.RegisterRequest

    @property
    def worker_id(self) -> str:
        return f"{self.registered.name}@{self.registered.incarnation}"

    async def exit_code(self, within_s: float = 15.0) -> int:
        """Wait for its end."""
        return await asyncio.wait_for(self.process.wait(), within_s)


@asynccontextmanager
async def worker_process(control: RecordingControl, engine: str, *flags: str) -> AsyncIterator[Process]:
    """A registered worker; killed at the end if it still runs."""
    before = set(control.workers)
    arguments = ["-m", "inference_svc", "worker", "--control-address", control.address, "--engine", engine]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, "--metrics-port", "-1", *flags)
    try:
        async with asyncio.timeout(60):
            while not (new := set(control.workers) - before):
                assert process.returncode is None, "the worker ended before it registered"
                await asyncio.sleep(0.05)
        yield Process(process, control.workers[new.pop()])
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture
async def control() -> AsyncIterator[RecordingControl]:
    async with RecordingControl() as made:
        yield made


@pytest.fixture
async def node() -> AsyncIterator[RunningNode]:
    async with running_node() as made:
        yield made


def rounded(array: np.ndarray) -> torch.Tensor:
    """The nearest bfloat16 values."""
    return torch.from_numpy(array).to(torch.bfloat16)


async def published(node: RunningNode, policy_version: int, *, as_bfloat16: bool = False) -> Manifest:
    """A version of the tiny model, committed on the node."""
    tensors = dict(tiny_weights(policy_version))
    dtypes: dict[str, str] = {}
    if as_bfloat16:
        tensors = {name: rounded(array).view(torch.uint16).numpy() for name, array in tensors.items()}
        dtypes = dict.fromkeys(tensors, "bfloat16")
    async with Publisher([node.address]) as publisher:
        outcome = await publisher.publish(
            version(policy_version),
            tensors,
            dtypes=dtypes,
            aliases={"lm_head.weight": "model.embed_tokens.weight"},
            files=FILES,
        )
    await node.commit(outcome.manifest)
    return outcome.manifest


async def test_a_real_worker_serves_pulled_weights_and_forgets_them_when_it_dies(
    control: RecordingControl, node: RunningNode
) -> None:
    manifest = await published(node, 5)
    reference = HfHarness()
    async with worker_process(control, "hf", "--name", "inference-0") as first:
        assert (first.registered.kind, first.registered.capabilities["engine"]) == ("inference", "hf")
        client = EngineClient(first.registered.address)
        await client.send(open_job("job"))
        loaded = await client.serve(manifest, node.address)
        assert (loaded.policy_version, loaded.weight_digest) == (5, manifest.digest)
        assert client.prefetched[0].bytes_moved > 0
        await client.send(add("turn", PROMPT, max_new_tokens=12))
        turn = await client.finished("turn")
        assert (len(turn.ids), set(turn.versions), turn.digests) == (12, {5}, {manifest.digest})
        for index, (token, logprob) in enumerate(zip(turn.ids, turn.logprobs, strict=True)):
            logits = reference.next_logits(PROMPT + turn.ids[:index], 5)
            assert abs(log_softmax(logits, 1.0)[token] - logprob) <= 1e-5
        assert client.hellos[0].worker_id == first.worker_id
        first.process.kill()
        await first.exit_code()
        await client.close()

    # It comes back without weights, and serves only after it has pulled them again.
    async with worker_process(control, "hf", "--name", "inference-0") as second:
        client = EngineClient(second.registered.address)
        await client.until(lambda: bool(client.hellos))
        assert not client.hellos[0].HasField("serving_version")
        assert client.hellos[0].worker_id not in ("", first.worker_id)
        await client.send(open_job("job"), add("early", PROMPT, max_new_tokens=12))
        early = await client.finished("early")
        assert early.fault is not None and early.fault.code == "no_weights"
        await client.serve(manifest, node.address)
        await client.send(add("turn", PROMPT, max_new_tokens=12))
        assert (await client.finished("turn")).ids == turn.ids
        second.process.send_signal(signal.SIGTERM)
        assert await second.exit_code() == 0
        assert second.worker_id not in control.workers
        await client.close()


async def test_bfloat16_weights_are_served_as_what_they_are(control: RecordingControl, node: RunningNode) -> None:
    manifest = await published(node, 1, as_bfloat16=True)
    async with worker_process(control, "hf") as worker:
        client = EngineClient(worker.registered.address)
        await client.send(open_job("job"))
        loaded = await client.serve(manifest, node.address)
        assert not loaded.HasField("fault"), loaded.fault
        await client.send(add("turn", PROMPT, max_new_tokens=4))
        turn = await client.finished("turn")
        reference = build_model(copy.deepcopy(TINY_CONFIG))
        weights = {name: rounded(array).float() for name, array in tiny_weights(1).items()}
        reference.load_state_dict(weights, strict=False)
        with torch.no_grad():
            logprobs = torch.log_softmax(reference(torch.tensor([PROMPT])).logits[0, -1], -1)
        assert abs(logprobs[turn.ids[0]].item() - turn.logprobs[0]) <= 1e-5
        await client.close()


async def test_broken_weights_end_the_process(control: RecordingControl, node: RunningNode) -> None:
    tensors = tiny_weights(1)
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
    async with Publisher([node.address]) as publisher:
        outcome = await publisher.publish(version(1), tensors, files=FILES)
    await node.commit(outcome.manifest)
    async with worker_process(control, "hf") as worker:
        client = EngineClient(worker.registered.address)
        await client.send(open_job("job"))
        await client.serve(outcome.manifest, node.address)
        await client.send(add("doomed", PROMPT))
        assert await worker.exit_code() == 1
        await client.close()


async def test_the_scripted_engine_is_a_worker_like_any_other(control: RecordingControl, node: RunningNode) -> None:
    manifest = await published(node, 2)
    async with worker_process(control, "scripted", "--scripted-t0-s", "0.001") as worker:
        client = EngineClient(worker.registered.address)
        await client.send(open_job("job", '{"max_len": 128}'))
        await client.serve(manifest, node.address)
        assert client.hellos[-1].max_len == 128
        await client.send(add("turn", PROMPT, max_new_tokens=12))
        turn = await client.finished("turn")
        assert turn.digests == {manifest.digest}
        assert all(token < VOCAB_SIZE for token in turn.ids)
        async with asyncio.timeout(5):
            while control.stats.get(worker.worker_id, {}).get("generated_tokens") != 12:
                await asyncio.sleep(0.05)
        assert control.stats[worker.worker_id]["policy_version"] == 2
        await client.close()


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["worker", "--engine", "abacus"], ["worker", "--no-such-flag"]]
)
async def test_a_wrong_command_line_is_a_usage_error(arguments: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "inference_svc", *arguments, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"usage" in stderr.lower() or b"error: --engine" in stderr


async def test_a_scripted_worker_never_loads_torch() -> None:
    code = "import sys, inference_svc.worker.main; sys.exit('torch' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await asyncio.wait_for(process.wait(), 30) == 0
