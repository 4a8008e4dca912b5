"""Rewards to be computed, as outbox entries."""

from hypothesis import given
from hypothesis import strategies as st
from testkit.specs import CALCULATOR, make_spec

from control_plane.runner.scoring import MAX_ITEMS, batches
from headrace.core.job.actions import ScoreAttempt
from headrace.core.job.rows import Key

SPEC = make_spec()
STYLE = {"fn": "my_graders.style:judge", "name": "style", "timeout_s": 9}
TWO = make_spec(tasks=[{**CALCULATOR, "rewards": [*CALCULATOR["rewards"], STYLE]}])


def asked(number: int, reward_try: int = 1, names: tuple[str, ...] = ("grade",)) -> ScoreAttempt:
    return ScoreAttempt(Key(f"trj_{number:03d}", 1), "tools", names, f"blob-{number}", reward_try)


def test_nothing_to_score_is_nothing_to_send() -> None:
    assert batches("job_1", SPEC, []) == []


def test_an_item_has_all_that_a_worker_needs() -> None:
    (payload,) = batches("job_1", SPEC, [asked(4)])
    assert payload == {
        "items": [
            {
                "job_id": "job_1", "trajectory_id": "trj_004", "attempt": 1, "reward_name": "grade", "try_number": 1,
                "fn": "reward_svc.graders.calculator:grade", "timeout_s": 5.0, "grading_blob": "blob-4",
            }
        ]
    }  # fmt: skip


def test_first_tries_travel_together_up_to_a_limit() -> None:
    payloads = batches("job_1", SPEC, [asked(n) for n in range(MAX_ITEMS * 2 + 3)])
    assert [len(payload["items"]) for payload in payloads] == [MAX_ITEMS, MAX_ITEMS, 3]


def test_slow_gradings_travel_in_smaller_batches_so_that_more_workers_begin() -> None:
    wanted = [asked(n) for n in range(6)]
    by_time = {seconds: batches("job_1", SPEC, wanted, grader_s=seconds) for seconds in (0.001, 0.1, 5.0)}
    assert {seconds: len(payloads) for seconds, payloads in by_time.items()} == {0.001: 1, 0.1: 3, 5.0: 6}


def test_a_repeated_try_travels_alone() -> None:
    """It may be the one that made the others of its batch late."""
    payloads = batches("job_1", SPEC, [asked(1), asked(2, reward_try=2), asked(3), asked(4, reward_try=3)])
    found = [[item["trajectory_id"] for item in payload["items"]] for payload in payloads]
    assert sorted(found) == [["trj_001", "trj_003"], ["trj_002"], ["trj_004"]]


def test_every_reward_of_the_task_is_an_item_of_its_own() -> None:
    (payload,) = batches("job_1", TWO, [asked(1, names=("grade", "style"))])
    assert [(item["reward_name"], item["fn"], item["timeout_s"]) for item in payload["items"]] == [
        ("grade", "reward_svc.graders.calculator:grade", 5.0),
        ("style", "my_graders.style:judge", 9.0),
    ]


def test_only_those_that_are_asked_for() -> None:
    (payload,) = batches("job_1", TWO, [asked(1, names=("style",))])
    assert [item["reward_name"] for item in payload["items"]] == ["style"]


@given(st.lists(st.integers(1, 3), max_size=60))
def test_every_item_leaves_exactly_once(tries: list[int]) -> None:
    payloads = batches("job_1", SPEC, [asked(n, reward_try) for n, reward_try in enumerate(tries)])
    items = [item for payload in payloads for item in payload["items"]]
    assert sorted((i["trajectory_id"], i["try_number"]) for i in items) == [
        (f"trj_{n:03d}", reward_try) for n, reward_try in enumerate(tries)
    ]
    assert all(1 <= len(payload["items"]) <= MAX_ITEMS for payload in payloads)
