"""Commands about what a job holds and who works: trajectories, buffer, weights, workers."""

from typing import Any

import click

from headrace.cli.output import age, emit_json, pairs, table
from headrace.cli.server import Target, server_options
from headrace.cli.views import job, stock
from headrace.cli.views.parts import show


@click.command()
@click.argument("id_", metavar="JOB_OR_TRAJECTORY_ID")
@click.option("--state", multiple=True, help="Only attempts in this state; may be repeated.")
@click.option("--task", help="Only attempts of this task.")
@click.option("--step", type=int, help="Only attempts that this step trained on.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 100_000))
@server_options
def trajectories(
    id_: str, state: tuple[str, ...], task: str | None, step: int | None, limit: int, target: Target
) -> None:
    """List a job's trajectories, newest first, or show one with its transcript."""
    with target.connect() as api:
        if id_.startswith("trj_"):
            found: Any = api.get(f"/trajectories/{id_}")
            transcript = api.get(f"/trajectories/{id_}/transcript") if not target.as_json else None
        else:
            query = {"state": list(state) or None, "task": task, "step": step}
            found = list(api.pages(f"/jobs/{id_}/trajectories", limit=limit, **query))
            transcript = None
    if target.as_json:
        emit_json(found)
    elif isinstance(found, list):
        columns = ["trajectory_id", "attempt", "task", "state", "reward", "start_version", "sample_version", "n_turns"]
        table(found, columns)
    else:
        _show_trajectory(found, transcript or {})


def _show_trajectory(found: dict[str, Any], transcript: dict[str, Any]) -> None:
    pairs({key: value for key, value in found.items() if not isinstance(value, list | dict)})
    for attempt in found.get("attempts", []):
        click.echo("")
        pairs({key: value for key, value in attempt.items() if value not in (None, {}, [])})
    for message in transcript.get("messages", []):
        click.echo(f"\n[{message.get('role')}]\n{message.get('content')}")


@click.command()
@click.argument("job_id")
@server_options
def buffer(job_id: str, target: Target) -> None:
    """Show what a job's buffer holds now, how stale it is, and what was lost."""
    with target.connect() as api:
        found = api.of_job(job_id, "buffer")
        progress = api.job(job_id).get("progress") or {}
        ledger = api.of_job(job_id, "ledger")
    if target.as_json:
        told = {name: progress.get(name) or {} for name in ("flow", "staleness", "censoring")}
        emit_json({**found, **told, "ledger": ledger})
        return
    tables = [stock.stock(found), stock.flow(found, progress), stock.staleness(progress, found["alpha"])]
    show([*tables, *stock.censoring(progress), stock.losses(ledger)])


@click.command()
@click.argument("job_id")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1, 10_000))
@server_options
def weights(job_id: str, limit: int, target: Target) -> None:
    """List a job's weight versions, newest first, with what reaching a worker took (mean over workers)."""
    with target.connect() as api:
        found = list(api.pages(f"/jobs/{job_id}/versions", limit=limit))
    if target.as_json:
        emit_json(found)
        return
    show([job.versions(found)])


@click.command()
@click.option("--all", "show_all", is_flag=True, help="Those that are gone, too.")
@server_options
def workers(show_all: bool, target: Target) -> None:
    """List the processes that have registered."""
    with target.connect() as api:
        states = ["live", "lapsed", *(("replaced", "gone") if show_all else ())]
        rows = list(api.pages("/workers", limit=10_000, state=states))
    if target.as_json:
        emit_json(rows)
        return
    rows = [{**row, "seen": age(row.get("last_seen_at"))} for row in rows]
    table(rows, ["name", "kind", "state", "address", "job_id", "pid", "seen"])
