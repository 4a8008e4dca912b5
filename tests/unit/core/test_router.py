"""The routing decision, gate by gate."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.profile import AffinityProfile
from headrace.core.router import AffinityRouter, LearnedRouter, Route, RouteQuery, WorkerLoad

ROUTER = AffinityRouter(pools={"heavy": ("big", "mid")}, tags={"lake": "heavy", "pond": "pond"})
ANY = RouteQuery("task")


def test_least_loaded_by_share_of_lanes_and_ties_by_id() -> None:
    workers = [
        WorkerLoad("b", n_running=3, max_running=4),
        WorkerLoad("c", n_running=4, max_running=16),
        WorkerLoad("a", n_running=1, max_running=4),
    ]
    assert ROUTER.route(ANY, workers, 0).worker_id == "a"


def test_home_wins_while_it_has_room() -> None:
    home = RouteQuery("task", home="b")
    idle = WorkerLoad("a")
    assert ROUTER.route(home, [idle, WorkerLoad("b", n_running=31)], 0).worker_id == "b"
    assert ROUTER.route(home, [idle, WorkerLoad("b", n_running=32)], 0).worker_id == "a"
    assert ROUTER.route(home, [idle, WorkerLoad("b", is_open=False)], 0).worker_id == "a"


@pytest.mark.parametrize(
    ("query", "floor", "worker", "is_available"),
    [
        (ANY, 3, WorkerLoad("a", serving_version=3), True),
        (ANY, 3, WorkerLoad("a", serving_version=2), False),
        (ANY, 3, WorkerLoad("a", serving_version=2, next_version=3, is_open=False), True),
        (ANY, 0, WorkerLoad("a", serving_version=None), False),
        (ANY, 0, WorkerLoad("a", serving_version=None, next_version=0, is_open=False), True),
        (ANY, 0, WorkerLoad("a", is_leaving=True), False),
        (RouteQuery("t", pinned_version=2), 3, WorkerLoad("a", serving_version=2), True),
        (RouteQuery("t", pinned_version=2), 0, WorkerLoad("a", serving_version=3), False),
        (RouteQuery("t", pinned_version=2), 0, WorkerLoad("a", serving_version=2, next_version=3), False),
    ],
)
def test_version_gate(query: RouteQuery, floor: int, worker: WorkerLoad, is_available: bool) -> None:
    assert ROUTER.route(query, [worker], floor).is_available == is_available


def test_a_full_or_loading_worker_means_wait() -> None:
    assert ROUTER.route(ANY, [WorkerLoad("a", n_running=32)], 0) == Route(None, is_available=True)
    assert ROUTER.route(ANY, [WorkerLoad("a", is_open=False)], 0) == Route(None, is_available=True)
    assert ROUTER.route(ANY, [], 0) == Route(None, is_available=False)


def test_pools_by_preference_with_fallback_only_when_a_pool_is_gone() -> None:
    lake = RouteQuery("lake")
    big, mid, other = WorkerLoad("a", "big"), WorkerLoad("b", "mid"), WorkerLoad("c", "other")
    assert ROUTER.route(lake, [other, mid, big], 0) == Route("a")
    assert ROUTER.route(lake, [other, mid], 0) == Route("b", is_fallback=True)
    assert ROUTER.route(lake, [other], 0) == Route("c", is_fallback=True)
    full = WorkerLoad("a", "big", n_running=32)
    assert ROUTER.route(lake, [full, mid], 0) == Route(None)
    swapping = WorkerLoad("a", "big", next_version=1, is_open=False)
    assert ROUTER.route(lake, [swapping, mid], 0) == Route(None)


def test_a_task_without_pools_goes_anywhere() -> None:
    assert ROUTER.route(RouteQuery("pond"), [WorkerLoad("c", "other")], 0) == Route("c")


def test_held_workers_are_for_evaluation_unless_nobody_else_is_there() -> None:
    held, free = WorkerLoad("a", is_pinned=True), WorkerLoad("b", n_running=9)
    assert ROUTER.route(ANY, [held, free], 0).worker_id == "b"
    assert ROUTER.route(ANY, [held], 0).worker_id == "a"
    evaluation = RouteQuery("task", is_eval=True, pinned_version=0)
    assert ROUTER.route(evaluation, [held, free], 0).worker_id == "a"
    assert ROUTER.route(evaluation, [free], 0).worker_id == "b"
    full = WorkerLoad("b", n_running=32)
    assert ROUTER.route(ANY, [held, full], 0) == Route(None), "training waits for its own worker"


workers = st.lists(
    st.builds(
        WorkerLoad,
        worker_id=st.text("abcdef", min_size=1, max_size=3),
        pool=st.sampled_from(["big", "mid", "other"]),
        serving_version=st.none() | st.integers(0, 3),
        next_version=st.none() | st.integers(0, 3),
        n_running=st.integers(0, 3),
        max_running=st.just(3),
        is_open=st.booleans(),
        is_leaving=st.booleans(),
        is_pinned=st.booleans(),
        n_bound=st.integers(0, 5),
        takes_new=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda worker: worker.worker_id,
)
queries = st.builds(
    RouteQuery,
    task=st.sampled_from(["lake", "pond", "task"]),
    is_eval=st.booleans(),
    pinned_version=st.none() | st.integers(0, 3),
    home=st.none() | st.text("abcdef", min_size=1, max_size=3),
    is_new=st.booleans(),
)


@given(queries, workers, st.integers(0, 3))
def test_a_chosen_worker_passes_every_gate(query: RouteQuery, loads: list[WorkerLoad], floor: int) -> None:
    route = ROUTER.route(query, loads, floor)
    if route.worker_id is None:
        return
    chosen = next(worker for worker in loads if worker.worker_id == route.worker_id)
    assert route.is_available
    assert chosen.is_open and not chosen.is_leaving and chosen.n_running < chosen.max_running
    assert chosen.serving_version is not None
    if query.pinned_version is None:
        assert chosen.serving_version >= floor
    else:
        assert chosen.serving_version == query.pinned_version


# The gates once more, each as its sentence says and in no hurry.


def passes_version(version: int | None, query: RouteQuery, floor: int) -> bool:
    if version is None:
        return False
    return version == query.pinned_version if query.pinned_version is not None else version >= floor


def is_live(worker: WorkerLoad, query: RouteQuery, floor: int) -> bool:
    """It serves an allowed version to the end, or is about to load one."""
    ends_with = worker.serving_version if worker.next_version is None else worker.next_version
    return not worker.is_leaving and passes_version(ends_with, query, floor)


def has_room(worker: WorkerLoad, query: RouteQuery, floor: int) -> bool:
    may_begin = not query.is_new or worker.takes_new
    is_free = worker.is_open and worker.n_running < worker.max_running
    return is_free and may_begin and passes_version(worker.serving_version, query, floor)


def by_the_book(query: RouteQuery, loads: list[WorkerLoad], floor: int) -> Route:
    live = [worker for worker in loads if is_live(worker, query, floor)]
    if not live:
        return Route(None, is_available=False)
    mine = [worker for worker in live if worker.is_pinned == query.is_eval] or live
    wanted = {"lake": ["big", "mid"]}.get(query.task, [])
    members, is_fallback = mine, bool(wanted)
    for pool in reversed(wanted):
        if there := [worker for worker in mine if worker.pool == pool]:
            members, is_fallback = there, pool != wanted[0]
    fit = [worker for worker in members if has_room(worker, query, floor)]
    if query.home in [worker.worker_id for worker in fit]:
        return Route(query.home, is_fallback=is_fallback)
    fit.sort(key=lambda w: (max(w.n_running, w.n_bound) / w.max_running, w.worker_id))
    return Route(fit[0].worker_id if fit else None, is_fallback=is_fallback)


@settings(max_examples=300)
@given(queries, workers, st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_route_is_the_one_by_the_book_in_whatever_order_workers_come(
    query: RouteQuery,
    loads: list[WorkerLoad],
    floor: int,
    rng,  # type: ignore[no-untyped-def]
) -> None:
    expected = by_the_book(query, loads, floor)
    rng.shuffle(loads)
    assert ROUTER.route(query, loads, floor) == expected


def learned(costs: dict[str, float]) -> LearnedRouter:
    """It has seen ten turns of every task in each of the pools."""
    router = LearnedRouter(AffinityProfile(), explore_every=1000)
    for pool, cost in costs.items():
        for task in ("lake", "pond", "task"):
            for _ in range(10):
                router.profile.routed(task, pool)
                router.profile.observe(task, pool, 10, 10 * cost)
    return router


@settings(max_examples=300)
@given(queries, workers, st.integers(0, 3), st.permutations([1.0, 2.0, 3.0]))
def test_learned_routing_has_the_same_gates_and_takes_the_cheapest_pool_with_room(
    query: RouteQuery, loads: list[WorkerLoad], floor: int, costs: list[float]
) -> None:
    cost_of = dict(zip(("big", "mid", "other"), costs, strict=True))
    route = learned(cost_of).route(query, loads, floor)
    live = [worker for worker in loads if is_live(worker, query, floor)]
    mine = [worker for worker in live if worker.is_pinned == query.is_eval] or live
    fit = [worker for worker in mine if has_room(worker, query, floor)]
    assert route.is_available == bool(live)
    if query.home in [worker.worker_id for worker in fit]:
        assert route.worker_id == query.home
    elif fit:
        key = {w.worker_id: (cost_of[w.pool], max(w.n_running, w.n_bound) / w.max_running, w.worker_id) for w in fit}
        assert route.worker_id == min(key, key=lambda worker_id: key[worker_id])
    else:
        assert route.worker_id is None
