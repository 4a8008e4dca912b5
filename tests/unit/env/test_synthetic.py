"""Draws, scripts and episodes of the synthetic environment."""

import asyncio
import statistics
from typing import Any

import pytest

from env_svc.environments.synthetic import Delayed, Synthetic, Timing, draw, reward_of, script_of
from env_svc.faults import EnvFault, InfraFault
from env_svc.hosts import InlineHost
from env_svc.process_host import ProcessPool
from env_svc.spec import PluginSpec

ENTRY = "env_svc.environments.synthetic:Synthetic"
NOW = {"kind": "constant", "value": 0}


def turns(value: float) -> dict[str, Any]:
    return {"kind": "constant", "value": value}


def test_a_draw_belongs_to_its_seed() -> None:
    spec = {"kind": "gaussian", "mean": 10, "sigma": 4}
    assert draw(spec, 7) == draw(spec, 7) != draw(spec, 8)
    assert draw({"kind": "constant", "value": 3}, 1) == 3.0


def test_a_gaussian_is_redrawn_below_zero_so_its_mean_grows() -> None:
    narrow = [draw({"kind": "gaussian", "mean": 10, "sigma": 1}, seed) for seed in range(2000)]
    wide = [draw({"kind": "gaussian", "mean": 10, "sigma": 10}, seed) for seed in range(2000)]
    assert statistics.mean(narrow) == pytest.approx(10, abs=0.1)
    assert statistics.stdev(narrow) == pytest.approx(1, abs=0.1)
    assert min(wide) >= 0
    # E[X | X > 0] of N(10, 10) is 10 + 10 * phi(1) / Phi(1) = 12.876
    assert statistics.mean(wide) == pytest.approx(12.876, abs=0.6)


def test_a_lognormal_has_its_median_and_its_cap() -> None:
    spec = {"kind": "lognormal", "median": 20, "sigma": 1.0, "most": 60}
    values = [draw(spec, seed) for seed in range(2000)]
    assert statistics.median(values) == pytest.approx(20, rel=0.1)
    assert max(values) == 60


@pytest.mark.parametrize("spec", [{}, {"kind": "uniform"}, {"kind": "gaussian", "mean": -100, "sigma": 1}])
def test_a_draw_that_cannot_be_made_says_why(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"kind|negative"):
        draw(spec, 1)


def test_failures_come_as_often_as_asked() -> None:
    timing = Timing(1.0, NOW, NOW, turns(2), turns(1), fail_reset=0.1, fail_step=0.2)
    at = [script_of(timing, seed, 0).fails_at for seed in range(3000)]
    assert at.count(0) / len(at) == pytest.approx(0.1, abs=0.02)
    assert at.count(1) / len(at) == pytest.approx(0.9 * 0.2, abs=0.02)
    assert at.count(2) / len(at) == pytest.approx(0.9 * 0.8 * 0.2, abs=0.02)


async def test_an_episode_follows_its_script() -> None:
    config = {"run": "follows", "turns": turns(3), "tokens": {"kind": "lognormal", "median": 30, "sigma": 1}}
    script = script_of(Timing(0.0, turns(1), NOW, config["turns"], config["tokens"]), 5, 0)
    environment = Synthetic(**config, unit_s=0.0)
    observation, info = await environment.reset(seed=5)
    assert info["place"] == 0
    for number, turn in enumerate(script.turns, start=1):
        assert observation == f"cccc#{turn.n_tokens:03d}"
        observation, reward, is_over, is_truncated, _ = await environment.step("ab")
        assert (is_over, is_truncated) == (number == 3, False)
    assert reward == 0.5


async def test_siblings_of_a_run_are_counted_and_a_new_run_begins_anew() -> None:
    places = []
    for run in ("one", "one", "two"):
        _, info = await Synthetic(run=run, unit_s=0.0).reset(seed=9)
        places.append(info["place"])
    assert places == [0, 1, 0]


async def test_time_passes_as_drawn() -> None:
    environment = Synthetic(run="time", unit_s=0.02, latency=turns(3), reset=turns(2), grader_s=0.05)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await environment.reset(seed=1)
    assert loop.time() - started >= 0.04 * 0.99
    started = loop.time()
    await environment.step("a")
    assert loop.time() - started >= (0.06 + 0.05) * 0.99


@pytest.mark.parametrize(
    ("blame", "kind", "code"), [("env", "env", "step_error"), ("infra", "infra", "synthetic_failure")]
)
async def test_a_failure_is_blamed_as_asked(blame: str, kind: str, code: str) -> None:
    config = {"run": f"blame {blame}", "unit_s": 0.0, "fail_step": 1.0, "blame": blame}
    host = InlineHost(PluginSpec(ENTRY, config))
    await host.reset(3, 5.0)
    with pytest.raises((EnvFault, InfraFault)) as raised:
        await host.step("a", 5.0)
    assert (raised.value.kind, raised.value.code) == (kind, code)


async def test_it_works_in_a_process_as_well() -> None:
    """As `headrace env test` plays it."""
    from env_svc.process_host import ProcessHost

    pool = ProcessPool(1)
    host = ProcessHost(PluginSpec(ENTRY, {"unit_s": 0.0}), pool, await pool.acquire())
    try:
        assert (await host.reset(1, 20.0)).observation == "cccc#001"
        assert (await host.step("a", 20.0)).reward == 1.0
    finally:
        await host.close()
        await pool.close()


def test_rewards_are_a_function_of_seed_and_text() -> None:
    assert reward_of(1, "aabb", 0.0) == 0.5
    assert reward_of(1, "", 0.0) == 0.0
    noisy = [reward_of(seed, "aabb", 0.1) for seed in range(1000)]
    assert noisy[0] == reward_of(0, "aabb", 0.1)
    assert statistics.mean(noisy) == pytest.approx(0.5, abs=0.02)
    assert statistics.stdev(noisy) == pytest.approx(0.1, abs=0.01)


async def test_another_environment_can_be_delayed() -> None:
    inner = "env_svc.environments.frozen_lake:FrozenLake"
    environment = Delayed(inner=inner, config={"max_turns": 5}, run="delayed", unit_s=0.01, latency=turns(4))
    observation, info = await environment.reset(seed=4)
    from env_svc.environments.frozen_lake import FrozenLake

    assert (observation, info) == FrozenLake(max_turns=5).reset(seed=4)
    loop = asyncio.get_running_loop()
    started = loop.time()
    *_, info = await environment.step("Down")
    assert loop.time() - started >= 0.04 * 0.99
    assert info["n_turns"] == 1
    environment.close()


def test_blame_is_checked() -> None:
    with pytest.raises(ValueError, match="blame"):
        Synthetic(blame="nobody")
