"""Peers that die, stop, lie or are slow; memory that rots or runs out. Real processes, real signals."""

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.weight_node import MIB, ChildProcess, RunningNode, child, running_node, version
from testkit.weight_process import N_BUCKETS, ten_buckets

from headrace.client.weights import NodeVersionState, WeightsClient
from headrace.core.weights.errors import BadTransfer, DeadlinePassed, NotResident, PeerLost, StoreFull
from weightstore import Publisher, Puller, peer
from weightstore.node import Limits
from weightstore.puller import Staging
from weightstore.transfer import Credit, Sender

PROCESS = ("-m", "testkit.weight_process")


async def until(is_true: Any, within_s: float = 5.0) -> None:
    give_up_s = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < give_up_s, f"not so within {within_s} s"
        await asyncio.sleep(0.02)


def after_buckets(monkeypatch: pytest.MonkeyPatch, n: int, act: Any) -> None:
    """Calls `act` when the n-th bucket of a pull has been verified."""
    verify = Staging.verify
    n_verified = 0

    async def counting(self: Staging, bucket: int) -> bool:
        nonlocal n_verified
        is_right = await verify(self, bucket)
        n_verified += 1
        if n_verified == n:
            act()
        return is_right

    monkeypatch.setattr(Staging, "verify", counting)


async def start_node(port: int = 0) -> tuple[ChildProcess, str]:
    process = await ChildProcess.start(*PROCESS, "node", str(port))
    return process, await process.line()


async def push_and_commit(publisher: Publisher, address: str, policy_version: int, fill: int) -> Any:
    published = await publisher.publish(version(policy_version), ten_buckets(fill), deadline_s=10)
    client = WeightsClient.at(address)
    await client.commit("job", policy_version, published.manifest.digest, epoch=1)
    await client.close()
    return published


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_a_node_killed_in_bucket_four_of_ten(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    process, address = await start_node()
    async with (
        Publisher([address], transport=transport, bucket_bytes=MIB) as publisher,
        Puller(transport=transport) as puller,
    ):
        old = await puller.pull((await push_and_commit(publisher, address, 0, 0)).manifest, address)
        new = await push_and_commit(publisher, address, 1, 1)
        with monkeypatch.context() as patch:
            after_buckets(patch, 4, lambda: process.signal(signal.SIGKILL))
            started_s = time.monotonic()
            with pytest.raises(DeadlinePassed):
                await puller.pull(new.manifest, address, deadline_s=1.5)
            assert time.monotonic() - started_s < 2.5
        for name, array in ten_buckets(0).items():
            np.testing.assert_array_equal(old.tensors()[name], array)
        assert list(puller.staged) == [0]

        await process.kill()
        process, address = await start_node(int(address.rsplit(":", 1)[1]))
        try:
            with pytest.raises(NotResident):
                await puller.pull(new.manifest, address, deadline_s=10)
            again = await publisher.republish(new.manifest, epoch=1, deadline_s=10)
            assert again.report.bytes_moved == N_BUCKETS * MIB
            client = WeightsClient.at(address)
            await client.commit("job", 1, new.manifest.digest, epoch=1)
            await client.close()
            staged = await puller.pull(new.manifest, address, deadline_s=10)
            assert staged.report.bytes_moved <= N_BUCKETS * MIB + MIB
            for name, array in ten_buckets(1).items():
                np.testing.assert_array_equal(staged.tensors()[name], array)
        finally:
            await process.kill()


async def test_a_node_that_is_not_there_is_reported_long_before_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        manifest = (await node.publish(publisher, 0, ten_buckets(0))).manifest
    monkeypatch.setattr(peer, "REACH_S", 0.3)
    async with Puller() as puller:
        started_s = time.monotonic()
        with pytest.raises(PeerLost, match=r"was not reachable for 0.3 s"):
            await puller.pull(manifest, node.address, deadline_s=60)
        assert time.monotonic() - started_s < 5


async def test_a_broken_pull_resumes_with_the_missing_buckets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_node(Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, window=1)) as node,
        Publisher([node.address], bucket_bytes=MIB) as publisher,
        Puller() as puller,
    ):
        published = await node.publish(publisher, 0, ten_buckets(1))
        with monkeypatch.context() as patch:
            after_buckets(patch, 4, node.node.sessions.close_all)
            send = Sender.send
            n_sent = 0

            def counting(self: Sender, credit: Credit) -> None:
                nonlocal n_sent
                n_sent += 1
                send(self, credit)

            patch.setattr(Sender, "send", counting)
            staged = await puller.pull(published.manifest, node.address, deadline_s=10)
        assert staged.report.bytes_moved == N_BUCKETS * MIB
        assert n_sent <= N_BUCKETS + 2
        for name, array in ten_buckets(1).items():
            np.testing.assert_array_equal(staged.tensors()[name], array)


async def test_a_stopped_node_costs_the_deadline_and_late_bytes_land_nowhere() -> None:
    process, address = await start_node()
    async with Publisher([address], bucket_bytes=MIB) as publisher, Puller() as puller:
        try:
            published = await push_and_commit(publisher, address, 0, 3)
            process.signal(signal.SIGSTOP)
            started_s = time.monotonic()
            with pytest.raises(DeadlinePassed, match="did not finish in 1"):
                await puller.pull(published.manifest, address, deadline_s=1)
            assert time.monotonic() - started_s < 2
            process.signal(signal.SIGCONT)
            staged = await puller.pull(published.manifest, address, deadline_s=10)
            for name, array in ten_buckets(3).items():
                np.testing.assert_array_equal(staged.tensors()[name], array)
        finally:
            await process.kill()


async def test_a_trainer_killed_before_the_commit_changes_nothing() -> None:
    async with running_node(Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, window=1)) as node:
        async with child(*PROCESS, "publish", node.address, "1", "1", "4") as trainer:
            assert await trainer.line() == "stuck"
            assert (await node.client.status("job")).versions[0].state is NodeVersionState.PUSHING
            await trainer.kill()
            await until(lambda: not node.node.store.versions("job")[0].pushes)
        status = await node.client.status("job")
        assert [item.n_missing_buckets for item in status.versions] == [6]
        assert status.used_bytes == 4 * MIB
        with pytest.raises(NotResident):
            await node.client.get_manifest("job", 1)
        # The same number again, by another epoch: four of the buckets are there already.
        async with Publisher([node.address], bucket_bytes=MIB) as publisher:
            published = await publisher.publish(version(1, epoch=2), ten_buckets(1))
            assert published.report.bytes_moved == 6 * MIB
            await node.commit(published.manifest)
        assert len((await node.client.status("job")).versions) == 1


async def test_a_worker_killed_in_the_middle_of_a_pull_frees_its_version() -> None:
    async with (
        running_node(Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, window=1)) as node,
        Publisher([node.address], bucket_bytes=MIB) as publisher,
    ):
        await node.publish(publisher, 0, ten_buckets(0))
        await node.publish(publisher, 1, ten_buckets(1))
        async with child(*PROCESS, "pull", node.address, "0", "4") as worker:
            assert await worker.line() == "stuck"
            report = await node.client.set_retention("job", [], epoch=1)
            assert (report.held, report.in_reading) == ((1,), (0,))
            await worker.kill()
            await until(lambda: len(node.node.store.versions("job")) == 1)
        assert (await node.client.status("job")).used_bytes == N_BUCKETS * MIB


@pytest.mark.parametrize("transport", ["shm", "tcp"])
async def test_the_session_of_a_worker_killed_while_idle_ends(transport: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_WEIGHTS_TRANSPORT", transport)
    async with running_node() as node:
        async with Publisher([node.address], bucket_bytes=MIB) as publisher:
            await node.publish(publisher, 0, ten_buckets(0))
        async with child(*PROCESS, "hold", node.address, "0") as worker:
            assert await worker.line() == "done"
            assert len(node.node.sessions) == 1
            await worker.kill()
            await until(lambda: not len(node.node.sessions), within_s=10)


async def test_a_bit_that_flips_on_the_way_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node() as node, Publisher([node.address], bucket_bytes=MIB) as publisher, Puller() as puller:
        published = await node.publish(publisher, 0, ten_buckets(1))
        verify = Staging.verify
        flipped: list[int] = []

        async def flipping(self: Staging, bucket: int) -> bool:
            if bucket == 3 and not flipped:
                flipped.append(bucket)
                self.memory(bucket)[12345] ^= 4
            return await verify(self, bucket)

        monkeypatch.setattr(Staging, "verify", flipping)
        staged = await puller.pull(published.manifest, node.address)
        assert staged.report.refetched_buckets == 1
        for name, array in ten_buckets(1).items():
            np.testing.assert_array_equal(staged.tensors()[name], array)


async def test_a_bit_that_flips_in_the_node_is_found_and_repaired_by_a_push() -> None:
    async with running_node() as node, Publisher([node.address], bucket_bytes=MIB) as publisher, Puller() as puller:
        published = await node.publish(publisher, 0, ten_buckets(1))
        digest = published.manifest.buckets[3].digest
        node.node.bucket(digest)[999] ^= 1
        with pytest.raises(BadTransfer, match=f"{digest} is damaged on the node"):
            await puller.pull(published.manifest, node.address)
        status = await node.client.status("job", buckets=[bucket.digest for bucket in published.manifest.buckets])
        assert status.missing_digests == (digest,)
        assert status.versions[0].n_missing_buckets == 1
        with pytest.raises(NotResident, match="pushed again"):
            await puller.pull(published.manifest, node.address)
        again = await publisher.republish(published.manifest, epoch=1)
        assert again.report.bytes_moved == MIB
        staged = await puller.pull(published.manifest, node.address)
        assert staged.report.bytes_moved < N_BUCKETS * MIB
        np.testing.assert_array_equal(staged.tensors()["w3"], ten_buckets(1)["w3"])


@pytest.mark.parametrize("change", [-8, 8])
async def test_a_message_of_another_size_never_becomes_a_version(change: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        tensors = {"w": np.arange(20_000, dtype=np.int64)}
        send = Sender.send

        def other_size(self: Sender, credit: Credit) -> None:
            memory = self._source(credit.bucket)
            longer = np.concatenate([memory, memory])
            monkeypatch.setattr(self, "_source", lambda _: longer)
            send(self, replace(credit, nbytes=credit.nbytes + change))

        with monkeypatch.context() as patch:
            patch.setattr(Sender, "send", other_size)
            with pytest.raises(BadTransfer):
                await publisher.publish(version(0), tensors, deadline_s=5)
        assert (await node.client.status("job")).versions[0].state is NodeVersionState.PUSHING
        await node.publish(publisher, 0, tensors)


async def test_a_publisher_whose_bytes_do_not_match_its_digests_is_refused() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        snapshot = publisher.stage(version(0), {"w": np.ones(1000)})
        snapshot.arena[7] ^= 1
        with pytest.raises(BadTransfer, match="bucket 0 came with other bytes"):
            await publisher.push(snapshot, deadline_s=5)
        snapshot.arena[7] ^= 1
        await node.commit((await publisher.push(snapshot)).manifest)


async def test_a_full_node_holds_the_publisher_back_and_evicts_nothing() -> None:
    async with (
        running_node(Limits(memory_cap_bytes=25 * MIB, chunk_bytes=MIB)) as node,
        Publisher([node.address], bucket_bytes=MIB) as publisher,
        Puller() as puller,
    ):
        manifests = [(await node.publish(publisher, number, ten_buckets(number))).manifest for number in (0, 1)]
        with pytest.raises(StoreFull, match=r"needs 10485760 bytes, 5242880 of 26214400 are free"):
            await publisher.publish(version(2), ten_buckets(2), deadline_s=0.5)
        for manifest in manifests:
            (await puller.pull(manifest, node.address)).release()

        waiting = asyncio.ensure_future(publisher.publish(version(2), ten_buckets(2), deadline_s=10))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await node.client.set_retention("job", [1], epoch=1)
        assert (await waiting).report.bytes_moved == N_BUCKETS * MIB

        huge = {f"w{index}": np.zeros(MIB // 4, np.float32) + index for index in range(30)}
        with pytest.raises(StoreFull):
            await publisher.publish(version(0, job_id="other"), huge, deadline_s=10)


async def test_a_slow_reader_keeps_its_version_while_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_node(Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, window=1)) as node,
        Publisher([node.address], bucket_bytes=MIB) as publisher,
        Puller() as puller,
    ):
        slow = (await node.publish(publisher, 0, ten_buckets(0))).manifest
        go_on = asyncio.Event()
        verify = Staging.verify

        async def slowly(self: Staging, bucket: int) -> bool:
            if bucket == 4:
                await go_on.wait()
            return await verify(self, bucket)

        monkeypatch.setattr(Staging, "verify", slowly)
        reading = asyncio.ensure_future(puller.pull(slow, node.address, deadline_s=20))
        await until(lambda: node.node.store.versions("job")[0].n_readers == 1)
        for number in range(1, 5):
            await node.publish(publisher, number, ten_buckets(number))
            report = await node.client.set_retention("job", [number], epoch=1)
            assert report.in_reading == (0,)
        go_on.set()
        staged = await reading
        np.testing.assert_array_equal(staged.tensors()["w9"], ten_buckets(0)["w9"])
        await until(lambda: len(node.node.store.versions("job")) == 1)


async def test_uncommitted_versions_expire() -> None:
    limits = Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, txn_ttl_s=0.5)
    async with running_node(limits) as node, Publisher([node.address], bucket_bytes=MIB) as publisher:
        await publisher.publish(version(0), ten_buckets(0))
        await until(lambda: not node.node.store.versions("job"))
        assert (await node.client.status("job")).used_bytes == 0


def resources() -> tuple[int, int]:
    """Open descriptors, and shared-memory bytes in use."""
    shm = os.statvfs("/dev/shm")
    return len(list(Path("/proc/self/fd").iterdir())), (shm.f_blocks - shm.f_bfree) * shm.f_frsize


async def broken_pull(node: RunningNode, manifest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        after_buckets(patch, 3, lambda: asyncio.current_task().cancel())  # type: ignore[union-attr]
        async with Puller() as puller:
            with pytest.raises(asyncio.CancelledError):
                await puller.pull(manifest, node.address)


async def test_twenty_broken_pulls_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_node(Limits(memory_cap_bytes=64 * MIB, chunk_bytes=MIB, window=2)) as node,
        Publisher([node.address], bucket_bytes=MIB) as publisher,
    ):
        manifest = (await node.publish(publisher, 0, ten_buckets(0))).manifest
        for _ in range(3):
            await broken_pull(node, manifest, monkeypatch)
        await until(lambda: len(node.node.sessions) == 1)
        before = resources()
        for _ in range(20):
            await broken_pull(node, manifest, monkeypatch)
        await until(lambda: len(node.node.sessions) == 1)
        after = resources()
        assert after[0] <= before[0] + 2
        assert after[1] <= before[1] + MIB
        assert not node.node.store.versions("job")[0].n_readers
