"""Independent rollouts over real streams: bound trajectories, drains, local batches, repack, lost workers."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from testkit.engines import TINY_CONFIG, tiny_weights
from testkit.proxy_stack import FAILED, LENGTH, UNSPECIFIED, Caller, Stack, Turn, finished, running_stack, until

from control_plane.runner.probe import N_REQUESTS, Prober
from headrace.service.grpc import channel
from headrace.wire.common.v1 import common_pb2
from headrace.wire.inference.v1 import inference_pb2, inference_pb2_grpc


def policy(**fields: Any) -> str:
    limits = {
        "version_wait_s": fields.pop("version_wait_s", 10.0),
        "binding_grace_s": fields.pop("binding_grace_s", 1.0),
    }
    return json.dumps({"load_at": "drain", "on_load": "finish_first", "limits": limits, **fields})


@dataclass
class Trajectory:
    """An episode at its caller: turns one after another, each prompted by all before it."""

    caller: Caller
    name: str
    context: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    turns: list[Turn] = field(default_factory=list)

    @property
    def key(self) -> common_pb2.AttemptKey:
        return common_pb2.AttemptKey(trajectory_id=self.name, attempt=0)

    async def begin(self, max_new_tokens: int = 10) -> Turn:
        n_turns = len(self.turns)
        start = self.caller.request(self.name, max_new_tokens, prompt_token_ids=self.context, turn=n_turns)
        start.request_id = f"{self.name}/0/{n_turns}"
        start.sampling.seed = 1000 + n_turns
        if self.turns:
            start.start_version = self.turns[0].versions[0]
        self.turns += await self.caller.send(start)
        return self.turns[-1]

    async def play(self, max_new_tokens: int = 10) -> None:
        turn = await self.begin(max_new_tokens)
        await finished(turn)
        self.close_turn()

    def close_turn(self) -> None:
        assert self.turns[-1].finish == LENGTH, self.turns[-1]
        self.context = [*self.context, *self.turns[-1].ids, 5, 6]

    async def end(self) -> None:
        await self.caller.tell(end=inference_pb2.EndTrajectory(key=self.key))

    @property
    def versions(self) -> set[int]:
        return {version for turn in self.turns for version in turn.versions}

    @property
    def workers(self) -> list[str]:
        return [worker for turn in self.turns for worker in turn.workers]

    @property
    def ids(self) -> list[list[int]]:
        return [turn.ids for turn in self.turns]


async def begun(stack: Stack, caller: Caller, n: int, max_new_tokens: int = 10) -> list[Trajectory]:
    """That many trajectories that have played their first turn."""
    trajectories = [Trajectory(caller, f"t{i}") for i in range(n)]
    await asyncio.gather(*(trajectory.play(max_new_tokens) for trajectory in trajectories))
    return trajectories


async def test_each_worker_drains_on_its_own_and_each_trajectory_has_one_version() -> None:
    async with running_stack(policy=policy()) as stack:
        trajectories = await begun(stack, stack.caller(), 4)
        await stack.make_resident(2)
        by_worker: dict[str, list[Trajectory]] = {}
        for trajectory in trajectories:
            by_worker.setdefault(trajectory.workers[0], []).append(trajectory)
        assert len(by_worker) == 2
        (first, leaving), (second, staying) = by_worker.items()
        for trajectory in leaving:
            await trajectory.end()
        await until(lambda: stack.runner.serving(2) == [first])
        fresh = Trajectory(leaving[0].caller, "fresh")
        await asyncio.gather(fresh.play(), *(trajectory.play() for trajectory in staying))
        assert set(fresh.workers) == {first} and fresh.versions == {2}
        assert all(set(t.workers) == {second} and t.versions == {1} for t in staying)
        for trajectory in staying:
            await trajectory.end()
        await until(lambda: len(stack.runner.serving(2)) == 2)
        updates = [update for update in stack.runner.updated if update.policy_version == 2]
        assert sorted(update.worker_id for update in updates) == sorted(stack.workers)
        assert all(update.kv_rebuild_tokens == 0 for update in updates), "nothing was cut off"


async def test_a_probe_of_the_runner_keeps_no_worker_from_draining() -> None:
    async with running_stack(policy=policy(binding_grace_s=60.0)) as stack:
        prober = Prober("job_1", seed=3)
        async with channel(stack.address) as wire:
            prober.start(inference_pb2_grpc.InferenceStub(wire).Generate, 1, 32)
            samples = await prober.samples(1)
        assert len(samples) == N_REQUESTS and all(sample.logprobs for sample in samples)
        await stack.make_resident(2)
        await until(lambda: len(stack.runner.serving(2)) == 2, within_s=5.0)


async def test_local_batch_closes_a_worker_until_all_of_it_ended() -> None:
    async with running_stack(n_workers=1, policy=policy(local_batch=2)) as stack:
        caller = stack.caller()
        first = await begun(stack, caller, 2)
        third = Trajectory(caller, "third")
        turn = await third.begin()
        await first[0].end()
        await first[1].play()
        assert turn.ids == []
        await first[1].end()
        await finished(turn)
        assert third.versions == {1}


async def tails(stack: Stack, n_tokens: int) -> tuple[list[Trajectory], list[Turn]]:
    """Eight trajectories over the workers; three of four end; the rest play a long second turn."""
    caller = stack.caller()
    trajectories = await begun(stack, caller, 8)
    for trajectory in trajectories[2:]:
        await trajectory.end()
    longest = trajectories[:2]
    turns = [await trajectory.begin(n_tokens) for trajectory in longest]
    await stack.make_resident(2)
    return longest, turns


@pytest.mark.parametrize("engine", ["scripted", "hf"])
async def test_repack_changes_no_token_and_frees_workers(engine: str) -> None:
    """Draws depend on seed and position alone, so the same turns say the same with and without moves."""
    said = {}
    # Keys and values of TINY_CONFIG: 2 layers, 2 heads of 12 numbers, 4 bytes each. A scripted engine has no cache.
    bytes_per_token = 2 * 2 * 2 * 12 * 4 if engine == "hf" else 1
    for has_repack in (False, True):
        async with running_stack(
            n_workers=2 if engine == "hf" else 4,
            policy=policy(repack=has_repack, repack_every_s=0.05),
            options={"engine": engine, "t0_s": 0.01},
        ) as stack:
            longest, turns = await tails(stack, 120)
            await finished(*turns)
            said[has_repack] = [trajectory.ids for trajectory in longest]
            assert all(trajectory.versions == {1} for trajectory in longest)
            assert all(turn.finish == LENGTH and len(turn.ids) == 120 for turn in turns)
            await asyncio.sleep(0.2)
            stats = stack.runner.stats
            if has_repack:
                assert (stats.repacks, stats.moved_trajectories) >= (1, 1)
                assert turns[0].workers[-1] == turns[1].workers[-1]
                assert stats.moved_kv_bytes == stats.moved_tokens * bytes_per_token > 0
                if stats.moved_requests:
                    assert 0 < stats.first_token_after_s < 2 and stats.repeated_prefill_tokens > 0
            else:
                assert stats.repacks == 0
    assert said[False] == said[True]


async def test_a_killed_worker_s_trajectories_go_on_under_their_version() -> None:
    async with running_stack(policy=policy()) as stack:
        trajectories = await begun(stack, stack.caller(), 4)
        turns = [await trajectory.begin(80) for trajectory in trajectories]
        await stack.make_resident(2)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        await stack.workers.pop("inference-0@a").stop()
        await finished(*turns)
        assert all(turn.finish == LENGTH and len(turn.ids) == 80 for turn in turns)
        assert all(trajectory.versions == {1} for trajectory in trajectories)
        assert {turn.workers[-1] for turn in turns} == {"inference-1@a"}


async def test_the_restarted_worker_loads_the_version_that_is_waited_for() -> None:
    async with running_stack(n_workers=1, policy=policy()) as stack:
        (trajectory,) = await begun(stack, stack.caller(), 1)
        await stack.make_resident(2)
        await stack.workers.pop("inference-0@a").stop()
        await until(lambda: bool(stack.runner.lost))
        stack.published.discard(1)  # the new one has to be told to fetch it
        restarted = await stack.add_worker("inference-0@b")
        await stack.runner.update(2, "finish_first", ["inference-0@b"])
        turn = await trajectory.begin()
        await until(lambda: 1 in stack.runner.wanted)
        assert turn.finish == UNSPECIFIED and stack.runner.serving(2) == []
        await stack.runner.prefetch(restarted.source.put(1, tiny_weights(1), TINY_CONFIG))
        await finished(turn)
        assert trajectory.versions == {1}
        await trajectory.end()
        await until(lambda: stack.runner.serving(2) == ["inference-0@b"])


async def test_a_version_that_nobody_can_bring_back_is_a_named_fault() -> None:
    async with running_stack(n_workers=1, policy=policy(version_wait_s=0.5)) as stack:
        (trajectory,) = await begun(stack, stack.caller(), 1)
        await stack.workers.pop("inference-0@a").stop()
        turn = await trajectory.begin()
        await finished(turn, within_s=3.0)
        assert turn.finish == FAILED and turn.fault is not None
        assert (turn.fault.code, turn.fault.kind) == ("version_unavailable", "infra")


async def test_trajectories_of_a_broken_stream_hold_their_worker_only_while_somebody_names_them() -> None:
    async with running_stack(n_workers=2, policy=policy()) as stack:
        first = stack.caller()
        trajectories = await begun(stack, first, 2)
        by_worker = {trajectory.workers[0]: trajectory for trajectory in trajectories}
        assert len(by_worker) == 2
        await stack.make_resident(2)
        kept = trajectories[0]
        await first.close()
        again = stack.caller()
        live = inference_pb2.LiveTrajectory(job_id="job_1", key=kept.key, start_version=1, context_tokens=16)
        await again.tell(live=inference_pb2.LiveTrajectories(trajectories=[live]))
        await until(lambda: stack.runner.serving(2) == [trajectories[1].workers[0]], within_s=4.0)
        kept.caller = again
        await kept.play()
        assert kept.versions == {1} and set(kept.workers) == {trajectories[0].workers[0]}
        await kept.end()
        await until(lambda: len(stack.runner.serving(2)) == 2)


async def test_the_profile_and_the_regret_of_the_tags_are_reported() -> None:
    fields = {"hw_mapping": {"lake": ["slow"]}, "affinity": "learned"}
    async with running_stack(n_workers=0, policy=json.dumps(fields)) as stack:
        await stack.add_worker("inference-0@a", pool="slow", t0_s=0.02)
        await stack.add_worker("inference-1@a", pool="fast", t0_s=0.002)
        await stack.serve(1)
        caller = stack.caller()
        for index in range(12):
            await finished(await caller.start(f"t{index}", 8, task="lake"))
        await until(lambda: stack.runner.stats.regret_s["lake"] > 0)
        means = stack.runner.stats.profile_s_per_token
        assert means["lake/slow"] > means["lake/fast"] > 0
        workers = [turn.workers[0] for turn in caller.turns.values()]
        assert workers.count("inference-1@a") >= 9 and "inference-0@a" in workers
