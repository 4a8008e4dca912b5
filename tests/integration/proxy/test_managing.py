"""The runner's stream: fencing, late joiners, holds, pauses, refused loads, routing."""

import asyncio

import grpc
import pytest
from testkit.engines import TINY_CONFIG, tiny_weights
from testkit.proxy_stack import FAILED, LENGTH, Runner, Stack, finished, running_stack, start_worker, until

from headrace.core.weights.errors import PeerLost
from headrace.wire.common.v1 import common_pb2
from headrace.wire.inference.v1 import inference_pb2

EVAL = common_pb2.PURPOSE_EVAL


async def test_a_newer_runner_fences_the_older_one() -> None:
    async with running_stack() as stack:
        newer = Runner(stack.address, job_epoch=2)
        await newer.open()
        await until(lambda: stack.runner.error is not None)
        assert stack.runner.error.code() is grpc.StatusCode.FAILED_PRECONDITION
        older = Runner(stack.address, job_epoch=1)
        await older.send(open=inference_pb2.OpenRollout(job_id="job_1", job_epoch=1))
        await until(lambda: older.error is not None)
        assert older.error.code() is grpc.StatusCode.FAILED_PRECONDITION
        await until(lambda: len(newer.serving(1)) == 2)
        await older.close()
        await newer.close()


async def test_a_runner_that_is_away_stops_nothing() -> None:
    async with running_stack() as stack:
        turns = await stack.caller().start_many(4, 60)
        await stack.runner.close()
        await finished(*turns)
        stack.runner = Runner(stack.address, job_epoch=2)
        await stack.runner.open()
        await until(lambda: len(stack.runner.serving(1)) == 2)


@pytest.mark.parametrize(
    "policy",
    [
        '{"on_load": "whatever"}',
        "[]",
        '{"hw_mapping": {"a": 1}}',
        '{"limits": {"load_s": -1}}',
        '{"local_batch": 0}',
        '{"affinity": "magic"}',
        '{"repack_every_s": 0}',
    ],
)
async def test_a_policy_that_cannot_be_followed_is_refused(policy: str) -> None:
    async with running_stack(n_workers=0) as stack:
        runner = Runner(stack.address, job_epoch=5)
        await runner.send(open=inference_pb2.OpenRollout(job_id="job_1", job_epoch=5, policy_json=policy))
        await until(lambda: runner.error is not None)
        assert runner.error.code() is grpc.StatusCode.INVALID_ARGUMENT
        await runner.close()


async def test_the_first_command_has_to_be_open() -> None:
    async with running_stack(n_workers=0) as stack:
        runner = Runner(stack.address)
        await runner.update(3)
        await until(lambda: runner.error is not None)
        assert runner.error.code() is grpc.StatusCode.INVALID_ARGUMENT
        await runner.close()


async def test_a_late_joiner_gets_no_traffic_before_it_serves() -> None:
    async with running_stack(n_workers=1, options={"max_running": 2}) as stack:
        late = await stack.add_worker("inference-9@a")
        caller = stack.caller()
        turns = await caller.start_many(6, 30)
        await asyncio.sleep(0.1)
        assert late.load == 0
        late.source.put(1, tiny_weights(1), TINY_CONFIG)
        await stack.make_resident(1)
        await stack.runner.update(1, worker_ids=["inference-9@a"])
        await finished(*turns)
        assert "inference-9@a" in {turn.workers[0] for turn in turns}


async def test_a_worker_that_cannot_load_leaves_routing_and_is_told_apart() -> None:
    """WS-05: A serves 2, B serves 1; each sample carries what made it; B comes back when it has loaded."""
    async with running_stack() as stack:
        turns = await stack.caller().start_many(8, 150)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        for worker in stack.workers.values():
            manifest = worker.source.put(2, tiny_weights(2), TINY_CONFIG)
        stack.workers["inference-1@a"].source.fail_once(2, PeerLost("scripted"))
        await stack.runner.prefetch(manifest)
        await until(lambda: len(stack.runner.prefetched) >= 4)
        await stack.runner.update(2)
        await until(lambda: len([u for u in stack.runner.updated if u.policy_version == 2]) == 2)
        faults = {u.worker_id: u.fault.code for u in stack.runner.updated if u.policy_version == 2}
        assert faults == {"inference-0@a": "", "inference-1@a": "not_resident"}
        await until(lambda: stack.runner.serving(2) == ["inference-0@a"])
        assert stack.runner.serving(1) == ["inference-1@a"]
        await finished(*turns)
        for turn in turns:
            assert turn.finish == LENGTH
            assert {w for w, v in zip(turn.workers, turn.versions, strict=True) if v == 2} == {"inference-0@a"}
        await stack.runner.prefetch(manifest)
        await until(lambda: stack.runner.n_resident(2) == 2)
        await stack.runner.update(2, worker_ids=["inference-1@a"])
        await until(lambda: len(stack.runner.serving(2)) == 2)


async def test_updates_that_overlap_end_at_the_last_one() -> None:
    async with running_stack() as stack:
        await stack.make_resident(2)
        await stack.make_resident(3)
        turns = await stack.caller().start_many(4, 80)
        await until(lambda: all(turn.ids for turn in turns))
        await stack.runner.update(2)
        await stack.runner.update(3)
        await until(lambda: len(stack.runner.serving(3)) == 2)
        await finished(*turns)
        assert all(turn.versions[-1] == 3 for turn in turns)
        assert {u.worker_id for u in stack.runner.updated if u.policy_version == 3} == set(stack.workers)


async def pinned_workers(stack: Stack) -> list[str]:
    await asyncio.sleep(0.2)
    return sorted(name for name, status in stack.runner.workers.items() if status.pinned)


async def test_a_held_worker_keeps_its_version_for_evaluation_while_the_others_go_on() -> None:
    async with running_stack() as stack:
        await stack.runner.pin(1, 1)
        assert await pinned_workers(stack) == ["inference-0@a"]
        await stack.make_resident(2)
        await stack.runner.update(2)
        await until(lambda: stack.runner.serving(2) == ["inference-1@a"])
        caller = stack.caller()
        evals = await caller.send(
            *(caller.request(f"e{i}", 20, purpose=EVAL, pinned_version=1, task="eval") for i in range(4))
        )
        train = await caller.start_many(4, 20)
        await finished(*evals, *train)
        assert all(turn.spans == [(1, 20)] and set(turn.workers) == {"inference-0@a"} for turn in evals)
        assert all(turn.spans == [(2, 20)] and set(turn.workers) == {"inference-1@a"} for turn in train)
        await stack.runner.pin(1, 0)
        await until(lambda: len(stack.runner.serving(2)) == 2)
        assert await pinned_workers(stack) == []


async def test_a_single_worker_is_shared_while_it_is_held_and_loads_afterwards() -> None:
    async with running_stack(n_workers=1) as stack:
        await stack.runner.pin(1, 1)
        await stack.make_resident(2)
        await stack.runner.update(2)
        caller = stack.caller()
        train = await caller.start("train", 10)
        evaluation = await caller.start("eval", 10, purpose=EVAL, pinned_version=1)
        await finished(train, evaluation)
        assert train.spans == evaluation.spans == [(1, 10)]
        await stack.runner.pin(1, 0)
        await until(lambda: stack.runner.serving(2) == ["inference-0@a"])


async def test_a_version_that_nobody_serves_is_a_named_loss() -> None:
    async with running_stack(policy='{"limits": {"version_wait_s": 0.3}}') as stack:
        turn = await stack.caller().start("orphan", 10, pinned_version=77)
        await finished(turn, within_s=2.0)
        assert turn.finish == FAILED
        assert turn.fault is not None
        assert (turn.fault.code, turn.fault.kind, turn.fault.retryable) == ("version_unavailable", "infra", True)


async def test_a_pause_holds_new_turns_back_and_lets_the_running_finish() -> None:
    async with running_stack() as stack:
        caller = stack.caller()
        running = await caller.start("running", 40)
        await until(lambda: bool(running.ids))
        await stack.runner.send(pause=inference_pb2.PauseRollout())
        waiting = await caller.start("waiting", 5)
        await finished(running)
        assert waiting.ids == []
        await stack.runner.send(resume=inference_pb2.ResumeRollout())
        await finished(waiting)


async def test_closing_the_rollout_ends_every_request_with_a_reason() -> None:
    async with running_stack() as stack:
        turns = await stack.caller().start_many(4, 3000)
        await until(lambda: all(turn.ids for turn in turns))
        await stack.runner.send(close=inference_pb2.CloseRollout())
        await finished(*turns, within_s=2.0)
        assert {turn.fault.code for turn in turns if turn.fault} == {"rollout_closed"}
        assert await until(lambda: stack.load == 0) < 1.0
        late = await stack.caller().start("late", 5)
        await finished(late, within_s=2.0)
        assert late.fault is not None and late.fault.code == "rollout_closed"


async def test_a_worker_that_is_left_out_finishes_what_it_runs() -> None:
    async with running_stack() as stack:
        turns = await stack.caller().start_many(6, 80)
        await until(lambda: all(turn.ids for turn in turns))
        on_it = [turn for turn in turns if turn.workers[0] == "inference-0@a"]
        await stack.name_workers("inference-0@a")
        fresh = await stack.caller().start("fresh", 5)
        await finished(*turns, fresh)
        assert on_it and all(set(turn.workers) == {"inference-0@a"} for turn in on_it)
        assert set(fresh.workers) == {"inference-1@a"}
        await until(lambda: stack.service.table.worker("inference-0@a") is None)


async def test_tags_choose_the_pool_and_fall_back_while_it_is_gone() -> None:
    policy = '{"hw_mapping": {"heavy": ["big"]}, "task_tags": {"lake": "heavy"}}'
    async with running_stack(n_workers=0, policy=policy) as stack:
        await stack.add_worker("inference-0@a", pool="big")
        await stack.add_worker("inference-1@a", pool="small")
        await stack.serve(1)
        caller = stack.caller()
        turns = await caller.send(*(caller.request(f"l{i}", 5, task="lake") for i in range(4)))
        await finished(*turns)
        assert {turn.workers[0] for turn in turns} == {"inference-0@a"}
        await stack.workers.pop("inference-0@a").stop()
        await until(lambda: bool(stack.runner.lost))
        fallback = await caller.start("fallback", 5, task="lake")
        await finished(fallback)
        assert set(fallback.workers) == {"inference-1@a"}
        await until(lambda: stack.runner.stats.fallback_routed == 1)
        await stack.add_worker("inference-0@b", pool="big")
        await stack.serve(1)
        back = await caller.start("back", 5, task="lake")
        await finished(back)
        assert set(back.workers) == {"inference-0@b"}


async def test_a_worker_of_another_name_on_the_address_is_not_taken() -> None:
    async with running_stack(n_workers=1, hello_timeout_s=0.3) as stack:
        stranger = await start_worker("inference-0@z")
        await stack.runner.name(("inference-5@a", stranger.address, "default"))
        await asyncio.sleep(0.8)
        assert "inference-5@a" not in stack.runner.workers
        await stranger.stop()
