"""The scripted trainer keeps the real one's promises on the wire, without torch and in the time it was told."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from testkit.trainers import Rig, running_trainer, spec_json

from benchmarks.scripted_model import Timing, save
from headrace.client.weights import manifest_from_wire
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc.scripted import ScriptedTrainer
from weightstore import Puller


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_trainer(tmp_path / "data", ScriptedTrainer) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(tmp_path / "model", Timing(train_s=0.1), n_parameters=64)


async def pulled(rig: Rig, manifest_bytes: bytes) -> "np.ndarray[Any, Any]":
    """The parameters as a worker would get them."""
    manifest = manifest_from_wire(manifest_bytes)
    await rig.node.commit(manifest)
    async with Puller() as puller:
        staged = await puller.pull(manifest, rig.node.address, deadline_s=20)
        theta = staged.tensors()["theta"].copy()
        staged.release()
    return theta


async def published(rig: Rig, client: Any, version: int = 0, step: int = 0) -> pb.StatePublished:
    await client.send(publish=pb.PublishState(policy_version=version, step=step))
    return await client.expect("published")  # type: ignore[no-any-return]


async def test_it_opens_from_a_config_and_hands_out_the_tokenizer(rig: Rig, model: Path) -> None:
    _, opened = await rig.open(spec_json(model))
    assert (opened.step, opened.policy_version, opened.is_attached) == (0, 0, False)
    assert (opened.vocab_size, opened.max_len, opened.n_parameters) == (16, 100, 64)
    assert {"config.json", "tokenizer.json"} <= set(opened.model_files)


async def test_every_step_makes_other_weights_and_is_made_once(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    first = await pulled(rig, (await published(rig, client)).manifest)
    await client.send(train=rig.step(1))
    done = await client.expect("finished")
    assert (done.step, done.publish_version, done.batch_digest) == (1, 1, "batch")
    assert done.metrics["n_loss_tokens"] == 4
    assert {"fetch", "update", "push", "publication_stall"} <= set(done.seconds)
    assert not np.array_equal(first, await pulled(rig, done.manifest))
    await client.send(train=rig.step(1))
    assert (await client.expect("finished")).manifest == done.manifest
    await client.send(train=rig.step(1, digest="another batch"))
    assert (await client.expect("fault")).fault.code == "step_conflict"
    await client.send(train=rig.step(3))
    assert (await client.expect("fault")).fault.code == "step_conflict"


async def test_a_step_takes_the_time_that_the_model_says(rig: Rig, tmp_path: Path) -> None:
    slow = save(tmp_path / "slow", Timing(train_s=0.2, train_per_token_s=0.05))
    client, _ = await rig.open(spec_json(slow))
    await client.send(train=rig.step(1))
    done = await client.expect("finished")
    assert 0.4 <= done.seconds["update"] < 1.5  # 0.2 + 4 tokens of 0.05


async def test_a_batch_in_parts_is_one_step(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    for part, digest in enumerate(("half", "whole")):
        command = rig.step(1, digest=digest)
        command.part, command.n_parts = part, 2
        await client.send(train=command)
        if part == 0:  # asked for again, as after a broken stream
            await client.send(train=command)
    done = await client.expect("finished")
    assert (done.batch_digest, done.metrics["n_rows"]) == ("whole", 4)
    late = rig.step(2, digest="late")
    late.part, late.n_parts = 1, 2
    await client.send(train=late)
    assert (await client.expect("fault")).fault.code == "step_conflict"


async def test_a_stream_that_breaks_in_a_step_finds_its_answer_on_the_next(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(train=rig.step(1))
    await client.expect("progress")
    client.close()
    client, opened = await rig.open(spec_json(model), epoch=2, restore_step=0)
    assert (opened.is_attached, opened.step) == (True, 0)
    await client.send(train=rig.step(1))
    assert (await client.expect("finished")).step == 1


async def test_a_restored_trainer_stands_at_its_checkpoint_with_the_same_weights(tmp_path: Path, model: Path) -> None:
    spec = spec_json(model, checkpoint={"every": 2, "keep_last": 1})
    async with running_trainer(tmp_path / "data", ScriptedTrainer) as rig:
        client, _ = await rig.open(spec)
        for number in (1, 2, 3):
            await client.send(train=rig.step(number))
            done = await client.expect("finished")
            if number == 2:
                assert (await client.expect("checkpoint")).step == 2
                weights = await pulled(rig, done.manifest)
    async with running_trainer(tmp_path / "data", ScriptedTrainer) as rig:
        client, opened = await rig.open(spec, epoch=2, restore_step=3)
        assert (opened.step, opened.policy_version, opened.is_attached) == (2, 2, False)
        again = await published(rig, client, version=4, step=2)
        assert np.array_equal(weights, await pulled(rig, again.manifest))


async def test_a_node_that_comes_back_elsewhere_gets_the_version(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model), weights_address="127.0.0.1:1")
    await client.send(train=rig.step(1))
    await client.expect("progress")
    await client.send(weights=pb.SetWeights(weights_address=rig.node.address))
    assert len(await pulled(rig, (await client.expect("finished")).manifest)) == 64


async def test_an_older_runner_is_fenced(rig: Rig, model: Path) -> None:
    old, _ = await rig.open(spec_json(model), epoch=1)
    await rig.open(spec_json(model), epoch=2, restore_step=0)
    await old.send(train=rig.step(1))
    assert (await old.expect("fault")).fault.code == "fenced"


async def test_the_end_of_a_job_leaves_room_for_the_next(rig: Rig, model: Path, tmp_path: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(close=pb.CloseTraining(export_path=str(tmp_path / "out")))
    assert (await client.expect("closed")).export_path == str(tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert rig.service.stats()["is_busy"] == 0.0


@pytest.mark.parametrize(("text", "word"), [("{", "config.json"), ('{"scripted": {"trainer": {"speed": 1}}}', "speed")])
async def test_a_config_that_says_nothing_useful_is_named(rig: Rig, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text(text)
    client = rig.client()
    await client.send(open=pb.OpenTraining(job_id="job", job_epoch=1, spec_json=spec_json(tmp_path / "bad")))
    fault = (await client.expect("fault")).fault
    assert fault.code == "model_unusable"
    assert word in fault.detail


async def test_it_says_what_a_directory_holds(rig: Rig, model: Path, tmp_path: Path) -> None:
    found = await rig.stub.Inspect(pb.InspectRequest(model_path=str(model)))
    assert (found.architecture, found.vocab_size, found.max_len) == ("Scripted", 16, 4096)
    missing = await rig.stub.Inspect(pb.InspectRequest(model_path=str(tmp_path / "nothing")))
    assert missing.fault.code == "model_unusable"


async def test_it_loads_no_torch(repository: Path) -> None:
    program = "import trainer_svc.__main__, trainer_svc.scripted, sys; sys.exit('torch' in sys.modules)"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], cwd=repository, timeout=60, check=False
    )
    assert done.returncode == 0
