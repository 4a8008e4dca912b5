"""`headrace up` and `headrace down`."""

import json
import subprocess
import sys
import time
from pathlib import Path

import click

from headrace.cli.errors import TIMED_OUT, CliError
from headrace.cli.output import note
from headrace.cli.server import data_dir_option
from headrace.cli.up import state
from headrace.cli.up.errors import LaunchError
from headrace.cli.up.fleet import LaunchOptions
from headrace.cli.up.launcher import Launcher, stop_running
from headrace.cli.up.layout import DataDir

DOWN_DEADLINE_S = 60.0


@click.command()
@data_dir_option
@click.option("--database-url", envvar="HEADRACE_DATABASE_URL", help="A PostgreSQL of yours instead of the embedded.")
@click.option("--broker-url", envvar="HEADRACE_BROKER_URL", help="A Redis of yours instead of the embedded.")
@click.option("--http-port", default=8470, show_default=True, type=click.IntRange(0, 65535), help="REST and console.")
@click.option("--inference-workers", default=2, show_default=True, type=click.IntRange(1, 64))
@click.option("--reward-workers", default=2, show_default=True, type=click.IntRange(1, 64), help="At most so many.")
@click.option("--engine", default="hf", show_default=True, type=click.Choice(["hf", "scripted"]))
@click.option("--trainers", default=1, show_default=True, type=click.IntRange(1, 64), help="Jobs that train at once.")
@click.option("--trainer-backend", default="torch", show_default=True, type=click.Choice(["torch", "scripted"]))
@click.option("--proxies", default=1, show_default=True, type=click.IntRange(1, 64), help="One for each job at once.")
@click.option("--ready-timeout-s", default=120.0, show_default=True, help="Give up if not ready by then.")
@click.option("--detach", is_flag=True, help="Return once everything is ready; `headrace down` stops it.")
def up(data_dir: Path, detach: bool, ready_timeout_s: float, **options: object) -> None:
    """Start every service on this machine and keep it running until Ctrl-C or `headrace down`.

    PostgreSQL and Redis are brought along unless you name yours. A service that dies is started again.
    """
    launch = LaunchOptions(data_dir=DataDir(data_dir), ready_timeout_s=ready_timeout_s, **options)  # type: ignore[arg-type]
    if detach:
        _detach(launch)
        return
    try:
        Launcher(launch, note).run(lambda url: _announce(url, launch))
    except LaunchError as error:
        raise CliError(str(error), error.exit_code) from None


def _announce(url: str, launch: LaunchOptions) -> bool:
    click.echo(f"Headrace is up: {url}  (Ctrl-C or `headrace down` stops it; logs in {launch.data_dir.logs}/)")
    return True


def _detach(launch: LaunchOptions) -> None:
    """Run the same command in a session of its own, and wait until it is ready."""
    launch.data_dir.root.mkdir(parents=True, exist_ok=True)
    log_path = launch.data_dir.root / "launcher.log"
    argv = [sys.executable, "-m", "headrace.cli", *(word for word in sys.argv[1:] if word != "--detach")]
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + launch.ready_timeout_s + 30
    while time.monotonic() < deadline:
        found = state.read(launch.data_dir) or {}
        if found.get("launcher_pid") == process.pid and found.get("is_ready"):
            _announce(found["server"], launch)
            return
        if process.poll() is not None:
            lines = log_path.read_text(errors="replace").strip().splitlines()
            message = "\n".join(lines[-20:]).removeprefix("error: ")
            raise CliError(message or "the launcher ended without a word", process.returncode or 1)
        time.sleep(0.1)
    process.terminate()
    raise CliError(f"not ready in time; see {log_path}", TIMED_OUT)


@click.command()
@data_dir_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def down(data_dir: Path, as_json: bool) -> None:
    """Stop what `headrace up` started in this data folder. Nothing to stop is fine."""
    try:
        message = stop_running(DataDir(data_dir), DOWN_DEADLINE_S)
    except LaunchError as error:
        raise CliError(str(error), TIMED_OUT) from None
    if as_json:
        click.echo(json.dumps({"data_dir": str(data_dir), "message": message}))
    else:
        note(message)
