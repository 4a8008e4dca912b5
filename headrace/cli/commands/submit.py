"""`headrace submit` and `headrace validate`."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from headrace.cli.errors import INTERRUPTED, JOB_FAILED, USAGE, CliError
from headrace.cli.output import emit_json, emit_json_line, note
from headrace.cli.server import Target, server_options
from headrace.client.jobspec import apply_overrides, parse, read_document
from headrace.client.rest import RestClient

set_option = click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override, as async.alpha=2.")


def read_spec(path: Path, overrides: Sequence[str], name: str | None) -> dict[str, Any]:
    """The document of a job file with overrides, checked here first, so that mistakes need no server."""
    if not path.exists():
        raise CliError(f"there is no file {path}", USAGE)
    document = apply_overrides(read_document(path), overrides)
    if name and isinstance(document, dict):
        document["name"] = name
    return parse(document).model_dump(mode="json", by_alias=True, exclude_unset=True)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--name", help="Name of the job, instead of the file's.")
@click.option("--dry-run", is_flag=True, help="Validate against the server and show the resolved spec.")
@click.option("--follow", "is_following", is_flag=True, help="Watch until the job is over; Ctrl-C detaches.")
@server_options
def submit(
    file: Path, overrides: tuple[str, ...], name: str | None, dry_run: bool, is_following: bool, target: Target
) -> int:
    """Submit the job FILE (YAML or JSON)."""
    spec = read_spec(file, overrides, name)
    with target.connect() as api:
        if dry_run:
            emit_json(api.validate(spec))
            return 0
        # The key makes a repeat of this very call harmless; another submit is another job.
        job = api.submit(spec, idempotency_key=uuid.uuid4().hex)
        for warning in job.get("warnings", []):
            note(f"warning: {warning}")
        if is_following:
            note(f"submitted {job['id']}")
            return follow_to_end(api, job["id"], as_json=target.as_json)
    if target.as_json:
        emit_json(job)
    else:
        click.echo(job["id"])
        note(f"watch it with: headrace events -f {job['id']}")
    return 0


def follow_to_end(api: RestClient, job_id: str, *, as_json: bool, can_detach: bool = True) -> int:
    """Watch a job, print its report, and return the exit code. Ctrl-C detaches, or is the caller's to handle."""
    from rich.console import Console

    from headrace.cli.follow.loop import follow
    from headrace.cli.follow.report import last_line, print_report

    try:
        job = follow(api, job_id)
    except KeyboardInterrupt:
        if not can_detach:
            raise
        note(f"detached: {job_id} goes on; headrace describe {job_id}, or headrace cancel {job_id}")
        return INTERRUPTED
    if not as_json:
        steps = list(api.pages(f"/jobs/{job_id}/steps", limit=10_000))
        print_report(job, steps, api.of_job(job_id, "ledger"), Console(stderr=True))
    if job["phase"] != "succeeded":
        note(f"job {job_id} {job['phase']}: {job.get('reason') or 'no reason given'}")
    emit_json_line(last_line(job))
    return 0 if job["phase"] == "succeeded" else JOB_FAILED


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@set_option
@click.option("--local", is_flag=True, help="Check the file alone, without a server.")
@server_options
def validate(file: Path, overrides: tuple[str, ...], local: bool, target: Target) -> None:
    """Check the job FILE. With a server its environments, graders and model are checked, too."""
    spec = read_spec(file, overrides, None)
    if local:
        answer = {"spec": parse(spec).resolve().model_dump(mode="json", by_alias=True), "warnings": []}
    else:
        with target.connect() as api:
            answer = api.validate(spec)
    for warning in answer.get("warnings", []):
        note(f"warning: {warning}")
    if target.as_json:
        emit_json(answer)
    else:
        note(f"{file} is a valid job")
