"""What list, describe, buffer and weights show of the API's answers."""

from collections.abc import Iterable
from typing import Any

import pytest
from rich.console import Console, RenderableType

from headrace.cli.views import job, stock
from headrace.cli.views.parts import bar, number, percent, seconds

JOB: dict[str, Any] = {
    "id": "job_1",
    "name": "look",
    "phase": "running",
    "desired": None,
    "reason": None,
    "labels": {"team": "a"},
    "seed": 3,
    "priority": 0,
    "step": 2,
    "max_steps": 60,
    "current_version": 2,
    "created_at": "2026-01-02T00:00:00Z",
    "spec": {"async": {"preset": "bounded", "alpha": 1}},
    "result": {},
    "progress": {
        "train_reward": {"lake": 0.5},
        "evaluated": {
            "0": {"lake/sampled": 0.25, "lake/greedy": 0.5},
            "10": {"lake/sampled": 0.75, "lake/greedy": 0.5},
        },
        "seconds": {"step": 1.5},
        "training": {"step": 3, "phase": "old_logprobs", "done": 1, "of": 4},
        "eta_s": 96.0,
        "max_trained_lag": 1,
        "in_flight": 20,
        "flow": {
            "depth": 2.0,
            "depth_mean": 1.5,
            "arrivals_per_s": 5.0,
            "departures_per_s": 4.5,
            "residence_mean_s": 0.3,
            "age_mean_s": 0.1,
            "littles_law_ratio": 1.0,
        },
        "staleness": {
            "lake": {
                "surplus": {"s_train": {"0": 5}},
                "trained": {"s_gen": {"0": 3, "1": 1}, "s_train": {"1": 4}, "version_spread": {"0": 1}},
            }
        },
        "censoring": {
            "lake": {
                "kept": {"n": 4.0, "mean_tokens": 6.5, "mean_reward": 0.5, "reward_known_share": 1.0},
                "killed": {"n": 2.0, "mean_tokens": 9.0, "mean_reward": None, "reward_known_share": 0.0},
                "strata": [{"up_to_tokens": 8, "kept": 4, "killed": 1, "completion_probability": 0.8}],
                "length_distance": 0.25,
            }
        },
        "routing": {
            "routed": 2327,
            "repacks": 0,
            "repack_pause_s": 0.5,
            "regret_s": {"lake": 1.25},
            "profile_s_per_token": {"lake/default": 0.0125, "/default": 0.005},
        },
    },
}
BUFFER: dict[str, Any] = {
    "current_version": 4,
    "alpha": 1,
    "wanted": 4,
    "stock": [
        {"state": "ready", "task": "lake", "version": 4, "lag": 0, "groups": 2, "age_min_s": 0.5, "age_max_s": 1.0},
        {"state": "open", "task": "lake", "version": 4, "lag": 0, "groups": 1, "age_min_s": 0.1, "age_max_s": 0.2},
        {"state": "open", "task": "lake", "version": 2, "lag": 2, "groups": 1, "age_min_s": 3.0, "age_max_s": 3.0},
        {"state": "open", "task": "lake", "version": None, "lag": None, "groups": 1, "age_min_s": 0, "age_max_s": 0},
    ],
    "in_flight": [{"task": "lake", "state": "running", "attempts": 12}],
}
LEDGER: dict[str, Any] = {
    "recorded": {"issued": {"train": {"lake": 10}}, "closed": {"train": {"lake": {"trained": 6, "surplus": 2}}}}
}
STEP = {"step": 1.0, "buffer_wait": 0.25, "train_wall": 0.5, "overhead": 0.25, "busy/generation": 2.0, "fetch": 0.125}
STEPS: list[dict[str, Any]] = [
    {"step": 3, "state": "sampled", "metrics": {}, "seconds": {"buffer_wait": 9.0}},
    {"step": 2, "state": "committed", "metrics": {"reward/lake": 0.5}, "seconds": {**STEP, "step": 2.0}},
    {"step": 1, "state": "committed", "metrics": {"reward/lake": 0.0}, "seconds": {**STEP, "step": 1.0}},
]
REWARDS: dict[str, Any] = {
    "rewards": [
        {
            **dict.fromkeys(("scored", "abstained", "unscorable", "retried", "duplicates"), 3),
            "name": "exact",
            "queue": {"p50": 0.004, "p90": 0.5, "p99": 1.0, "max": 6.5},
            "grader": None,
        }
    ],
    "workers": {"utilisation": 0.25, "used_by_job": 0.045, "slot_s": 220.0},
}


def render(*parts: RenderableType) -> str:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for part in parts:
        console.print(part)
    return console.export_text()


def lines_with(shown: str, *words: str) -> list[str]:
    return [line for line in shown.splitlines() if all(word in line for word in words)]


def expect(shown: str, words: Iterable[str]) -> None:
    for word in words:
        assert word in shown, f"{word!r} is not in\n{shown}"


def test_the_buffer_is_drawn_by_state_and_version_newest_first() -> None:
    shown = render(stock.stock(BUFFER))
    [newest] = lines_with(shown, "██░  2 ready, 1 open")
    assert newest.split()[:2] == ["lake", "4"]
    assert "0.1 – 1.0" in newest
    [old] = lines_with(shown, "3.0 – 3.0")
    assert shown.index(newest) < shown.index(old)
    assert lines_with(shown, "no token yet", "░  1 open")
    assert "nothing waits" in render(stock.stock({**BUFFER, "stock": []}))


def test_groups_older_than_alpha_are_red() -> None:
    console = Console(width=160, record=True, force_terminal=True, color_system="standard", file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(stock.stock(BUFFER))
    red = [line for line in console.export_text(styles=True).splitlines() if "\x1b[31m" in line]
    assert len(red) == 1 and "3.0 – 3.0" in red[0]


def test_flow_tells_rates_ages_and_littles_law() -> None:
    shown = render(stock.flow(BUFFER, JOB["progress"]))
    expect(shown, ["4 groups of lag 1 at most", "12 running", "2 now, 1.50 on average", "5.00 in, 4.50 out", "= 1.000"])
    assert "of any lag" in render(stock.flow({**BUFFER, "alpha": None}, {}))


def test_staleness_shows_what_was_trained_first_and_each_part_as_shares() -> None:
    shown = render(stock.staleness(JOB["progress"], 1))
    [trained] = lines_with(shown, "lake", "trained")
    expect(trained, ["0 ██████   75 %", "1 ████████ 100 %"])
    assert shown.index("trained") < shown.index("surplus")
    assert "nothing yet" in render(stock.staleness({}, None))


def test_what_was_killed_is_shown_only_where_something_was() -> None:
    shown = render(*stock.censoring(JOB["progress"]))
    expect(shown, ["0.250 apart", "6.5", "up to 8", "80 %"])
    told = JOB["progress"]["censoring"]["lake"]
    assert stock.censoring({"censoring": {"lake": {**told, "killed": {**told["killed"], "n": 0.0}}}}) == []


def test_losses_are_told_by_name_and_share() -> None:
    [line] = lines_with(render(stock.losses(LEDGER)), "surplus")
    assert "20 %" in line
    assert not lines_with(render(stock.losses(LEDGER)), "trained")
    assert "none" in render(stock.losses({}))


def test_a_list_tells_reward_time_and_lag() -> None:
    ended = {**JOB, "id": "job_2", "phase": "failed", "progress": {}}
    shown = render(job.jobs([JOB, ended]))
    [running] = lines_with(shown, "job_1")
    expect(running, ["look", "running", "lake 0.500", "2/60", "1.5 s", "1m36s"])
    assert lines_with(shown, "job_2", "failed", "-")


def test_a_job_tells_where_it_and_its_trainer_are() -> None:
    shown = render(job.overview(JOB))
    assert lines_with(shown, "in training", "step 3: old logprobs 1 of 4")
    assert "in training" not in render(job.overview({**JOB, "phase": "succeeded"}))


def test_success_shows_the_curve_and_the_change_held_out() -> None:
    shown = render(job.success(JOB, STEPS))
    assert lines_with(shown, "lake", "training", "0.500", "▄")
    assert lines_with(shown, "held out, sampled", "0.250", "0.750", "+0.500")
    assert lines_with(shown, "held out, greedy", "+0.000")
    assert render(job.success({**JOB, "progress": {}}, []))


def test_time_is_the_mean_of_committed_steps() -> None:
    shown = render(job.time(STEPS))
    assert "last 2" in shown
    assert lines_with(shown, "wall", "buffer wait", "0.250", "17 %", "████")
    assert lines_with(shown, "wall", "step", "1.500", "▄█")
    assert lines_with(shown, "busy", "generation", "2.000")
    assert lines_with(shown, "in training", "fetch", "0.125")
    assert lines_with(shown, "in training", "around the trainer", "0.375")
    assert render(job.time([]))


def test_routing_shows_profile_regret_and_counters_that_count() -> None:
    shown = render(*job.routing(JOB["progress"]))
    assert lines_with(shown, "lake", "default", "12.5 ms", "1.2 s")
    expect(shown, ["probes of the trainer", "routed 2,327", "repack pause s 500 ms"])
    assert "repacks" not in shown
    assert render(*job.routing({}))


def test_rewards_show_times_and_utilisation() -> None:
    shown = render(*job.rewards(REWARDS))
    assert lines_with(shown, "exact", "4.0 ms / 500 ms / 6.5 s")
    expect(shown, ["25 % busy over 3.7 min", "4.5 % for this job"])
    assert job.rewards({**REWARDS, "rewards": []}) == []


def test_versions_show_what_a_worker_took_on_the_mean() -> None:
    row = {"policy_version": 7, "parent_version": 6, "step": 7, "state": "committed", "manifest_digest": "ab" * 32}
    row |= {"total_bytes": 24705, "committed_at": "2026-01-02T00:00:00Z"}
    told = {**row, "seconds": {"n_workers": 2.0, "accumulated_pull": 0.5, "load": 0.002}}
    shown = render(job.versions([told, {**row, "policy_version": 8, "seconds": {}}]))
    assert lines_with(shown, "7 ", "abababababab", "24,705", "250 ms", "1.0 ms")
    assert len(lines_with(shown, "committed")) == 2


def test_a_bar_never_hides_something_and_never_grows_beyond_its_width() -> None:
    assert [bar(share, 4) for share in (None, 0.0, 1e-9, 0.5, 1.0, 7.0)] == ["", "", "▏", "██", "████", "████"]


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "-"), (0.0, "0 s"), (-1e-9, "0 s"), (2e-5, "20 µs"), (0.0125, "12.5 ms"), (2.0, "2.0 s"), (5400, "1.5 h")],
)
def test_times_have_their_unit(value: float | None, told: str) -> None:
    assert seconds(value) == told


def test_numbers_read_well() -> None:
    assert [number(v) for v in (None, 0, 24705, 6.5532, 1234.56)] == ["-", "0", "24,705", "6.55", "1,234.6"]
    assert [percent(v) for v in (None, 0.0, 0.045, 0.5)] == ["-", "0 %", "4.5 %", "50 %"]
