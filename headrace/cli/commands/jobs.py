"""Commands about jobs: list, describe, cancel, pause, resume, wait."""

import time
from typing import Any

import click

from headrace.cli.errors import JOB_FAILED, TIMED_OUT, CliError
from headrace.cli.follow.report import equations
from headrace.cli.output import duration, emit_json, note
from headrace.cli.server import Target, server_options
from headrace.cli.views import job as views
from headrace.cli.views import stock
from headrace.cli.views.parts import facts, show
from headrace.client.rest import LONG_POLL_S, TERMINAL, RestClient


@click.command("list")
@click.option("--phase", multiple=True, help="Only jobs in this phase; may be repeated.")
@click.option("-l", "--label", multiple=True, metavar="KEY:VALUE", help="Only jobs with this label; may be repeated.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@server_options
def list_jobs(phase: tuple[str, ...], label: tuple[str, ...], limit: int, target: Target) -> None:
    """List jobs, newest first: phase, step, reward of the newest batch, seconds of the last step, lag."""
    with target.connect() as api:
        found = list(api.jobs(limit=limit, phase=list(phase) or None, label=list(label) or None))
    if target.as_json:
        emit_json(found)
    elif found:
        show([views.jobs(found)])
    else:
        note("none")


@click.command()
@click.argument("job_id")
@server_options
def describe(job_id: str, target: Target) -> None:
    """Show one job: success, where its time goes, staleness, ledger, routing, rewards, result."""
    with target.connect() as api:
        job = api.job(job_id)
        ledger, buffer, rewards = (api.of_job(job_id, what) for what in ("ledger", "buffer", "rewards"))
        steps = api.of_job(job_id, "steps", limit=views.SHOWN_STEPS)["items"]
    if target.as_json:
        emit_json({**job, "ledger": ledger, "buffer": buffer, "rewards": rewards, "steps": steps})
        return
    progress = job.get("progress") or {}
    show(
        [
            views.overview(job),
            views.success(job, steps),
            views.time(steps),
            stock.stock(buffer),
            stock.flow(buffer, progress),
            stock.staleness(progress, buffer["alpha"]),
            *stock.censoring(progress),
            facts("ledger", dict(equations(ledger))),
            stock.losses(ledger),
            *views.routing(progress),
            *views.rewards(rewards),
        ]
    )


def _wish(action: str, told: str) -> click.Command:
    @click.command(action)
    @click.argument("job_id")
    @server_options
    def command(job_id: str, target: Target) -> None:
        with target.connect() as api:
            job = api.wish(job_id, action)
        if target.as_json:
            emit_json(job)
        else:
            note(f"{job_id}: {told} (phase {job['phase']})")

    command.help = {
        "cancel": "End a job: work in flight is aborted, the ledger closed, the last checkpoint kept.",
        "pause": "Stop admission and new turns of a job.",
        "resume": "Let a paused job go on.",
    }[action]
    return command


cancel = _wish("cancel", "will be cancelled")
pause = _wish("pause", "will pause")
resume = _wish("resume", "will go on")


@click.command()
@click.argument("job_id")
@click.option("--for", "until", default="terminal", show_default=True, help="`terminal`, or a phase such as running.")
@click.option("--timeout", "timeout_s", default=3600.0, show_default=True, help="Seconds.")
@server_options
def wait(job_id: str, until: str, timeout_s: float, target: Target) -> int:
    """Wait until a job is over (exit 0 if it succeeded, 1 if not), or is in a phase. Exit 6 when the time is over."""
    with target.connect() as api:
        job = wait_for(api, job_id, until, timeout_s)
    if target.as_json:
        emit_json(job)
    else:
        note(f"{job_id} {job['phase']}" + (f": {job['reason']}" if job.get("reason") else ""))
    is_failed = job["phase"] in TERMINAL and job["phase"] not in ("succeeded", until)
    return JOB_FAILED if is_failed else 0


def wait_for(api: RestClient, job_id: str, until: str, timeout_s: float) -> dict[str, Any]:
    """The job once it is in phase `until`, or over. Raises a timeout error after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(deadline - time.monotonic(), 0.01)
        job = api.job(job_id, wait_s=min(LONG_POLL_S, left_s), until=until)
        if job["phase"] in TERMINAL or job["phase"] == until:
            return job
        if time.monotonic() >= deadline:
            raise CliError(f"{job_id} is still {job['phase']} after {duration(timeout_s)}", TIMED_OUT)
