"""A batch that comes in parts: one update a part, one step, one answer."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from testkit.tiny_models import save_tiny_model
from testkit.trainers import Rig, running_trainer, spec_json

from headrace.client.weights import manifest_from_wire
from headrace.wire.trainer.v1 import trainer_pb2 as pb


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_trainer(tmp_path / "data") as made:
        yield made


def part(rig: Rig, index: int, digest: str, groups: list[pb.TrainGroup], *, n_parts: int = 2) -> pb.TrainStep:
    command = rig.step(1, *groups, digest=digest)
    command.part, command.n_parts = index, n_parts
    return command


async def test_two_parts_are_one_step_with_two_updates(rig: Rig, tmp_path: Path) -> None:
    client, _ = await rig.open(spec_json(save_tiny_model(tmp_path / "model")))
    early, late = rig.group(1.0, 0.0), rig.group(0.0, 1.0)
    await client.send(train=part(rig, 0, "half", [early]))
    await client.send(train=part(rig, 0, "half", [early]))  # again: nothing is made twice
    await client.send(train=part(rig, 1, "whole", [late]))
    done = await client.expect("finished")
    assert (done.step, done.batch_digest) == (1, "whole")
    assert done.metrics["n_rows"] == 4
    await client.send(train=part(rig, 0, "half", [early]))
    await client.send(train=part(rig, 1, "whole", [late]))
    again = await client.expect("finished")
    assert again.manifest == done.manifest


async def test_parts_are_trained_against_the_version_before_the_step(rig: Rig, tmp_path: Path) -> None:
    """The same two groups, whole with two updates and in two parts, end in the same weights."""
    model = save_tiny_model(tmp_path / "model")
    early, late = rig.group(1.0, 0.0), rig.group(0.0, 1.0)
    client, _ = await rig.open(spec_json(model, algorithm={"updates_per_step": 2}))
    await client.send(train=rig.step(1, early, late))
    whole = manifest_from_wire((await client.expect("finished")).manifest)
    await client.send(close=pb.CloseTraining())
    await client.expect("closed")
    client, _ = await rig.open(spec_json(model, algorithm={"updates_per_step": 2}))
    await client.send(train=part(rig, 0, "half", [early]))
    await client.send(train=part(rig, 1, "whole", [late]))
    in_parts = manifest_from_wire((await client.expect("finished")).manifest)
    assert in_parts.content_digest == whole.content_digest


async def test_a_part_of_another_batch_or_out_of_order_is_a_conflict(rig: Rig, tmp_path: Path) -> None:
    client, _ = await rig.open(spec_json(save_tiny_model(tmp_path / "model")))
    await client.send(train=part(rig, 1, "whole", [rig.group(1.0, 0.0)]))
    assert (await client.expect("fault")).fault.code == "step_conflict"
    await client.send(train=part(rig, 0, "half", [rig.group(1.0, 0.0)]))
    await client.send(train=part(rig, 0, "other", [rig.group(0.0, 1.0)]))
    assert (await client.expect("fault")).fault.code == "step_conflict"
