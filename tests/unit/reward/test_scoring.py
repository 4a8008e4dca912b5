"""One batch: every item gets a report, what is known does not wait, and failures of the control plane are raised."""

import json
import time

import pytest

from headrace.client.rewards import RewardBatch, RewardItem
from reward_svc.call import GraderFault, Score
from reward_svc.scoring import Scorer
from reward_svc.tally import Tally


class ScriptedControl:
    """Holds blobs and keeps reports by call."""

    worker_id = "reward-0@x"

    def __init__(self, blobs):
        self.blobs, self.calls = blobs, []

    def get_blobs(self, address, digests):
        return {digest: self.blobs[digest] for digest in digests if digest in self.blobs}

    def report(self, address, reports):
        self.calls.append((address, list(reports)))
        return [True] * len(reports)


class ScriptedGrader:
    """Answers in order; fails when asked more often."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def grade(self, fn, document, timeout_s):
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self):
        pass


def item(name, digest="d"):
    return RewardItem("job_1", name, 1, "r", 1, "a:b", 5.0, digest)


def score(monkeypatch, *answers, items, linger_s=10.0, control=None):
    control = control or ScriptedControl({"d": json.dumps({"completion": "x"}).encode()})
    tally = Tally()
    scorer = Scorer(control, tally, linger_s=linger_s)
    grader = ScriptedGrader(*answers)
    monkeypatch.setattr(scorer, "_grader", lambda: grader)
    scorer.score(RewardBatch("control:1", tuple(items)))
    return control, tally


def test_every_item_is_reported_once_under_its_own_key(monkeypatch):
    answers = [Score(0.5, {"a": 1.0}), GraderFault("timeout", "slow\x00\ud800"), Score(None)]
    control, tally = score(monkeypatch, *answers, items=[item("t0"), item("t1"), item("t2"), item("t3", "gone")])
    ((address, reports),) = control.calls
    assert address == "control:1" and [r.key.trajectory_id for r in reports] == ["t0", "t1", "t2", "t3"]
    assert reports[0].score == 0.5 and dict(reports[0].components) == {"a": 1.0}
    assert (reports[1].fault.code, reports[1].fault.kind, reports[1].HasField("score")) == ("timeout", "env", False)
    assert "\x00" not in reports[1].fault.detail
    assert not reports[2].HasField("score") and not reports[2].HasField("fault")
    assert (reports[3].fault.code, reports[3].fault.kind) == ("blob_missing", "infra")
    figures = tally.figures()
    assert (figures["graded"], figures["faults"], figures["duplicates"]) == (4, 2, 0)


def test_what_is_known_does_not_wait_for_a_slow_neighbour(monkeypatch):
    control = ScriptedControl({"d": b"{}"})
    seen = []

    def slowly():
        deadline = time.monotonic() + 5
        while not control.calls and time.monotonic() < deadline:
            time.sleep(0.005)
        seen.extend(report.key.trajectory_id for _, reports in control.calls for report in reports)
        return Score(1.0)

    items = [item(f"t{n}") for n in range(3)]
    score(monkeypatch, Score(0.0), slowly, Score(0.0), items=items, linger_s=0.01, control=control)
    assert seen == ["t0"]
    assert [r.key.trajectory_id for _, reports in control.calls for r in reports] == ["t0", "t1", "t2"]


def test_an_empty_batch_reports_nothing(monkeypatch):
    control, _ = score(monkeypatch, items=[])
    assert control.calls == []


def test_a_batch_that_cannot_be_reported_is_not_acknowledged(monkeypatch):
    control = ScriptedControl({})
    scorer = Scorer(control, Tally())

    def refuse(address, reports):
        raise ConnectionError("down")

    control.report = refuse
    with pytest.raises(ConnectionError):
        scorer.score(RewardBatch("control:1", (item("t0", "gone"),)))
