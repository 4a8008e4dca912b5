"""The trainer over gRPC with real weights: open, publish, step, repeat, restore, export, and what goes wrong."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch
from testkit.tiny_models import save_tiny_model, tiny_model
from testkit.trainers import Rig, running_trainer, spec_json, tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.client.weights import manifest_from_wire
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from weightstore import Puller


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_trainer(tmp_path / "data") as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


async def pulled(rig: Rig, manifest_bytes: bytes) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """The tensors that a worker would get."""
    manifest = manifest_from_wire(manifest_bytes)
    await rig.node.commit(manifest)
    async with Puller() as puller:
        staged = await puller.pull(manifest, rig.node.address, deadline_s=20)
        tensors = {name: tensor.copy() for name, tensor in staged.tensors().items()}
        staged.release()
    return tensors


async def test_version_zero_is_the_model_directory(rig: Rig, model: Path) -> None:
    client, opened = await rig.open(spec_json(model))
    assert (opened.step, opened.policy_version, opened.is_attached) == (0, 0, False)
    assert (opened.vocab_size, opened.max_len) == (29, 100)
    assert {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= set(opened.model_files)
    await client.send(publish=pb.PublishState(policy_version=0, step=0))
    published = await client.expect("published")
    tensors = await pulled(rig, published.manifest)
    expected = tiny_model().state_dict()
    assert tensors.keys() == expected.keys()
    assert all(np.array_equal(tensors[name], tensor.numpy()) for name, tensor in expected.items())


async def test_a_step_moves_the_weights_and_is_made_once(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(publish=pb.PublishState(policy_version=0, step=0))
    first = await pulled(rig, (await client.expect("published")).manifest)
    await client.send(train=rig.step(1))
    done = await client.expect("finished")
    assert (done.step, done.publish_version, done.is_skipped) == (1, 1, False)
    assert done.metrics["n_loss_tokens"] == 4
    assert {"fetch", "old_logprobs", "update", "push", "publication_stall"} <= set(done.seconds)
    second = await pulled(rig, done.manifest)
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    await client.send(train=rig.step(1))
    again = await client.expect("finished")
    assert again.manifest == done.manifest
    await client.send(train=rig.step(1, digest="another batch"))
    fault = (await client.expect("fault")).fault
    assert fault.code == "step_conflict"
    await client.send(train=rig.step(3))
    assert (await client.expect("fault")).fault.code == "step_conflict"


async def test_the_recorded_step_can_be_published_under_another_number(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(train=rig.step(1))
    done = manifest_from_wire((await client.expect("finished")).manifest)
    await client.send(train=rig.step(1, publish=7))
    other = manifest_from_wire((await client.expect("finished")).manifest)
    assert (other.version.policy_version, other.content_digest) == (7, done.content_digest)


async def test_a_step_without_signal_is_a_version_with_the_same_bytes(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(publish=pb.PublishState(policy_version=0, step=0))
    before = manifest_from_wire((await client.expect("published")).manifest)
    await client.send(train=rig.step(1, rig.group(1.0, 1.0), rig.group(None, 1.0)))
    done = await client.expect("finished")
    assert (done.is_skipped, done.skip_reason) == (True, "no trainable tokens")
    assert manifest_from_wire(done.manifest).content_digest == before.content_digest
    assert done.metrics["n_zero_variance_groups"] == 2
    assert done.metrics["n_unscorable"] == 1


async def test_a_stream_that_breaks_in_a_step_finds_its_answer_on_the_next(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(train=rig.step(1))
    await client.expect("progress")
    client.close()
    client, opened = await rig.open(spec_json(model), epoch=2, restore_step=0)
    assert (opened.is_attached, opened.step) == (True, 0)
    await client.send(train=rig.step(1))
    assert (await client.expect("finished")).step == 1


async def test_a_weight_node_that_comes_back_elsewhere_gets_the_version(tmp_path: Path, model: Path) -> None:
    async with running_trainer(tmp_path / "data") as rig:
        client, _ = await rig.open(spec_json(model), weights_address="127.0.0.1:1")
        await client.send(train=rig.step(1))
        await client.expect("progress")
        await client.send(weights=pb.SetWeights(weights_address=rig.node.address))
        assert await pulled(rig, (await client.expect("finished")).manifest)


async def test_a_version_whose_bytes_were_lost_is_published_again_after_later_steps(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    await client.send(train=rig.step(1))
    first = (await client.expect("finished")).manifest
    await client.send(train=rig.step(2))
    await client.expect("finished")
    await client.expect("checkpoint")
    await client.send(publish=pb.PublishState(policy_version=1, parent_version=0, step=1, lost_epoch=1))
    assert manifest_from_wire((await client.expect("published")).manifest).digest == manifest_from_wire(first).digest
    await client.send(publish=pb.PublishState(policy_version=7, step=1))
    assert (await client.expect("fault")).fault.code == "step_conflict"


async def test_a_restored_trainer_has_lost_bytes_only_where_it_stands(tmp_path: Path, model: Path) -> None:
    async with running_trainer(tmp_path / "data") as rig:
        _, manifests = await train_to(rig, model, 2)
    async with running_trainer(tmp_path / "data") as rig:
        client, opened = await rig.open(spec_json(model), epoch=2, restore_step=2)
        assert opened.step == 2
        await client.send(publish=pb.PublishState(policy_version=1, parent_version=0, step=1, lost_epoch=1))  # ignored
        await client.send(publish=pb.PublishState(policy_version=2, parent_version=1, step=2, lost_epoch=1))
        again = (await client.expect("published")).manifest
        assert manifest_from_wire(again).digest == manifest_from_wire(manifests[2]).digest


async def test_an_older_runner_is_fenced(rig: Rig, model: Path) -> None:
    old, _ = await rig.open(spec_json(model), epoch=1)
    new, opened = await rig.open(spec_json(model), epoch=2, restore_step=0)
    assert opened.is_attached
    await old.send(train=rig.step(1))
    assert (await old.expect("fault")).fault.code == "fenced"
    late = rig.client()
    await late.send(open=pb.OpenTraining(job_id="job", job_epoch=1, spec_json=spec_json(model)))
    assert (await late.expect("fault")).fault.code == "fenced"
    await new.send(train=rig.step(1))
    assert (await new.expect("finished")).step == 1


async def train_to(rig: Rig, model: Path, last: int) -> tuple[object, dict[int, bytes]]:
    client, _ = await rig.open(spec_json(model))
    manifests: dict[int, bytes] = {}
    for number in range(1, last + 1):
        await client.send(train=rig.step(number, rig.group(1.0, 0.0, version=number - 1)))
        manifests[number] = (await client.expect("finished")).manifest
        if number % 2 == 0:
            assert (await client.expect("checkpoint")).step == number
    return client, manifests


async def test_a_restarted_trainer_goes_on_from_its_checkpoint_with_the_same_result(
    tmp_path: Path, model: Path
) -> None:
    async with running_trainer(tmp_path / "data") as rig:
        _, manifests = await train_to(rig, model, 3)
        wanted = manifest_from_wire(manifests[3]).content_digest
    async with running_trainer(tmp_path / "data") as rig:
        client, opened = await rig.open(spec_json(model), epoch=2, restore_step=3)
        assert (opened.step, opened.policy_version, opened.is_attached) == (2, 2, False)
        await client.send(publish=pb.PublishState(policy_version=4, parent_version=2, step=2))
        restored = manifest_from_wire((await client.expect("published")).manifest)
        assert restored.content_digest == manifest_from_wire(manifests[2]).content_digest
        await client.send(train=rig.step(3, rig.group(1.0, 0.0, version=2), publish=5))
        again = manifest_from_wire((await client.expect("finished")).manifest)
        assert again.content_digest == wanted


async def test_an_incomplete_checkpoint_is_skipped(tmp_path: Path, model: Path) -> None:
    async with running_trainer(tmp_path / "data") as rig:
        await train_to(rig, model, 2)
    half = tmp_path / "data" / "job" / "checkpoints" / "step-00000003"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    async with running_trainer(tmp_path / "data") as rig:
        _, opened = await rig.open(spec_json(model), epoch=2, restore_step=3)
        assert opened.step == 2


async def test_the_export_loads_with_transformers(rig: Rig, model: Path, tmp_path: Path) -> None:
    client, manifests = await train_to(rig, model, 1)
    target = tmp_path / "out" / "trained"
    await client.send(close=pb.CloseTraining(export_path=str(target)))  # type: ignore[attr-defined]
    assert (await client.expect("closed")).export_path == str(target)  # type: ignore[attr-defined]
    trained = AutoModelForCausalLM.from_pretrained(target).state_dict()
    expected = await pulled(rig, manifests[1])
    assert all(np.array_equal(trained[name].numpy(), tensor) for name, tensor in expected.items())
    assert AutoTokenizer.from_pretrained(target).encode("Left") == AutoTokenizer.from_pretrained(model).encode("Left")
    await client.send(train=rig.step(2))  # type: ignore[attr-defined]
    assert (await client.expect("fault")).fault.code == "not_open"  # type: ignore[attr-defined]


async def test_the_gap_is_measured_over_the_version_held_or_a_probe(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    reference = tiny_model()
    ids = [5, 6, 7, 8, 9, 10]
    with torch.no_grad():
        table = reference(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    logprobs = [float(table[place - 1, ids[place]]) for place in range(2, 6)]
    command = rig.step(1)
    command.probe.append(pb.ProbeSample(token_ids=ids, n_prompt=2, logprobs=logprobs, worker_id="w"))
    await client.send(train=command)
    metrics = (await client.expect("finished")).metrics
    assert metrics["logprob_gap/mean"] < 1e-5
    assert (metrics["logprob_gap/n_tokens"], metrics["logprob_gap/is_probe"]) == (4, 1)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        (lambda model: spec_json(model / "nowhere"), "model_unusable"),
        (lambda model: "{", "spec_unusable"),
        (lambda model: spec_json(model, checkpoint={"path": "s3://bucket/x"}), "spec_unusable"),
    ],
)
async def test_what_cannot_be_opened_says_why(rig: Rig, model: Path, spec: object, code: str) -> None:
    client = rig.client()
    await client.send(open=pb.OpenTraining(job_id="job", job_epoch=1, spec_json=spec(model)))  # type: ignore[operator]
    assert (await client.expect("fault")).fault.code == code
    await client.send(train=rig.step(1))
    assert (await client.expect("fault")).fault.code == "not_open"


async def test_bad_tokens_are_named_and_the_step_can_still_be_made(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    outside = rig.group(1.0, 0.0, answers=[[500], [4]])
    await client.send(train=rig.step(1, outside))
    fault = (await client.expect("fault")).fault
    assert fault.code == "batch_unusable"
    assert "t0" in fault.detail
    missing = rig.group(1.0, 0.0)
    del rig.control.blobs[missing.members[0].token_blob]
    await client.send(train=rig.step(1, missing))
    fault = (await client.expect("fault")).fault
    assert (fault.code, fault.retryable) == ("blob_missing", True)
    await client.send(train=rig.step(1))
    assert (await client.expect("finished")).step == 1


async def test_inspect_reads_no_weights(rig: Rig, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"not weights")
    facts = await rig.stub.Inspect(pb.InspectRequest(model_path=str(model)), timeout=10)
    assert (facts.architecture, facts.vocab_size, facts.max_len) == ("Qwen3ForCausalLM", 29, 128)
    facts = await rig.stub.Inspect(pb.InspectRequest(model_path="/nowhere"), timeout=10)
    assert facts.fault.code == "model_unusable"
    (model / "tokenizer.json").unlink()
    facts = await rig.stub.Inspect(pb.InspectRequest(model_path=str(model)), timeout=10)
    assert "tokenizer" in facts.fault.detail


async def test_an_empty_response_neither_votes_nor_trains(rig: Rig, model: Path) -> None:
    client, _ = await rig.open(spec_json(model))
    group = rig.group(10.0, 0.0, 0.0)
    group.members[0].token_blob = rig.control.put(tokens(6, []))
    await client.send(train=rig.step(1, group))
    done = await client.expect("finished")
    assert done.is_skipped
    assert done.metrics["n_empty"] == 1
