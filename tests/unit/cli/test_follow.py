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
    "step": 12,
    "max_steps": 60,
    "progress": {
        "tasks": {
            "lake": {"train_recent": 0.5, "heldout": {"sampled": 0.34, "greedy": 0.57}},
            "calculator": {"train_recent": 0.75},
        },
        "lag": {"mean": 0.4, "histogram": {"1": 40, "0": 60}},
        "buffer": {"open": 30, "ready": 4},
        "seconds": {"generation": 1.5, "train": 0.5},
        "step_s": 2.0,
        "eta_s": 96.0,
    },
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
    "ledger": {"issued": 100, "trained": 96, "exits": {"evicted_stale": 4}, "in_flight": 0},
}


def render(thing: object) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(thing)
    return console.export_text()


def test_a_snapshot_reads_what_is_told() -> None:
    snapshot = read_snapshot(JOB)
    assert snapshot.lag_histogram == ((0, 60), (1, 40))
    assert [(task.name, task.sampled, task.recent) for task in snapshot.tasks] == [
        ("lake", 0.34, 0.5),
        ("calculator", None, 0.75),
    ]
    assert not snapshot.is_over


def test_a_job_that_tells_nothing_yet_can_be_shown() -> None:
    bare = {"id": "job_1", "phase": "queued", "step": None, "max_steps": 5, "progress": {}}
    assert plain_line(read_snapshot(bare)) == "queued step 0/5"
    assert "queued" in render(live_view(read_snapshot(bare), {}))


def test_one_line_for_pipes() -> None:
    line = plain_line(read_snapshot(JOB))
    assert line == "running step 12/60  lake 0.50  calculator 0.75  lag 0.40  2.00 s/step  eta 1m36s"


def test_the_live_view_shows_success_staleness_buffer_time_and_eta() -> None:
    shown = render(live_view(read_snapshot(JOB), {"lake": [0.1, 0.5, 1.0]}))
    for word in ("12/60", "0.340", "0.570", "L=0: 60", "L=1: 40", "mean 0.40", "ready 4", "generation", "eta 1m36s"):
        assert word in shown, word
    assert "▂▅█" in shown or "▁▄█" in shown


def test_a_line_appears_for_a_new_step_and_not_for_the_same(capsys: object) -> None:
    written: list[str] = []
    show = LineShow(written.append)
    snapshot = read_snapshot(JOB)
    show(snapshot)
    show(snapshot)
    show(read_snapshot({**JOB, "step": 13}))
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
    print_report({**JOB, "result": RESULT}, console)
    shown = console.export_text()
    for word in ("+0.500", "0.300", "0.900", "balanced", "evicted_stale 4", "/data/export", "2.50e-06"):
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
