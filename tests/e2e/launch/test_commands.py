"""Every command against a server that really runs: output for people and programs, and exit codes."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from testkit.launched import HEADRACE, Running, run

pytestmark = pytest.mark.timeout(300)

JOB = """
schema: headrace/v1
name: waits-for-workers
labels: {team: tests}
max_steps: 1
model: {path: MODEL}
batch: {groups: 2, group_size: 2}
tasks:
  - name: lake
    env: {entry_point: "env_svc.environments.frozen_lake:FrozenLake"}
    rewards: [{env: true}]
    sampling: {max_tokens: 4}
resources: {inference: {min: 9, max: 9, engine: scripted}}
"""


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that is valid and stays queued, because so many inference workers never come."""
    from testkit.tiny_models import save_tiny_model

    folder = tmp_path_factory.mktemp("job")
    save_tiny_model(folder / "model")
    path = folder / "job.yaml"
    path.write_text(JOB.replace("MODEL", str(folder / "model")))
    return path


@pytest.fixture(scope="module")
def job_id(up: Running, job_file: Path) -> str:
    done = run("submit", str(job_file), "--data-dir", str(up.folder))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_submitted_job_is_listed_and_described(up: Running, job_id: str) -> None:
    at = ("--data-dir", str(up.folder))
    rows = json.loads(run("list", *at, "--json").stdout)
    assert [row["id"] for row in rows] == [job_id]
    assert job_id in run("list", *at, "-l", "team:tests", "--phase", "queued").stdout
    assert job_id not in run("list", *at, "-l", "team:others").stdout
    told = json.loads(run("describe", job_id, *at, "--json").stdout)
    assert (told["phase"], told["max_steps"], told["ledger"]["balanced"]) == ("queued", 1, True)
    assert "waits-for-workers" in run("describe", job_id, *at).stdout


@pytest.mark.parametrize(
    "command", [["buffer"], ["weights"], ["trajectories"], ["events"], ["describe"]], ids=lambda words: words[0]
)
def test_every_view_of_a_job_has_a_form_for_people_and_one_for_programs(
    up: Running, job_id: str, command: list[str]
) -> None:
    at = ("--data-dir", str(up.folder))
    assert run(*command, job_id, *at).returncode == 0
    json.loads(run(*command, job_id, *at, "--json").stdout)


@pytest.mark.parametrize("command", ["describe", "buffer", "weights", "trajectories", "events", "cancel", "wait"])
def test_a_job_that_is_not_there_is_exit_code_three(up: Running, command: str) -> None:
    done = run(command, "job_00000000000000000000000000", "--data-dir", str(up.folder))
    assert done.returncode == 3, done.stderr
    assert "there is no job" in done.stderr


def test_a_wait_has_a_deadline_and_exit_code_six(up: Running, job_id: str) -> None:
    started = time.monotonic()
    done = run("wait", job_id, "--timeout", "1", "--data-dir", str(up.folder))
    assert done.returncode == 6
    assert "is still queued" in done.stderr
    assert time.monotonic() - started < 15


def test_ctrl_c_detaches_from_a_job_and_never_cancels_it(up: Running, job_file: Path) -> None:
    process = subprocess.Popen(
        [HEADRACE, "submit", str(job_file), "--name", "followed", "--follow", "--data-dir", str(up.folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    submitted = process.stderr.readline()
    assert submitted.startswith("submitted job_")
    assert "queued step 0/1" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "detached" in said
    followed = submitted.split()[1]
    at = ("--data-dir", str(up.folder))
    assert json.loads(run("describe", followed, *at, "--json").stdout)["phase"] == "queued"
    assert run("cancel", followed, *at).returncode == 0
    assert run("wait", followed, "--timeout", "60", *at).returncode == 1, "a cancelled job did not succeed"


def test_dry_run_shows_the_resolved_spec_and_stores_nothing(up: Running, job_file: Path) -> None:
    at = ("--data-dir", str(up.folder))
    before = run("list", *at, "--json").stdout
    done = run("submit", str(job_file), "--dry-run", "--set", "async.alpha=3", *at)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["async"]["alpha"] == 3
    assert run("list", *at, "--json").stdout == before
    assert run("validate", str(job_file), *at).returncode == 0


def test_an_environment_that_cannot_be_imported_is_refused_with_its_place(up: Running, job_file: Path) -> None:
    override = "tasks.0.env.entry_point=nowhere.at_all:Env"
    done = run("submit", str(job_file), "--set", override, "--data-dir", str(up.folder))
    assert done.returncode == 2
    assert "/tasks/0/env" in done.stderr
    assert "nowhere" in done.stderr


def test_logs_of_one_service(up: Running) -> None:
    done = run("logs", "env-0", "--tail", "5", "--data-dir", str(up.folder))
    assert done.returncode == 0
    assert all(line.startswith("env-0") for line in done.stdout.splitlines())
    assert run("logs", "nobody", "--data-dir", str(up.folder)).returncode == 3


def test_events_follow_a_job_to_its_end(up: Running, job_id: str) -> None:
    at = ("--data-dir", str(up.folder))
    assert run("cancel", job_id, *at).returncode == 0
    done = run("events", job_id, "-f", *at, "--json", timeout_s=60)
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["id"] for line in lines] == sorted(line["id"] for line in lines)
    assert any(line["data"].get("phase") == "cancelled" for line in lines)


def test_an_environment_and_a_grader_can_be_tried_without_a_server() -> None:
    played = run("env", "test", "env_svc.environments.frozen_lake:FrozenLake", "--action", "R", "--json")
    assert played.returncode == 0, played.stderr
    assert len(json.loads(played.stdout)["observations"]) == 2
    missing = run("env", "test", "env_svc.environments.frozen_lake:Nope")
    assert missing.returncode == 1
    assert "Nope" in missing.stderr
    graded = run(
        "reward", "test", "reward_svc.graders.calculator:grade", "--completion", "x", "--answer", '"12"', "--json"
    )
    assert graded.returncode == 0, graded.stderr
    assert json.loads(graded.stdout)["score"] == 0.0
