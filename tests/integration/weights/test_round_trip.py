"""Push, commit, pull over real UCX on loopback: the bytes that left the trainer are the bytes that arrive."""

import asyncio
from typing import Any

import numpy as np
import pytest
from testkit.weight_node import MIB, running_node, version

from headrace.core.weights.errors import (
    Fenced,
    LayoutMismatch,
    NotResident,
    TransportDowngraded,
    VersionConflict,
)
from weightstore import Publisher, Puller
from weightstore.node import Limits

LANES = {"shm": "posix/memory", "tcp": "tcp/lo"}


def model(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {
        "frozen": np.random.default_rng(99).standard_normal((64, 1024)).astype(np.float32),
        "embed": rng.standard_normal((300, 100)).astype(np.float32),
        "qkv": rng.standard_normal((3, 200, 200)).astype(np.float32),
        "half": rng.integers(0, 65536, size=(17, 3)).astype(np.uint16),
        "counter": np.array([16777217 + step], dtype=np.int64),
        "scalar": np.array(0.5 + step, dtype=np.float32),
        "nothing": np.zeros((0, 8), dtype=np.float32),
    }


CONTENT: dict[str, Any] = {
    "dtypes": {"half": "bfloat16"},
    "aliases": {"lm_head": "embed"},
    "files": {"config.json": b'{"a": 1}', "empty.txt": b"", "tokenizer.json": bytes(range(256)) * 5000},
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("bucket_bytes", [64 * 1024, MIB, 64 * MIB])
async def test_what_was_published_is_what_is_pulled(transport: Any, bucket_bytes: int) -> None:
    async with (
        running_node(Limits(memory_cap_bytes=256 * MIB, chunk_bytes=100_000, window=3)) as node,
        Publisher([node.address], transport=transport, bucket_bytes=bucket_bytes) as publisher,
        Puller(transport=transport) as puller,
    ):
        for step in range(3):
            tensors = model(step)
            published = await node.publish(publisher, step, tensors, **CONTENT)
            staged = await puller.pull(published.manifest, node.address)
            assert staged.digest == published.manifest.digest
            assert staged.policy_version == step
            assert published.report.transport == LANES[transport] == staged.report.transport
            arrived = staged.tensors()
            assert arrived.keys() == tensors.keys() | {"lm_head"}
            for name, array in {**tensors, "lm_head": tensors["embed"]}.items():
                assert arrived[name].dtype == array.dtype
                np.testing.assert_array_equal(arrived[name], array)
            assert staged.files() == CONTENT["files"]
            staged.release()


async def test_equal_weights_have_one_content_digest_whatever_the_bucket_size() -> None:
    async with running_node() as node:
        digests = set()
        for number, bucket_bytes in enumerate((1024, 64 * 1024, MIB)):
            async with Publisher([node.address], bucket_bytes=bucket_bytes) as publisher:
                published = await publisher.publish(version(number), model(0), **CONTENT)
            digests.add(published.manifest.content_digest)
        assert len(digests) == 1


async def test_bytes_that_the_node_has_do_not_move_again() -> None:
    async with running_node() as node, Publisher([node.address], bucket_bytes=64 * 1024) as publisher:
        first = await node.publish(publisher, 0, model(0), **CONTENT)
        assert first.report.bytes_moved == first.manifest.total_bytes
        same = await node.publish(publisher, 1, model(0), **CONTENT)
        assert (same.report.bytes_moved, same.report.bytes_saved) == (0, same.manifest.total_bytes)
        assert same.manifest.content_digest == first.manifest.content_digest
        other = await node.publish(publisher, 2, model(1), **CONTENT)
        assert 0 < other.report.bytes_moved <= other.manifest.total_bytes - 64 * 1024 * 4  # `frozen` stayed


async def test_a_puller_copies_what_it_has_staged_already() -> None:
    async with (
        running_node() as node,
        Publisher([node.address], bucket_bytes=64 * 1024) as publisher,
        Puller() as puller,
    ):
        old = await puller.pull((await node.publish(publisher, 0, model(0))).manifest, node.address)
        new = await puller.pull((await node.publish(publisher, 1, model(1))).manifest, node.address)
        assert new.report.bytes_saved >= 64 * 1024 * 4
        np.testing.assert_array_equal(new.tensors()["qkv"], model(1)["qkv"])
        np.testing.assert_array_equal(new.tensors()["frozen"], model(1)["frozen"])
        # Somebody wrote into the staged copy: what is copied from it is checked, and fetched instead.
        old.tensors()["qkv"][:] = 0
        again = await puller.pull(old.manifest, node.address)
        np.testing.assert_array_equal(again.tensors()["qkv"], model(0)["qkv"])


async def test_equal_buckets_of_one_version_are_moved_once_and_land_everywhere() -> None:
    ones = {f"w{index}": np.ones(16 * 1024, dtype=np.float32) for index in range(4)}
    async with running_node() as node, Publisher([node.address], bucket_bytes=64 * 1024) as publisher:
        published = await node.publish(publisher, 0, ones)
        assert published.report.bytes_moved == 64 * 1024
        async with Puller() as puller:
            staged = await puller.pull(published.manifest, node.address)
            assert staged.report.bytes_moved == 64 * 1024
            for name, array in ones.items():
                np.testing.assert_array_equal(staged.tensors()[name], array)


async def test_a_publisher_follows_its_node_to_another_address_with_its_snapshots() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher, Puller() as puller:
        published = await node.publish(publisher, 0, model(0))
        async with running_node() as other:
            await publisher.move_to([other.address])
            again = await publisher.republish(published.manifest, epoch=3)
            assert again.manifest.digest == published.manifest.digest
            await other.commit(again.manifest, epoch=3)
            staged = await puller.pull(published.manifest, other.address)
            np.testing.assert_array_equal(staged.tensors()["qkv"], model(0)["qkv"])


async def test_the_last_snapshots_can_be_pushed_and_older_ones_not() -> None:
    async with running_node() as node, Publisher([node.address], keep_snapshots=3) as publisher:
        snapshots = [publisher.stage(version(number), {"w": np.full(100, number)}) for number in range(4)]
        with pytest.raises(LookupError, match=r"version 0 .* not among the last 3"):
            await publisher.push(snapshots[0])
        with pytest.raises(LookupError):
            await publisher.republish(snapshots[0].manifest, epoch=1)
        for snapshot in snapshots[1:]:
            assert (await publisher.push(snapshot)).manifest is snapshot.manifest
        assert [item.policy_version for item in (await node.client.status("job")).versions] == [1, 2, 3]


async def test_a_puller_forgets_nodes_that_are_gone() -> None:
    async with Puller() as puller:
        for number in range(7):
            async with running_node() as node, Publisher([node.address]) as publisher:
                (
                    await puller.pull((await node.publish(publisher, number, model(number))).manifest, node.address)
                ).release()
        assert len(puller._peers) == 4


async def test_release_gives_the_memory_to_the_next_pull() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher, Puller() as puller:
        manifest = (await node.publish(publisher, 0, model(0))).manifest
        staged = await puller.pull(manifest, node.address)
        place = staged.tensors()["qkv"].ctypes.data
        staged.release()
        staged.release()
        with pytest.raises(ValueError, match="was released"):
            staged.tensors()
        again = await puller.pull(manifest, node.address)
        assert again.tensors()["qkv"].ctypes.data == place


async def test_files_and_manifest_come_without_ucx() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        published = await node.publish(publisher, 0, model(0), **CONTENT)
        assert await node.client.get_manifest("job", 0) == published.manifest
        assert await node.client.fetch_files("job", 0) == CONTENT["files"]
        assert await node.client.fetch_files("job", 0, names=["empty.txt"]) == {"empty.txt": b""}
        with pytest.raises(NotResident, match=r"no file absent.txt; it has config.json"):
            await node.client.fetch_files("job", 0, names=["absent.txt"])
        with pytest.raises(NotResident):
            await node.client.get_manifest("job", 1)


async def test_what_is_absent_repeated_or_different() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher, Puller() as puller:
        published = await publisher.publish(version(7), {"w": np.ones(4)})
        with pytest.raises(NotResident, match="sealed, not committed"):
            await puller.pull(published.manifest, node.address, deadline_s=5)
        assert await node.commit(published.manifest)
        assert not await node.commit(published.manifest)
        with pytest.raises(VersionConflict):
            await publisher.publish(version(7), {"w": np.zeros(4)})
        again = await publisher.publish(version(7), {"w": np.ones(4)})
        assert again.report.bytes_moved == 0
        assert (await node.client.release_job("job", epoch=1)) == published.manifest.total_bytes
        assert (await node.client.release_job("job", epoch=1)) == 0
        with pytest.raises(NotResident):
            await puller.pull(published.manifest, node.address, deadline_s=5)


async def test_an_old_epoch_is_fenced_and_another_layout_refused() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        await publisher.publish(version(0, epoch=4), {"w": np.ones(4), "b": np.ones(2)})
        with pytest.raises(Fenced):
            await publisher.publish(version(1, epoch=3), {"w": np.ones(4), "b": np.ones(2)})
        published = await publisher.publish(version(0, epoch=4), {"w": np.ones(4), "b": np.ones(2)})
        await node.commit(published.manifest)
        with pytest.raises(LayoutMismatch, match="missing: b; unexpected: bb"):
            await publisher.publish(version(1, epoch=4), {"w": np.ones(4), "bb": np.ones(2)})
        with pytest.raises(Fenced):
            await node.client.set_retention("job", [], epoch=3)


async def test_shared_memory_is_demanded_agreed_on_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_node() as node:
        async with Publisher([node.address], transport="auto") as publisher:
            assert (await node.publish(publisher, 0, model(0))).report.transport == "posix/memory"
        monkeypatch.setattr(node.node.sessions, "_identity", "another host")
        async with Publisher([node.address], transport="shm") as publisher:
            with pytest.raises(TransportDowngraded, match="do not share a host"):
                await publisher.publish(version(1), model(1))
        async with Publisher([node.address], transport="auto") as publisher:
            assert (await node.publish(publisher, 1, model(1))).report.transport == "tcp/lo"


async def test_many_readers_and_a_writer_at_once() -> None:
    async with running_node() as node, Publisher([node.address]) as publisher:
        first = await node.publish(publisher, 0, model(0))
        pullers = [Puller() for _ in range(4)]
        staged, second = await asyncio.gather(
            asyncio.gather(*(puller.pull(first.manifest, node.address) for puller in pullers)),
            node.publish(publisher, 1, model(1)),
        )
        for version_ in staged:
            np.testing.assert_array_equal(version_.tensors()["qkv"], model(0)["qkv"])
        both = await asyncio.gather(
            pullers[0].pull(second.manifest, node.address), pullers[0].pull(first.manifest, node.address)
        )
        assert [version_.policy_version for version_ in both] == [1, 0]
        await asyncio.gather(*(puller.close() for puller in pullers))


async def test_a_manifest_above_four_mebibytes_travels() -> None:
    names = {f"model.layers.{index:06}.with_a_long_name.weight": np.zeros(1, np.int8) for index in range(35_000)}
    async with running_node() as node, Publisher([node.address]) as publisher, Puller() as puller:
        published = await node.publish(publisher, 0, names)
        staged = await puller.pull(await node.client.get_manifest("job", 0), node.address)
        assert staged.digest == published.manifest.digest
        assert len(staged.tensors()) == len(names)
