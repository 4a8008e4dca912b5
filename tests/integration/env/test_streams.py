"""Streams come and go; attempts, outcomes and tokens stay."""

import asyncio

import grpc
import grpc.aio
import pytest
from testkit.controls import RecordingControl
from testkit.env_services import running_env
from testkit.proxies import ScriptedProxy, Turn
from testkit.runners import Command, RunnerSide, spec
from testkit.tokenizers import byte_tokenizer, files

from headrace.wire.environments.v1 import environments_pb2

TOKENIZER = byte_tokenizer()
FILES = files(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")
SLOW = Turn([1, 2, 3, 4, 5, 6, 7, END], chunk_size=1, delay_s=0.05)


@pytest.fixture
async def control():
    async with RecordingControl() as control:
        yield control


@pytest.fixture
async def env(control):
    async with running_env(control) as env:
        yield env


def quick(_start):
    return Turn([1, END])


def runner_of(env, proxy, **more):
    return RunnerSide(env.address, more.pop("spec_json", spec()), FILES, proxy.address, **more)


async def test_a_new_stream_takes_over_and_hears_what_was_not_acknowledged(env):
    async with ScriptedProxy(quick) as proxy:
        async with runner_of(env, proxy, acknowledges=False) as first:
            await first.assign("t0")
            await first.assign("t1")
            await first.finals(2)
            await first.acknowledge("t0")
            await asyncio.sleep(0.1)
        async with runner_of(env, proxy, epoch=2, acknowledges=False) as second:
            (again,) = await second.finals(1)
            assert second.opened.job_epoch == 2 and not second.opened.running
            assert again.key.trajectory_id == "t1" and again.finish_reason == "completed"
            await asyncio.sleep(0.1)
            assert len(second.outcomes) == 1


async def test_running_attempts_survive_their_stream_and_are_listed(env):
    async with ScriptedProxy(lambda _: SLOW) as proxy:
        async with runner_of(env, proxy) as first:
            await first.assign("t0")
            await first.until(lambda: first.started)
        async with runner_of(env, proxy, epoch=2) as second:
            assert [key.trajectory_id for key in second.opened.running] == ["t0"]
            await second.until(lambda: second.started)  # told again
            assert (await second.final()).finish_reason == "completed"
        assert len(proxy.starts) == 3  # nothing was generated twice


async def test_an_older_epoch_is_refused_and_a_newer_one_ends_the_older_stream(env):
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy, epoch=5) as first:
        async with runner_of(env, proxy, epoch=4) as old:
            assert old.opened is None
            assert (
                old.error.code() is grpc.StatusCode.FAILED_PRECONDITION and "4 is older than 5" in old.error.details()
            )
        async with runner_of(env, proxy, epoch=6) as newer:
            await first.until(lambda: first.error is not None)
            assert first.error.code() is grpc.StatusCode.ABORTED
            await newer.assign("t0")
            assert (await newer.final()).finish_reason == "completed"


async def test_assigning_twice_plays_once(env):
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy, acknowledges=False) as runner:
        await runner.assign("t0")
        await runner.assign("t0")
        await runner.finals(1)
        await runner.assign("t0")
        first, second = await runner.finals(2)
        assert first == second
        await runner.acknowledge("t0")
        await runner.assign("t0")
        await asyncio.sleep(0.2)
        assert len(runner.outcomes) == 3  # started, and the outcome twice
        assert len(proxy.starts) == 3


@pytest.mark.parametrize(
    ("files_", "spec_json", "words"),
    [
        ({}, spec(), "tokenizer.json is missing"),
        (FILES, "{", "spec_json"),
        (FILES, spec({"sampling": {"stop": ["two words"]}}), "single tokens"),
        (FILES, spec({"env": {"isolation": "moon"}}), "env.isolation"),
    ],
)
async def test_a_job_that_cannot_be_opened_is_refused_with_the_reason(env, files_, spec_json, words):
    async with RunnerSide(env.address, spec_json, files_) as runner:
        assert runner.error.code() is grpc.StatusCode.INVALID_ARGUMENT and words in runner.error.details()


async def test_the_first_command_must_be_open(env):
    runner = RunnerSide(env.address, spec(), FILES)
    async with runner:
        pass
    from headrace.service.grpc import channel
    from headrace.wire.environments.v1 import environments_pb2_grpc

    async with channel(env.address) as raw:
        call = environments_pb2_grpc.EnvironmentsStub(raw).Run()
        await call.write(environments_pb2.AssignmentFrame(commands=[Command(pause=environments_pb2.PauseJob())]))
        with pytest.raises(grpc.aio.AioRpcError, match="must be open"):
            await call.read()


async def test_an_abort_ends_the_attempt_with_its_reason_and_the_turn_at_the_proxy(env):
    async with ScriptedProxy(lambda _: SLOW) as proxy, runner_of(env, proxy) as runner:
        await runner.assign("t0")
        await runner.until(lambda: runner.started)
        await runner.abort("t0", "surplus")
        lost = await runner.final()
        assert lost.fault.code == "surplus" and lost.n_generated_tokens >= 1 and lost.start_version == 0
        for _ in range(100):
            if proxy.aborts:
                break
            await asyncio.sleep(0.02)
        assert proxy.aborts == ["t0/1/0"]
        await runner.abort("t9", "surplus")
        assert (await runner.finals(2))[1].fault.code == "unknown_attempt"


async def test_the_proxy_hears_of_every_end_once_its_turns_are_over(env):
    async with ScriptedProxy(lambda s: SLOW if s.key.trajectory_id == "t1" else quick(s)) as proxy:
        async with runner_of(env, proxy) as runner:
            for name in ("t0", "t1"):
                await runner.assign(name)
            await runner.until(lambda: len(runner.started) == 2)
            await runner.abort("t1", "evicted_stale")
            await runner.finals(2)
            async with asyncio.timeout(5):
                while len(proxy.ended) < 2:
                    await asyncio.sleep(0.02)
        assert sorted(proxy.ended) == [("t0", 1), ("t1", 1)]
        assert [start.HasField("start_version") for start in proxy.starts if start.key.trajectory_id == "t0"] == [
            False,
            True,
            True,
        ]


async def test_an_unknown_task_is_a_named_loss(env):
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy) as runner:
        await runner.assign("t0", task="chess")
        lost = await runner.final()
        assert lost.fault.code == "unknown_task" and "echo" in lost.fault.detail


async def test_closing_the_job_ends_everything(env):
    async with ScriptedProxy(lambda _: SLOW) as proxy, runner_of(env, proxy) as runner:
        await runner.assign("t0")
        await runner.until(lambda: runner.started)
        await runner.send(Command(close=environments_pb2.CloseJob()))
        async with asyncio.timeout(5):
            while env.service.jobs.n_running:
                await asyncio.sleep(0.01)
        async with runner_of(env, proxy, epoch=1) as fresh:
            assert not fresh.opened.running


async def test_a_proxy_that_restarts_costs_nothing(env):
    async with ScriptedProxy(lambda _: SLOW) as proxy, runner_of(env, proxy) as runner:
        await runner.assign("t0")
        await runner.until(lambda: runner.started)
        await proxy.stop()
        await asyncio.sleep(0.2)
        await proxy.listen(int(proxy.address.rsplit(":", 1)[1]))
        done = await runner.final()
        assert done.n_generated_tokens == 24 and done.finish_reason == "completed"
        again = [s for s in proxy.starts if s.request_id == "t0/1/0"]
        assert len(again) == 2 and len(again[1].kept_token_ids) >= 1
        assert again[1].assignment_epoch > again[0].assignment_epoch
        assert again[1].start_version == 0
        assert proxy.named == [[], ["t0"]], "a stream begins with the trajectories that are not over"


async def test_a_proxy_at_another_address_goes_on_with_the_open_turns(env):
    async with ScriptedProxy(lambda _: SLOW) as lost, ScriptedProxy(lambda _: SLOW) as found:
        async with runner_of(env, lost) as runner:
            await runner.assign("t0")
            await runner.until(lambda: runner.started)
            await lost.stop()
            await runner.send(Command(proxy=environments_pb2.SetProxy(address=found.address)))
            done = await runner.final()
        assert done.n_generated_tokens == 24
        assert found.starts[0].request_id == "t0/1/0" and found.starts[0].kept_token_ids
        assert found.named == [["t0"]]


async def test_a_control_plane_that_restarts_loses_no_outcome(env, control):
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy) as runner:
        await control.stop()
        await runner.assign("t0")
        await asyncio.sleep(0.5)
        assert not runner._finals()
        await control.listen(int(control.address.rsplit(":", 1)[1]))
        done = await runner.final()
        assert done.token_blob in control.blobs and done.grading_blob in control.blobs


async def test_a_pause_holds_new_turns_and_stops_the_clock(env):
    slow = spec({"env": {"timeouts": {"episode_s": 1.0}}})
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy, spec_json=slow) as runner:
        await runner.send(Command(pause=environments_pb2.PauseJob()))
        await runner.assign("t0")
        await asyncio.sleep(1.3)  # longer than the whole episode may take
        assert not proxy.starts and not runner.outcomes
        await runner.send(Command(resume=environments_pb2.ResumeJob()))
        assert (await runner.final()).finish_reason == "completed"


async def test_a_new_stream_begins_unpaused(env):
    async with ScriptedProxy(quick) as proxy:
        async with runner_of(env, proxy) as first:
            await first.send(Command(pause=environments_pb2.PauseJob()))
            await first.assign("t0")
            await asyncio.sleep(0.1)
            assert not proxy.starts
        async with runner_of(env, proxy, epoch=2) as second:
            assert (await second.final()).finish_reason == "completed"


async def test_a_pause_that_lasts_too_long_frees_the_environment(env):
    async with ScriptedProxy(quick) as proxy, runner_of(env, proxy, spec_json=spec(pause_ttl_s=0.2)) as runner:
        await runner.send(Command(pause=environments_pb2.PauseJob()))
        await runner.assign("t0")
        lost = await runner.final()
        assert (lost.fault.code, lost.fault.kind) == ("pause_expired", "infra")


async def test_lockstep_members_wait_for_the_slowest(env):
    def script(start):
        slow = start.key.trajectory_id == "t2"
        return Turn([1, END], delay_s=0.1 if slow else 0.0)

    async with ScriptedProxy(script) as proxy, runner_of(env, proxy) as runner:
        for name in ("t0", "t1", "t2"):
            await runner.assign(name, cohort="step-0", cohort_size=3)
        done = {o.key.trajectory_id: o for o in await runner.finals(3)}
    turns = [start.turn for start in proxy.starts]
    assert turns == sorted(turns), "a member was a turn ahead"
    assert done["t0"].phases.lockstep_wait_s > 0.15 > done["t2"].phases.lockstep_wait_s


async def test_drain_gives_every_attempt_a_named_end(env):
    async with ScriptedProxy(lambda _: SLOW) as proxy, runner_of(env, proxy) as runner:
        await runner.assign("t0")
        await runner.until(lambda: runner.started)
        async with asyncio.timeout(5):
            await env.service.jobs.drain()
        lost = await runner.final()
        assert (lost.fault.code, lost.fault.kind, lost.fault.retryable) == ("env_svc_stopped", "infra", True)
