"""Proxy and workers as processes of their own, weights over the real store; some of them are killed."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from testkit.controls import RecordingControl
from testkit.engines import TINY_CONFIG, tiny_weights
from testkit.proxy_stack import LENGTH, Caller, Runner, Turn, finished, until
from testkit.weight_node import RunningNode, running_node, version

from headrace.core.weights import Manifest
from weightstore import Publisher

START_S = 90.0


@dataclass
class Process:
    """`python -m inference_svc …`, registered under a name."""

    name: str
    arguments: tuple[str, ...]
    control: RecordingControl
    log: Path
    process: asyncio.subprocess.Process | None = None
    worker_id: str = ""
    address: str = ""

    async def start(self) -> None:
        """Start it and wait until it is registered."""
        known = set(self.control.workers)
        flags = ["--name", self.name, "--control-address", self.control.address, "--metrics-port", "-1"]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "inference_svc",
            *self.arguments,
            *flags,
            "--log-file",
            str(self.log),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

        def registered() -> list[str]:
            return [w for w, r in self.control.workers.items() if r.name == self.name and w not in known]

        await until(lambda: bool(registered()), START_S, f"registration of {self.name}")
        (self.worker_id,) = registered()
        self.address = self.control.workers[self.worker_id].address

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 15)


@dataclass
class Plant:
    """Everything of one test."""

    control: RecordingControl
    node: RunningNode
    publisher: Publisher
    folder: Path
    proxy: Process
    workers: list[Process] = field(default_factory=list)
    runner: Runner | None = None
    callers: list[Caller] = field(default_factory=list)

    def process(self, name: str, *arguments: str) -> Process:
        return Process(name, arguments, self.control, self.folder / f"{name}.log")

    async def manage(self, job_epoch: int) -> Runner:
        """A runner that names all workers to the proxy."""
        self.runner = Runner(self.proxy.address, job_epoch=job_epoch, job_id="job")
        await self.runner.open()
        await self.name_workers()
        return self.runner

    async def name_workers(self) -> None:
        assert self.runner is not None
        await self.runner.name(*((w.worker_id, w.address, "default") for w in self.workers))
        ids = {w.worker_id for w in self.workers}
        await until(lambda: self.runner is not None and ids <= set(self.runner.workers), START_S, "join")

    async def publish(self, policy_version: int) -> Manifest:
        published = await self.publisher.publish(
            version(policy_version),
            tiny_weights(policy_version),
            files={"config.json": _config()},
            deadline_s=20,
        )
        await self.node.commit(published.manifest)
        return published.manifest

    async def serve(self, manifest: Manifest) -> None:
        assert self.runner is not None
        runner, policy_version = self.runner, manifest.version.policy_version
        await runner.prefetch(manifest, self.node.address)
        await until(lambda: runner.n_resident(policy_version) == len(self.workers), START_S, lambda: runner.prefetched)
        await runner.update(policy_version)
        await until(lambda: len(runner.serving(policy_version)) == len(self.workers), START_S, lambda: runner.updated)

    def caller(self) -> Caller:
        self.callers.append(Caller(self.proxy.address, job_id="job"))
        return self.callers[-1]

    async def close(self) -> None:
        for caller in self.callers:
            await caller.close()
        if self.runner is not None:
            await self.runner.close()
        for process in [self.proxy, *self.workers]:
            if process.process is not None:
                await process.kill()


def _config() -> bytes:
    import json

    return json.dumps(TINY_CONFIG).encode()


@asynccontextmanager
async def running_plant(folder: Path, engine: str) -> AsyncIterator[Plant]:
    async with RecordingControl() as control, running_node() as node, Publisher([node.address]) as publisher:
        plant = Plant(
            control,
            node,
            publisher,
            folder,
            Process("proxy-0", ("proxy", "--worker-silence-s", "2"), control, folder / "proxy.log"),
        )
        worker = ("worker", "--engine", engine, "--scripted-t0-s", "0.01", "--max-running", "8", "--max-len", "256")
        plant.workers = [plant.process(f"inference-{index}", *worker) for index in range(2)]
        try:
            await asyncio.gather(*(process.start() for process in [plant.proxy, *plant.workers]))
            await plant.manage(job_epoch=1)
            await plant.serve(await plant.publish(0))
            yield plant
        finally:
            await plant.close()


def assert_unbroken(turn: Turn, n_tokens: int) -> None:
    assert (turn.finish, len(turn.ids), len(turn.logprobs)) == (LENGTH, n_tokens, n_tokens)


async def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path) -> None:
    async with running_plant(tmp_path, "scripted") as plant:
        reference = await plant.caller().start("reference", 100)
        await finished(reference, within_s=START_S)
        turns = await plant.caller().start_many(8, 100)
        await until(lambda: all(len(turn.ids) >= 10 for turn in turns))
        victim = plant.workers[0]
        await victim.kill()
        await finished(*turns, within_s=START_S)
        for turn in turns:
            assert_unbroken(turn, 100)
            assert turn.ids == reference.ids, "seed and position decide, not the worker"
            assert turn.workers[-1] == plant.workers[1].worker_id
        assert any(turn.workers[0] == victim.worker_id for turn in turns)
        assert plant.runner is not None
        assert [lost.worker_id for lost in plant.runner.lost] == [victim.worker_id]

        # Its successor, under the same name, joins and serves without disturbing anybody.
        await victim.start()
        await plant.name_workers()
        await plant.serve(await plant.publish(1))
        more = await plant.caller().start_many(8, 20)
        await finished(*more, within_s=START_S)
        assert {turn.workers[0] for turn in more} == {worker.worker_id for worker in plant.workers}


async def test_a_worker_that_hangs_is_lost_and_comes_back_when_it_wakes(tmp_path: Path) -> None:
    async with running_plant(tmp_path, "scripted") as plant:
        runner, (hung, healthy) = plant.runner, plant.workers
        assert runner is not None and hung.process is not None
        turns = await plant.caller().start_many(8, 100)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        hung.process.send_signal(signal.SIGSTOP)
        try:
            await finished(*turns, within_s=START_S)
        finally:
            hung.process.send_signal(signal.SIGCONT)
        for turn in turns:
            assert_unbroken(turn, 100)
            assert turn.workers[-1] == healthy.worker_id
        assert [lost.worker_id for lost in runner.lost] == [hung.worker_id]
        await until(lambda: runner.serving(0) == sorted([hung.worker_id, healthy.worker_id]), START_S)


async def test_a_killed_proxy_costs_nothing_since_callers_hold_the_tokens(tmp_path: Path) -> None:
    async with running_plant(tmp_path, "scripted") as plant:
        reference = await plant.caller().start("reference", 100)
        await finished(reference, within_s=START_S)
        caller = plant.caller()
        turns = await caller.start_many(4, 100)
        await until(lambda: all(len(turn.ids) >= 10 for turn in turns))
        await plant.proxy.kill()
        await until(lambda: caller.error is not None)
        await plant.proxy.start()
        fresh = plant.caller()
        again = [await fresh.take_up(turn, assignment_epoch=2) for turn in turns]  # before the runner is back
        await plant.manage(job_epoch=1)
        await finished(*again, within_s=START_S)
        for turn in again:
            assert_unbroken(turn, 100)
            assert turn.ids == reference.ids


@pytest.mark.parametrize("engine", ["scripted", "hf"])
async def test_a_swap_with_requests_running(tmp_path: Path, engine: str) -> None:
    async with running_plant(tmp_path, engine) as plant:
        turns = await plant.caller().start_many(12, 150)
        await until(lambda: all(len(turn.ids) >= 3 for turn in turns), START_S)
        manifest = await plant.publish(1)
        await plant.serve(manifest)
        await finished(*turns, within_s=START_S)
        for turn in turns:
            assert_unbroken(turn, 150)
            assert turn.versions == sorted(turn.versions)
        assert {1} <= {version for turn in turns for version in turn.versions}
        assert manifest.digest in set().union(*(turn.digests for turn in turns))
        assert plant.runner is not None
        assert plant.runner.stats.regenerated_tokens == 0
        assert all(update.fault.code == "" for update in plant.runner.updated)


async def test_terminate_ends_both_kinds_of_process_cleanly(tmp_path: Path) -> None:
    async with running_plant(tmp_path, "scripted") as plant:
        turns = await plant.caller().start_many(2, 200)
        await until(lambda: all(turn.ids for turn in turns))
        assert await plant.proxy.kill(signal.SIGTERM) == 0
        assert await plant.workers[0].kill(signal.SIGTERM) == 0
