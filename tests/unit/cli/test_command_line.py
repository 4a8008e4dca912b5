"""The command line itself: quick help, near-miss hints, exit codes."""

import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.cli.commands.submit import read_spec
from headrace.cli.errors import CliError, code_of_status
from headrace.cli.main import COMMANDS, cli

HEADRACE = Path(sys.executable).with_name("headrace")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HEADRACE, *arguments], capture_output=True, text=True, timeout=30, check=False)


def test_help_comes_at_once() -> None:
    run("--help")  # byte code is written
    times = []
    for _ in range(5):
        started = time.process_time(), time.monotonic()
        done = run("--help")
        times.append(time.monotonic() - started[1])
    assert done.returncode == 0
    assert all(name in done.stdout for name in COMMANDS)
    # 60 ms on a quiet core; the best of five, with room for a machine that does other things.
    assert min(times) < 0.4


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says_and_helps(name: str) -> None:
    module, _, attribute = COMMANDS[name].where.partition(":")
    command = getattr(import_module(f"headrace.cli.commands.{module}"), attribute)
    assert isinstance(command, click.Command)
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_near_miss_gets_a_hint_and_exit_code_two() -> None:
    done = run("submitt")
    assert done.returncode == 2
    assert "Did you mean `headrace submit`?" in done.stderr


def test_without_a_server_a_command_says_what_to_do(tmp_path: Path) -> None:
    done = run("list", "--data-dir", str(tmp_path))
    assert done.returncode == 5
    assert "run `headrace up`" in done.stderr


def test_a_bad_job_file_needs_no_server(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("schema: headrace/v1\nbach: {}\n")
    done = run("submit", str(job), "--data-dir", str(tmp_path))
    assert done.returncode == 2
    assert "/bach" in done.stderr
    assert "batch" in done.stderr, "the nearest known key"


def test_a_missing_job_file() -> None:
    with pytest.raises(CliError, match=r"there is no file nowhere\.yaml") as refused:
        read_spec(Path("nowhere.yaml"), [], None)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("status", "code"), [(400, 2), (401, 4), (403, 4), (404, 3), (408, 6), (409, 2), (422, 2), (500, 5), (503, 5)]
)
def test_every_http_status_has_an_exit_code(status: int, code: int) -> None:
    assert code_of_status(status) == code


def test_down_with_nothing_up_is_fine(tmp_path: Path) -> None:
    done = run("down", "--data-dir", str(tmp_path))
    assert done.returncode == 0
    assert "nothing is up" in done.stderr
