"""Seconds per token by task and pool: means, regret, exploration by counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.profile import HALF_LIFE_TOKENS, AffinityProfile
from headrace.core.router import AffinityRouter, LearnedRouter, RouteQuery, WorkerLoad


def test_the_mean_is_by_tokens() -> None:
    profile = AffinityProfile()
    profile.observe("t", "a", 30, 3.0)
    profile.observe("t", "a", 10, 3.0)
    assert profile.mean("t", "a") == pytest.approx(6.0 / 40, rel=0.01)
    assert profile.mean("t", "b") is None
    assert profile.means() == {"t/a": profile.mean("t", "a")}


def test_what_is_old_weighs_half_after_the_half_life() -> None:
    profile = AffinityProfile()
    for _ in range(1000):
        profile.observe("t", "a", 100, 100.0)
    for _ in range(HALF_LIFE_TOKENS // 100):
        profile.observe("t", "a", 100, 200.0)
    assert profile.mean("t", "a") == pytest.approx(1.5, rel=0.02)


def test_a_turn_without_tokens_says_nothing() -> None:
    profile = AffinityProfile()
    profile.observe("t", "a", 0, 5.0)
    assert profile.means() == {} and profile.regret_s == {}


def test_regret_of_the_tags_against_the_best_pool_that_was_seen() -> None:
    profile = AffinityProfile()
    profile.observe("t", "slow", 10, 10.0, static_pool="slow")
    assert profile.regret_s == {"t": 0.0}, "no other pool is known"
    profile.observe("t", "fast", 10, 1.0, static_pool="slow")
    assert profile.regret_s["t"] == pytest.approx(10 * (1.0 - 0.1))
    profile.observe("t", "fast", 10, 1.0, static_pool="fast")
    assert profile.regret_s["t"] == pytest.approx(9.0)
    profile.observe("t", "fast", 10, 1.0, static_pool="never used")
    assert profile.regret_s["t"] == pytest.approx(9.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.floats(0.001, 10)), max_size=40))
def test_regret_never_falls(turns: list[tuple[str, int, float]]) -> None:
    profile, before = AffinityProfile(), 0.0
    for pool, n_tokens, seconds in turns:
        profile.observe("t", pool, n_tokens, seconds, static_pool="a")
        assert profile.regret_s.get("t", 0.0) >= before
        before = profile.regret_s.get("t", 0.0)


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["lake", "pond"]),
        st.sampled_from("abc"),
        st.integers(-1, 20_000),
        st.floats(-1.0, 1e4),
        st.sampled_from(["a", "b", "c", None, "never used"]),
    ),
    max_size=30,
)
"""(task, pool, tokens, seconds, pool that the tags name)."""


@given(TURNS)
def test_a_mean_lies_between_what_was_seen_and_regret_is_the_sum_of_its_terms(turns: list[tuple]) -> None:
    profile = AffinityProfile()
    seen: dict[tuple[str, str], list[float]] = {}
    regret: dict[str, float] = {}
    for task, pool, n_tokens, seconds, static_pool in turns:
        profile.observe(task, pool, n_tokens, seconds, static_pool=static_pool)
        if n_tokens < 1 or seconds < 0:
            continue
        seen.setdefault((task, pool), []).append(seconds / n_tokens)
        means = {name: profile.mean(task, name) for name in "abc"}
        known = {name: mean for name, mean in means.items() if mean is not None}
        static = known.get(static_pool or pool)
        if static is not None:
            regret[task] = regret.get(task, 0.0) + n_tokens * (static - min(known.values()))
    assert {f"{task}/{pool}" for task, pool in seen} == profile.means().keys()
    for (task, pool), rates in seen.items():
        mean = profile.mean(task, pool)
        assert mean is not None and min(rates) * (1 - 1e-9) <= mean <= max(rates) * (1 + 1e-9)
    assert profile.regret_s == pytest.approx(regret)
    assert all(total >= 0 for total in profile.regret_s.values())


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.floats(0.001, 10), st.floats(0.001, 10))
def test_what_was_seen_before_fades_by_half_every_half_life(tokens: list[int], before: float, after: float) -> None:
    """After a long past at one rate, the share that the past still has is known from the tokens since, however cut."""
    profile = AffinityProfile()
    for _ in range(400):
        profile.observe("t", "a", 1000, 1000 * before)
    weight = profile.cells["t", "a"].weight_tokens
    for n_tokens in tokens:
        profile.observe("t", "a", n_tokens, n_tokens * after)
        weight = weight * 0.5 ** (n_tokens / HALF_LIFE_TOKENS) + n_tokens
    past = share_of_the_past(sum(tokens), weight)
    assert profile.mean("t", "a") == pytest.approx(past * before + (1 - past) * after, rel=1e-6)


def share_of_the_past(n_since: int, weight: float) -> float:
    """What 400,000 tokens at one rate weigh after `n_since` others, of all that weighs."""
    old = sum(1000 * 0.5 ** (1000 * age / HALF_LIFE_TOKENS) for age in range(400))
    return old * 0.5 ** (n_since / HALF_LIFE_TOKENS) / weight


@settings(max_examples=50)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.sets(st.sampled_from("abcd"), min_size=1), st.floats(0.1, 5)), max_size=80),
)
def test_pools_that_are_there_are_named_once_and_none_stays_unexplored(
    explore_every: int, turns: list[tuple[set[str], float]]
) -> None:
    """Pools come and go; once all have been there for a while each has had its share."""
    profile = AffinityProfile()
    turns = turns + [(set("abcd"), 1.0)] * 400
    for pools, cost in turns:
        order = profile.ranked("t", [*pools, *pools], explore_every=explore_every)
        assert sorted(order) == sorted(pools)
        profile.routed("t", order[0])
        profile.observe("t", order[0], 10, 10 * cost)
    assert sum(profile.n_routed.values()) == len(turns)
    assert min(profile.n_routed.values()) >= (len(turns) - 4) // (explore_every * 4)
    assert len(profile.n_routed) == 4


@settings(max_examples=50)
@given(
    st.permutations([1.0, 1.5, 2.5, 4.0]),
    st.integers(2, 4),
    st.lists(st.floats(0.9, 1.1), min_size=7, max_size=31),
)
def test_learned_routing_ends_at_the_cheapest_pool_whatever_the_noise(
    costs: list[float], n_pools: int, noise: list[float]
) -> None:
    """Ten percent of noise on every turn; all but the explored turns go to the cheapest."""
    cost = dict(zip("abcd", costs[:n_pools], strict=False))
    cheapest = min(cost, key=lambda pool: cost[pool])
    profile, sent = AffinityProfile(), dict.fromkeys(cost, 0)
    router = LearnedRouter(profile, explore_every=10)
    workers = [WorkerLoad(f"w-{pool}", pool) for pool in cost]
    for turn in range(300):
        chosen = router.route(RouteQuery("t"), workers, 0).worker_id
        assert chosen is not None
        pool = chosen.removeprefix("w-")
        profile.routed("t", pool)
        profile.observe("t", pool, 10, 10 * cost[pool] * noise[turn % len(noise)], static_pool="a")
        sent[pool] += 1
    assert sent[cheapest] >= 300 - (n_pools - 1) * (300 // (10 * n_pools) + 2)
    tags_lose = profile.regret_s["t"]
    assert tags_lose >= 0
    if cheapest != "a":
        assert tags_lose / (300 * 10) == pytest.approx(cost["a"] - cost[cheapest], rel=0.6)


def route(profile: AffinityProfile, cost: dict[str, float], n_turns: int) -> dict[str, int]:
    """Turns one after another; each answers at once. How many went where."""
    router, sent = LearnedRouter(profile, explore_every=10), dict.fromkeys(cost, 0)
    workers = [WorkerLoad(f"w-{pool}", pool) for pool in cost]
    for _ in range(n_turns):
        chosen = router.route(RouteQuery("t"), workers, 0).worker_id
        assert chosen is not None
        pool = chosen.removeprefix("w-")
        profile.routed("t", pool)
        profile.observe("t", pool, 10, 10 * cost[pool])
        sent[pool] += 1
    return sent


def test_learned_routing_goes_to_the_cheap_pool_and_tries_the_others_by_count() -> None:
    sent = route(AffinityProfile(), {"a": 1.0, "b": 0.2, "c": 3.0}, 300)
    assert sent["b"] >= 270
    assert sent["a"] == sent["c"] == 10, "one turn in 30 each"
    assert route(AffinityProfile(), {"a": 1.0, "b": 0.2, "c": 3.0}, 300) == sent


def test_it_notices_when_a_pool_changes() -> None:
    profile = AffinityProfile()
    assert route(profile, {"a": 1.0, "b": 0.2}, 200)["b"] > 150
    changed = route(profile, {"a": 1.0, "b": 9.0}, 400)
    assert changed["a"] > 250


def test_the_first_turns_are_shared_while_nothing_is_known() -> None:
    profile = AffinityProfile()
    for _ in range(10):
        pool = profile.ranked("t", ["a", "b"], explore_every=20)[0]
        profile.routed("t", pool)
    assert profile.n_routed == {("t", "a"): 5, ("t", "b"): 5}


class TestLearnedRouter:
    def test_the_gates_are_those_of_static_routing(self) -> None:
        router = LearnedRouter(AffinityProfile())
        assert not router.route(RouteQuery("t"), [], 0).is_available
        old, loading = WorkerLoad("a", serving_version=1), WorkerLoad("b", next_version=2, is_open=False)
        assert router.route(RouteQuery("t"), [old, loading], 2).worker_id is None
        assert router.route(RouteQuery("t"), [old, loading], 2).is_available
        held = WorkerLoad("c", is_pinned=True)
        assert router.route(RouteQuery("t"), [held, WorkerLoad("d", n_running=9)], 0).worker_id == "d"

    def test_the_worker_with_the_prefix_comes_first_and_a_full_pool_is_passed_over(self) -> None:
        profile = AffinityProfile()
        route(profile, {"a": 1.0, "b": 0.2}, 50)
        router = LearnedRouter(profile, explore_every=1000)
        cheap, dear = WorkerLoad("w-b", "b"), WorkerLoad("w-a", "a")
        assert router.route(RouteQuery("t"), [cheap, dear], 0).worker_id == "w-b"
        assert router.route(RouteQuery("t", home="w-a"), [cheap, dear], 0).worker_id == "w-a"
        full = WorkerLoad("w-b", "b", n_running=32)
        assert router.route(RouteQuery("t"), [full, dear], 0).worker_id == "w-a"

    def test_new_trajectories_wait_for_a_worker_that_takes_them(self) -> None:
        closed = WorkerLoad("w", takes_new=False)
        for router in (LearnedRouter(AffinityProfile()), AffinityRouter()):
            assert router.route(RouteQuery("t", is_new=True), [closed], 0).worker_id is None
            assert router.route(RouteQuery("t", is_new=True), [closed], 0).is_available
            assert router.route(RouteQuery("t"), [closed], 0).worker_id == "w"


def test_static_pool_is_the_first_that_is_there() -> None:
    tags = AffinityRouter(pools={"heavy": ("big", "mid")}, tags={"lake": "heavy"})
    assert tags.pool_of("lake", ["mid", "big"]) == "big"
    assert tags.pool_of("lake", ["mid"]) == "mid"
    assert tags.pool_of("lake", ["other"]) is None
    assert tags.pool_of("pond", ["big"]) is None
