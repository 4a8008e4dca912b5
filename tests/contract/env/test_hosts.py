"""One suite for every way to run an environment."""

import asyncio
import time

import pytest

from env_svc.faults import EnvFault
from env_svc.hosts import open_host
from env_svc.process_host import ProcessPool
from env_svc.spec import PluginSpec

ISOLATIONS = ["inline", "thread", "process"]


@pytest.fixture
async def pool():
    pool = ProcessPool(2)
    yield pool
    await pool.close()


@pytest.fixture(params=ISOLATIONS)
async def make(request, pool):
    """Opens hosts of one isolation, closed at the end."""
    opened = []

    async def make(name, **config):
        host = await open_host(PluginSpec(f"testkit.environments:{name}", config, "train", request.param), pool)
        opened.append(host)
        return host

    yield make
    for host in opened:
        await host.close()


async def test_a_whole_episode(make):
    host = await make("Echo", n_turns=2)
    reset = await host.reset(7, 5)
    assert reset.observation == "hello" and reset.info == {"answer": "42", "seed": 7}
    first = await host.step("é \x00 \ud800", 5)
    assert (first.observation, first.reward, first.terminated) == ("heard é \x00 \ud800", None, False)
    last = await host.step("b", 5)
    assert (last.reward, last.terminated, last.truncated, last.info) == (1.0, True, False, {"turn": 2})


async def test_coroutine_methods(make):
    host = await make("AsyncEcho")
    assert [m["role"] for m in (await host.reset(1, 5)).observation] == ["system", "user"]
    assert (await host.step("x", 5)).reward == 0.5


@pytest.mark.parametrize(
    ("name", "config", "code"),
    [
        ("Failing", {"where": "init"}, "reset_error"),
        ("Failing", {"where": "reset"}, "reset_error"),
        ("Failing", {"where": "step"}, "step_error"),
        ("Returning", {"kind": "three"}, "bad_return"),
        ("Returning", {"kind": "nan"}, "bad_reward"),
        ("Echo", {"nonsense": 1}, "reset_error"),
        ("Absent", {}, "env_import"),
    ],
)
async def test_failures_have_the_same_names_everywhere(make, name, config, code):
    host = await make(name, **config)
    with pytest.raises(EnvFault) as caught:
        await host.reset(1, 5)
        await host.step("x", 5)
    assert caught.value.code == code


async def test_a_call_that_does_not_return(make):
    host = await make("Hanging", at=2, how="sleep")
    await host.reset(1, 5)
    await host.step("x", 5)
    started = time.monotonic()
    with pytest.raises(EnvFault) as caught:
        await host.step("x", 0.2)
    assert caught.value.code == "step_timeout" and time.monotonic() - started < 2


async def test_closing_twice_and_closing_before_the_reset(make):
    host = await make("Echo")
    await host.close()


async def test_a_failed_close_is_quiet(make):
    host = await make("Failing", where="close")
    await host.reset(1, 5)
    await host.close()


async def test_processes_are_reused_and_bounded(pool, tmp_path):
    log = tmp_path / "log"

    async def episode():
        host = await open_host(PluginSpec("testkit.environments:InProcess", {"log": str(log)}), pool)
        await host.reset(1, 5)
        await host.close()

    await asyncio.gather(*(episode() for _ in range(6)))
    pids = {line.split()[1] for line in log.read_text().splitlines()}
    assert len(pids) <= 2 and pool.n_alive == len(pids)


async def test_what_an_environment_declares_is_its_default(pool):
    declared = await open_host(PluginSpec("testkit.environments:Echo"), pool)
    coroutine = await open_host(PluginSpec("testkit.environments:AsyncEcho"), pool)
    unknown = await open_host(PluginSpec("testkit.environments:Dying"), pool)
    assert [type(host).__name__ for host in (declared, coroutine, unknown)] == [
        "InlineHost",
        "InlineHost",
        "ProcessHost",
    ]
    for host in (declared, coroutine, unknown):
        await host.close()
