"""Grader processes: a limit is an outcome of one item, and what hangs is killed."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from reward_svc.call import GraderFault, Score
from reward_svc.grader_process import GraderProcess

DOCUMENT = {"completion": "3", "answer": "3", "info": {}}


@pytest.fixture
def grader():
    process = GraderProcess()
    yield process
    process.close()


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("fn", "kill_after_s"), [("tower", 1.0), ("slow", 0.5)])
def test_a_grader_that_never_ends(grader, fn, kill_after_s):  # GR-01
    document = DOCUMENT | {"info": {"sleep_s": 3600, "score": 1}}
    assert grader.grade("testkit.graders:right", document, 5) == Score(1.0, {})
    pid = grader.pid
    started = time.monotonic()
    with pytest.raises(GraderFault, match=r"rewards\.timeout_s") as caught:
        grader.grade(f"testkit.graders:{fn}", document, kill_after_s)
    assert caught.value.code == "timeout" and time.monotonic() - started < kill_after_s + 1
    assert not is_running(pid)  # killed, not merely no longer waited for
    assert grader.grade("testkit.graders:right", document, 5) == Score(1.0, {})
    assert grader.pid != pid


def test_eight_threads_and_one_of_them_hangs():  # GR-02
    local = threading.local()
    made = []

    def one(fn):
        if not hasattr(local, "grader"):
            local.grader = GraderProcess()
            made.append(local.grader)
        try:
            return local.grader.grade(f"testkit.graders:{fn}", DOCUMENT, 5 if fn != "tower" else 1).value
        except GraderFault as fault:
            return fault.code

    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(one, ["alarmed"] * 8)) == [1.0] * 8
            mixed = ["alarmed"] * 3 + ["tower"] + ["right"] * 4
            assert list(pool.map(one, mixed)) == [1.0] * 3 + ["timeout"] + [1.0] * 4
    finally:
        for grader in made:
            grader.close()


@pytest.mark.parametrize(
    ("fn", "code", "words"),
    [
        ("dies", "crashed", "process ended"),
        ("raises", "grader_error", "no number"),
        ("missing", "grader_import", "missing"),
        ("greedy", "memory", "memory"),
    ],
)
def test_faults_leave_the_next_item_alone(fn, code, words):
    grader = GraderProcess(memory_mb=512)
    try:
        for _ in range(2):
            with pytest.raises(GraderFault, match=words) as caught:
                grader.grade(f"testkit.graders:{fn}", DOCUMENT, 5)
            assert caught.value.code == code
            assert grader.grade("testkit.graders:right", DOCUMENT, 5).value == 1.0
    finally:
        grader.close()


def test_credentials_are_out_of_sight(grader, monkeypatch):
    monkeypatch.setenv("HEADRACE_BROKER_URL", "redis://:secret@host")
    monkeypatch.setenv("SECRET_KEY", "x")
    assert grader.grade("testkit.graders:secrets", DOCUMENT, 5).value == 0.0


def test_what_a_grader_prints_is_not_its_answer(grader):
    assert grader.grade("testkit.graders:prints", DOCUMENT, 5).value == 1.0


def test_one_process_serves_many_items(grader):
    pids = {grader.grade("testkit.graders:process", DOCUMENT, 5).value for _ in range(5)}
    assert pids == {float(grader.pid)}
    grader.close()
    assert not is_running(int(pids.pop()))
