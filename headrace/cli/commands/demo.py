"""`headrace demo`: what `make demo` runs once everything is installed."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from headrace.cli.commands.model import READY, demo_model_dir, make_demo_model
from headrace.cli.commands.submit import follow_to_end, read_spec, set_option
from headrace.cli.errors import INTERRUPTED, TIMED_OUT, CliError
from headrace.cli.output import note
from headrace.cli.server import data_dir_option, errors_as_exit_codes
from headrace.cli.up import state
from headrace.cli.up.layout import DataDir
from headrace.cli.up.process import ChildProcess, Command
from headrace.client.rest import ApiError, RestClient, Unreachable

DEFAULT_JOB = Path("examples/lake_and_tools.yaml")
DEMO_LABEL = "demo:true"
READY_S = 180.0
CANCEL_S = 5.0
DOWN_S = 40.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=DEFAULT_JOB)
@set_option
@click.option("--seed", default=1, show_default=True, help="Of the demo model's weights and demonstrations.")
@click.option("--json", "as_json", is_flag=True, help="Only the last line of JSON.")
@data_dir_option
def demo(file: Path, overrides: tuple[str, ...], seed: int, as_json: bool, data_dir: Path) -> int:
    """Make the demo model if it is not there, start every service, train the job FILE, report, stop everything.

    Ctrl-C stops all of it.
    """
    spec = read_spec(file, [*_demo_model(data_dir, seed, overrides), *overrides], None)
    with errors_as_exit_codes(), _terminable(), _services(DataDir(data_dir)) as server, RestClient(server) as api:
        _cancel_left_over(api)
        job = api.submit(spec)
        for warning in job.get("warnings", []):
            note(f"warning: {warning}")
        note(f"submitted {job['id']}; console: {server}")
        try:
            return follow_to_end(api, job["id"], as_json=as_json, can_detach=False)
        except KeyboardInterrupt:
            _cancel(api, job["id"])
            raise


def _cancel_left_over(api: RestClient) -> None:
    """A demo that was killed leaves its job unfinished, and services that start again would go on with it first."""
    for job in api.jobs(label=DEMO_LABEL, phase=["queued", "starting", "running", "pausing", "paused"]):
        note(f"cancelling {job['id']}, which an earlier demo left unfinished")
        _cancel(api, job["id"])


def _cancel(api: RestClient, job_id: str) -> None:
    """Cancel and wait a little: what is not over when the services stop is cancelled when they are next up."""
    with suppress(ApiError, Unreachable):
        api.wish(job_id, "cancel")
        api.job(job_id, wait_s=CANCEL_S, until="terminal")


def _demo_model(data_dir: Path, seed: int, overrides: tuple[str, ...]) -> list[str]:
    """The override that names the demo's model, which is made first if need be; none if another model is named."""
    if any(override.startswith("model.path=") for override in overrides):
        return []
    folder = demo_model_dir(data_dir).absolute()
    if not (folder / READY).exists():
        note("making the demo model: a tiny network, warm-started on scripted demonstrations that lack the skill")
        make_demo_model(folder, seed)
    return [f"model.path={folder}"]


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _services(data_dir: DataDir) -> Iterator[str]:
    """`headrace up` as a child of this process; gives the server's URL and takes everything down at the end."""
    argv = [sys.executable, "-m", "headrace.cli", "up", "--data-dir", str(data_dir.root)]
    command = Command("launcher", argv, orphan_signal=signal.SIGTERM)
    launcher = ChildProcess(command, data_dir.root / "launcher.log")
    try:
        yield _wait_until_ready(data_dir, launcher)
    except KeyboardInterrupt:
        note("interrupted; stopping every service")
        raise CliError("interrupted", INTERRUPTED) from None
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the way down is not to be cut short by the same Ctrl-C
        launcher.stop(DOWN_S)
        signal.signal(signal.SIGINT, before)


def _wait_until_ready(data_dir: DataDir, launcher: ChildProcess) -> str:
    told = 0
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        lines = launcher.log_tail(lines=1000).splitlines()
        for line in lines[told:]:
            note(line)
        told = max(told, len(lines))
        found = state.read(data_dir) or {}
        if found.get("launcher_pid") == launcher.pid and found.get("is_ready"):
            return str(found["server"])
        if launcher.exit_code is not None:
            raise CliError("the services did not start; see above", launcher.exit_code or 1)
        time.sleep(0.2)
    raise CliError(f"the services were not ready after {READY_S:g} s; see {data_dir.logs}", TIMED_OUT)
