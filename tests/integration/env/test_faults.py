"""Environments that hang, raise, die or break the contract: named, contained, closed."""

import asyncio
import time
from collections import Counter

import pytest
from testkit.controls import RecordingControl
from testkit.env_services import running_env
from testkit.proxies import ScriptedProxy, Turn
from testkit.runners import RunnerSide, spec
from testkit.tokenizers import byte_tokenizer, files

TOKENIZER = byte_tokenizer()
FILES = files(TOKENIZER)
END = TOKENIZER.token_to_id("<|im_end|>")


def script(_start):
    return Turn([1, END])


async def play(task, *, n=1, **settings):
    async with (
        RecordingControl() as control,
        ScriptedProxy(script) as proxy,
        running_env(control, **settings) as env,
        RunnerSide(env.address, spec(task), FILES, proxy.address) as runner,
    ):
        for number in range(n):
            await runner.assign(f"t{number}")
        return await runner.finals(n, timeout_s=20)


def plugin(name, isolation="auto", *, step_s=0.3, reset_s=5, episode_s=30, **config):
    timeouts = {"reset_s": reset_s, "step_s": step_s, "episode_s": episode_s}
    return {
        "env": {
            "entry_point": f"testkit.environments:{name}",
            "config": config,
            "isolation": isolation,
            "timeouts": timeouts,
        }
    }


@pytest.mark.parametrize(
    ("isolation", "how"),
    [("inline", "sleep"), ("inline", "spin"), ("inline", "await"), ("thread", "sleep"), ("process", "spin")],
)
async def test_a_step_that_never_returns(isolation, how):  # EN-01
    started = time.monotonic()
    (lost,) = await play(plugin("Hanging", isolation, at=2, how=how))
    assert (lost.fault.code, lost.fault.kind, lost.fault.retryable) == ("step_timeout", "env", True)
    assert "env.timeouts.step_s" in lost.fault.detail
    assert lost.n_generated_tokens == 4 and lost.HasField("start_version")
    assert time.monotonic() - started < 4


async def test_a_hanging_member_leaves_its_siblings_alone(tmp_path):  # EN-01: a group of 4, one hangs in a process
    async with (
        RecordingControl() as control,
        ScriptedProxy(script) as proxy,
        running_env(control) as env,
        RunnerSide(env.address, _two_tasks(), FILES, proxy.address) as runner,
    ):
        await runner.assign("bad", task="hang")
        for number in range(3):
            await runner.assign(f"good{number}", task="echo")
        outcomes = {o.key.trajectory_id: o for o in await runner.finals(4)}
        for _ in range(100):
            if env.service.stats()["env_processes"] == 0:
                break
            await asyncio.sleep(0.02)
        assert env.service.stats()["env_processes"] == 0  # the hanging process is gone, not merely left
    assert outcomes.pop("bad").fault.code == "step_timeout"
    assert {o.finish_reason for o in outcomes.values()} == {"completed"}


def _two_tasks():
    import json

    document = json.loads(spec())
    hanging = json.loads(spec({"name": "hang", **plugin("Hanging", "process", step_s=0.5)}))["tasks"][0]
    document["tasks"].append(hanging)
    return json.dumps(document)


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
@pytest.mark.parametrize(("where", "code"), [("init", "reset_error"), ("reset", "reset_error"), ("step", "step_error")])
async def test_an_environment_that_raises(isolation, where, code):  # EN-04
    (lost,) = await play(plugin("Failing", isolation, where=where))
    assert (lost.fault.code, lost.fault.kind) == (code, "env")
    assert f"RuntimeError: broken {where}" in lost.fault.detail


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
async def test_a_close_that_raises_changes_nothing(isolation):
    (done,) = await play(plugin("Failing", isolation, where="close"))
    assert done.finish_reason == "completed"


async def test_a_reset_that_fails_once(tmp_path):  # EN-04, AS-21
    log = tmp_path / "log"
    task = plugin("Failing", where="reset", flag=str(tmp_path / "flag"), log=str(log))
    async with (
        RecordingControl() as control,
        ScriptedProxy(script) as proxy,
        running_env(control) as env,
        RunnerSide(env.address, spec(task), FILES, proxy.address) as runner,
    ):
        await runner.assign("t0")
        (lost,) = await runner.finals(1)
        await runner.assign("t1")
        await runner.assign("t0", attempt=2)
        outcomes = await runner.finals(3)
    assert lost.fault.code == "reset_error" and lost.fault.retryable
    assert [o.finish_reason for o in outcomes[1:]] == ["completed"] * 2
    assert {(o.key.trajectory_id, o.key.attempt) for o in outcomes} == {("t0", 1), ("t0", 2), ("t1", 1)}
    notes = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert notes == {"made": 3, "closed": 3}  # every environment made is closed, the failed one too


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("three", "bad_return"),
        ("number", "bad_return"),
        ("info", "bad_return"),
        ("nan", "bad_reward"),
        ("text_reward", "bad_reward"),
    ],
)
async def test_a_step_that_breaks_the_contract(kind, code):
    (lost,) = await play(plugin("Returning", kind=kind))
    assert (lost.fault.code, lost.fault.kind) == (code, "env")
    assert "step" in lost.fault.detail


@pytest.mark.parametrize(
    ("entry_point", "words"),
    [
        ("no_such_module:Env", "No module named 'no_such_module'"),
        ("testkit.environments:Missing", "Missing"),
        ("testkit.environments", "pkg.module:Class"),
        ("json:__name__", "not a class"),
    ],
)
@pytest.mark.parametrize("isolation", ["auto", "process"])
async def test_an_environment_that_cannot_be_imported(entry_point, words, isolation):
    (lost,) = await play({"env": {"entry_point": entry_point, "isolation": isolation}})
    assert (lost.fault.code, lost.fault.kind, lost.fault.retryable) == ("env_import", "env", False)
    assert words in lost.fault.detail


async def test_a_process_that_dies():
    (lost,) = await play(plugin("Dying"))
    assert (lost.fault.code, lost.fault.kind) == ("env_crashed", "env")


async def test_environments_see_no_credentials(monkeypatch):
    monkeypatch.setenv("HEADRACE_BROKER_URL", "redis://:secret@host")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    async with (
        RecordingControl() as control,
        ScriptedProxy(script) as proxy,
        running_env(control) as env,
        RunnerSide(env.address, spec(plugin("Secretive")), FILES, proxy.address) as runner,
    ):
        await runner.assign("t0")
        (done,) = await runner.finals(1)
    assert b"SECRET_TOKEN" not in control.blobs[done.grading_blob]
    assert b"HEADRACE" not in control.blobs[done.grading_blob] and b"PATH" in control.blobs[done.grading_blob]


async def test_an_episode_past_its_deadline_names_who_took_the_time():
    (lost,) = await play(plugin("Hanging", at=1, how="await", step_s=30, episode_s=0.5))
    assert (lost.fault.code, lost.fault.kind) == ("episode_timeout", "env")
    assert "step" in lost.fault.detail


async def test_a_proxy_that_never_answers_is_no_fault_of_the_environment():
    async with (
        RecordingControl() as control,
        running_env(control) as env,
        RunnerSide(env.address, spec(plugin("Echo", episode_s=0.5)), FILES, "127.0.0.1:9") as runner,
    ):
        await runner.assign("t0")
        (lost,) = await runner.finals(1)
    assert (lost.fault.code, lost.fault.kind) == ("episode_timeout", "infra")
    assert not lost.HasField("start_version") and lost.n_generated_tokens == 0


async def test_slots_are_freed_by_every_end():
    outcomes = await play(plugin("Hanging", "inline", at=1, how="await", step_s=0.1), n=5, slots=1)
    assert [o.fault.code for o in outcomes] == ["step_timeout"] * 5


async def test_more_isolated_episodes_than_processes():
    outcomes = await play(plugin("InProcess"), n=6, max_processes=2)
    assert [o.finish_reason for o in outcomes] == ["completed"] * 6
