"""What a person sees of a job, and the last line that programs read."""

import json

from rich.console import Console

from headrace.cli.follow.loop import LineShow
from headrace.cli.follow.report import last_line, print_report
from headrace.cli.follow.snapshot import read_snapshot
from headrace.cli.follow.view import live_view, plain_line, sparkline
from headrace.cli.loglines import shorten
from headrace.cli.output import duration, text

JOB = {
    "id": "job_1",
    "name": "lake-and-tools",
    "phase": "running",
    "step": 2,
    "max_steps": 60,
    "progress": {
        "train_reward": {"lake": 0.5, "calculator": 0.75},
        "evaluated": {"0": {"lake/sampled": 0.3}, "10": {"lake/sampled": 0.34, "lake/greedy": 0.57}},
        "evaluating": None,
        "buffer": {"open": 30, "ready": 4},
        "in_flight": 200,
        "eta_s": 96.0,
    },
}


def step(number: int, rewards: dict[str, float], lags: dict[int, int], state: str = "committed") -> dict[str, object]:
    metrics = {f"reward/{task}": value for task, value in rewards.items()}
    metrics |= {f"staleness/s_train_{lag}": float(count) for lag, count in lags.items()}
    metrics |= {"staleness/s_train_mean": 0.4, "staleness/s_train_max": 1.0}
    seconds = {"step": 1.0 + number, "buffer_wait": 0.5, "train_wall": 0.75, "busy/generation": 1.5, "kv_rebuild": 0.25}
    return {"step": number, "state": state, "metrics": metrics, "seconds": seconds}


STEPS = [
    step(3, {}, {5: 9}, state="sampled"),
    step(2, {"lake": 0.5, "calculator": 0.75}, {0: 36, 1: 24}),
    step(1, {"lake": 0.0, "calculator": 0.25}, {0: 24, 1: 16}),
]
LEDGER = {
    "equations": [
        {
            "purpose": "train",
            "left": 100,
            "used": {"trained": 96},
            "exits": {"evicted_stale": 4},
            "in_flight": {},
            "balanced": True,
        }
    ]
}
RESULT = {
    "tasks": {"lake": {"sampled": {"before": 0.3, "after": 0.8}, "greedy": {"before": 0.4, "after": 0.9}}},
    "steps": 60,
    "train_s": 30.0,
    "wall_s": 120.0,
    "ledger_balanced": True,
    "max_trained_lag": 1,
    "engine_trainer_logprob_gap": 2.5e-06,
    "model": "/data/export",
}


def render(thing: object) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(thing)
    return console.export_text()


def test_a_snapshot_reads_what_is_told() -> None:
    snapshot = read_snapshot(JOB, STEPS)
    assert snapshot.lag_histogram == ((0, 60), (1, 40)), "of committed steps alone"
    assert [(task.name, task.sampled, task.greedy, task.curve) for task in snapshot.tasks] == [
        ("lake", 0.34, 0.57, (0.0, 0.5)),
        ("calculator", None, None, (0.25, 0.75)),
    ]
    assert snapshot.step_s == 2.5
    assert snapshot.buffer == {"open": 30, "ready": 4, "in flight": 200}
    assert not snapshot.is_over


def test_a_job_that_tells_nothing_yet_can_be_shown() -> None:
    bare = {"id": "job_1", "phase": "queued", "step": None, "max_steps": 5, "progress": {}}
    assert plain_line(read_snapshot(bare)) == "queued step 0/5"
    assert "queued" in render(live_view(read_snapshot(bare)))


def test_an_evaluation_is_told_with_how_far_it_is() -> None:
    progress = {"evaluating": {"policy_version": 0, "done": 17, "of": 512}}
    line = plain_line(read_snapshot({**JOB, "step": 0, "progress": progress}))
    assert line == "running step 0/60  evaluating version 0: 17 of 512"


def test_one_line_for_pipes() -> None:
    line = plain_line(read_snapshot(JOB, STEPS))
    assert line == "running step 2/60  lake 0.50  calculator 0.75  lag 0.40  2.50 s/step  eta 1m36s"


def test_the_live_view_shows_success_staleness_buffer_time_and_eta() -> None:
    shown = render(live_view(read_snapshot(JOB, STEPS)))
    words = ["2/60", "0.340", "0.570", "L=0: 60", "L=1: 40", "mean 0.40", "ready 4", "in flight 200", "buffer wait"]
    for word in [*words, "0.750 s", "generation 1.50 s", "eta 1m36s", " ▄", "▂▆"]:
        assert word in shown, word


def test_a_line_appears_for_a_new_step_and_not_for_the_same() -> None:
    written: list[str] = []
    show = LineShow(written.append)
    snapshot = read_snapshot(JOB)
    show(snapshot)
    show(snapshot)
    show(read_snapshot({**JOB, "step": 3}))
    assert len(written) == 2


def test_the_last_line_has_exactly_the_promised_keys() -> None:
    line = last_line({**JOB, "phase": "succeeded", "result": RESULT})
    assert list(line) == [
        "job",
        "tasks",
        "steps",
        "train_s",
        "wall_s",
        "ledger_balanced",
        "max_trained_lag",
        "engine_trainer_logprob_gap",
        "model",
    ]
    assert line["tasks"]["lake"] == RESULT["tasks"]["lake"]
    json.dumps(line)


def test_a_failed_job_still_has_a_last_line() -> None:
    line = last_line({**JOB, "phase": "failed", "result": {}})
    assert line["tasks"] == {}
    assert line["ledger_balanced"] is None


def test_the_report_shows_the_rise_the_ledger_and_the_model() -> None:
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_report({**JOB, "result": RESULT}, STEPS, LEDGER, console)
    shown = console.export_text()
    for word in (
        "+0.500",
        "0.300",
        "0.900",
        "100 issued = 96 trained + 4 evicted_stale, balanced",
        "3.00 s at most",
        "/data/export",
        "2.50e-06",
    ):
        assert word in shown, word


def test_sparklines_stay_within_their_blocks() -> None:
    assert sparkline([0.0, 1.0, 2.0, -1.0]) == " ██ "


def test_log_lines_are_shortened_and_others_left_alone() -> None:
    record = {"timestamp": "2026-01-02T03:04:05.678901Z", "level": "error", "event": "crashed", "step": 3}
    assert shorten(json.dumps({**record, "exception": "Traceback\n  x\nValueError: no"})) == (
        "03:04:05.678  error    crashed  step=3  ValueError: no"
    )
    assert shorten("LOG:  plain") == "LOG:  plain"
    assert shorten("[1]") == "[1]"


def test_values_read_well() -> None:
    assert [text(v) for v in (None, "", 0.12345, 12.5, 3.0, True, {"a": 1})] == [
        "-", "-", "0.123", "12.5", "3", "True", '{"a":1}',
    ]  # fmt: skip
    assert [duration(s) for s in (5, 75, 3700)] == ["5s", "1m15s", "1h01m"]
