"""A logical request survives swaps, lost workers and broken streams; its caller sees one stream of tokens."""

import asyncio

import pytest
from testkit.proxy_stack import ABORTED, FAILED, LENGTH, Stack, finished, running_stack, until


async def reference_ids(stack: Stack, max_new_tokens: int) -> list[int]:
    """What an undisturbed turn of this seed and prompt says under the version served now."""
    turn = await stack.caller().start("reference", max_new_tokens)
    await finished(turn)
    return turn.ids


async def test_turns_come_back_with_version_worker_digest_and_logprobs() -> None:
    async with running_stack() as stack:
        turns = await stack.caller().start_many(8, 20)
        await finished(*turns)
        for turn in turns:
            assert (turn.finish, turn.spans, len(turn.logprobs)) == (LENGTH, [(1, 20)], 20)
            assert len(turn.digests) == 1 and turn.digests != {""}
        assert {worker for turn in turns for worker in turn.workers} == set(stack.workers)


async def test_publish_under_load_aborts_nobody_and_each_turn_has_two_spans() -> None:
    """AS-11, resume: 16 long requests in flight, all finish, tokens of both versions."""
    async with running_stack() as stack:
        turns = await stack.caller().start_many(16, 100)
        await until(lambda: all(len(turn.ids) >= 10 for turn in turns))
        second = await stack.serve(2)
        await finished(*turns)
        for turn in turns:
            assert (turn.finish, len(turn.ids), [version for version, _ in turn.spans]) == (LENGTH, 100, [1, 2])
            assert second.digest in turn.digests
        updates = [update for update in stack.runner.updated if update.policy_version == 2]
        assert {update.worker_id for update in updates} == set(stack.workers)
        for update in updates:
            assert update.weight_digest == second.digest
            assert 0 < update.load_s <= update.pause_s < 2
            assert 0 < update.kv_rebuild_s < 2
            assert update.kv_rebuild_tokens >= 8 * (12 + 10)
        await until(lambda: stack.runner.stats.continued == 16)
        assert stack.runner.stats.regenerated_tokens == 0


async def test_discard_throws_old_tokens_away_and_only_the_new_version_remains() -> None:
    """AS-04, false: the finished sample holds one version; what was thrown away is named."""
    async with running_stack() as stack:
        turns = await stack.caller().start_many(4, 60)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        await stack.serve(2, mode="discard")
        await finished(*turns)
        assert all(turn.spans == [(2, 60)] and turn.n_discarded >= 5 for turn in turns)
        await until(lambda: stack.runner.stats.discarded_tokens >= sum(turn.n_discarded for turn in turns))


async def test_continue_keeps_spans_over_two_swaps() -> None:
    """AS-04, true: three versions in one response, a logprob for each token."""
    async with running_stack(n_workers=1) as stack:
        turn = await stack.caller().start("long", 120)
        await until(lambda: len(turn.ids) >= 5)
        await stack.serve(2)
        await until(lambda: 2 in turn.versions)
        await stack.serve(3)
        await finished(turn)
        assert [version for version, _ in turn.spans] == [1, 2, 3]
        assert len(turn.logprobs) == len(turn.ids) == 120


async def test_finish_first_loads_when_nothing_runs_and_new_turns_wait_for_it() -> None:
    async with running_stack() as stack:
        caller = stack.caller()
        old = await caller.start_many(4, 60)
        await until(lambda: all(turn.ids for turn in old))
        await stack.make_resident(2)
        await stack.runner.update(2, "finish_first")
        new = await caller.start("new", 5)
        await finished(*old, new)
        assert all(turn.spans == [(1, 60)] for turn in old)
        assert new.spans == [(2, 5)]


async def test_a_lost_worker_costs_a_chunk_and_its_turns_go_on_elsewhere() -> None:
    async with running_stack() as stack:
        expected = await reference_ids(stack, 100)
        turns = await stack.caller().start_many(8, 100)
        await until(lambda: all(len(turn.ids) >= 10 for turn in turns))
        await stack.workers.pop("inference-0@a").stop()
        await finished(*turns)
        # The draw depends on seed and position alone, so an interrupted turn says what an undisturbed one says.
        assert all(turn.ids == expected and turn.finish == LENGTH for turn in turns)
        assert {turn.workers[-1] for turn in turns} == {"inference-1@a"}
        assert [lost.worker_id for lost in stack.runner.lost] == ["inference-0@a"]
        assert any(len(set(turn.workers)) == 2 for turn in turns)


async def test_a_worker_that_comes_back_is_used_again_once_it_serves_a_version() -> None:
    """GP-03: the only engine is restarted on its address while requests wait."""
    async with running_stack(n_workers=1) as stack:
        expected = await reference_ids(stack, 60)
        turns = await stack.caller().start_many(3, 60)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        old = stack.workers.pop("inference-0@a")
        await old.stop()
        await until(lambda: bool(stack.runner.lost))
        port = int(old.address.rpartition(":")[2])
        await stack.add_worker("inference-0@b", port=port)
        assert all(turn.finish == 0 for turn in turns)
        await stack.serve(1)
        await finished(*turns)
        assert all(turn.ids == expected for turn in turns)


async def test_a_caller_that_comes_back_in_time_gets_the_rest_and_nothing_is_made_twice() -> None:
    async with running_stack() as stack:
        expected = await reference_ids(stack, 100)
        first = stack.caller()
        turn = await first.start("moved", 100)
        await until(lambda: len(turn.ids) >= 10)
        made_before = sum(worker.service.stats().generated_tokens for worker in stack.workers.values())
        await first.close()
        again = await stack.caller().take_up(turn, assignment_epoch=2)
        await finished(again)
        assert again.ids == expected
        made = sum(worker.service.stats().generated_tokens for worker in stack.workers.values()) - made_before
        assert made <= 100


async def test_a_caller_that_is_gone_leaves_no_load_after_a_second() -> None:
    """AS-12 and GP-04: 50 streams' worth of requests, connection closed; a new call is answered at once."""
    async with running_stack() as stack:
        caller = stack.caller()
        turns = await caller.start_many(50, 3000)
        await until(lambda: all(turn.ids for turn in turns))
        await caller.close()
        assert await until(lambda: stack.load == 0) < 1.0
        fresh = await stack.caller().start("fresh", 3)
        await finished(fresh, within_s=1.0)
        await until(lambda: stack.service.table.n_open == 0, within_s=3.0)


async def test_an_abort_gives_back_what_there_is() -> None:
    """AS-12: each caller has its tokens and logprobs, the finished ones stay finished."""
    async with running_stack() as stack:
        caller = stack.caller()
        short = await caller.start("short", 2)
        await finished(short)
        turns = await caller.start_many(8, 3000)
        await until(lambda: all(len(turn.ids) >= 5 for turn in turns))
        await caller.abort(*turns, short)
        await finished(*turns, within_s=1.0)
        assert all(turn.finish == ABORTED and len(turn.ids) == len(turn.logprobs) >= 5 for turn in turns)
        assert short.finish == LENGTH
        assert await until(lambda: stack.load == 0) < 1.0


async def test_a_caller_may_close_its_half_and_still_hear_the_end() -> None:
    async with running_stack() as stack:
        caller = stack.caller()
        turn = await caller.start("last", 30)
        await caller.done_writing()
        await finished(turn)
        assert turn.finish == LENGTH


async def test_a_bad_request_fails_alone_and_says_why() -> None:
    async with running_stack() as stack:
        caller = stack.caller()
        good = await caller.start("good", 10)
        bad = await caller.start("bad", 10, prompt_token_ids=[10**6])
        empty = await caller.start("empty", 10, prompt_token_ids=[])
        other = await caller.start("other", 10, job_id="job_2")
        await finished(good, bad, empty, other)
        codes = [turn.fault.code for turn in (bad, empty, other) if turn.fault]
        assert codes == ["token_out_of_range", "empty_prompt", "unknown_job"]
        assert [turn.finish for turn in (good, bad, empty, other)] == [LENGTH, FAILED, FAILED, FAILED]


@pytest.mark.parametrize("n_lanes", [1, 3])
async def test_no_more_run_than_a_worker_has_lanes(n_lanes: int) -> None:
    async with running_stack(n_workers=1, options={"max_running": n_lanes}) as stack:
        turns = await stack.caller().start_many(8, 20)
        worker = stack.workers["inference-0@a"]
        most = 0
        while any(turn.finish == 0 for turn in turns):
            most = max(most, worker.load)
            await asyncio.sleep(0.005)
        assert most == n_lanes
        assert all(turn.finish == LENGTH for turn in turns)
