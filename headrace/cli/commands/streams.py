"""`headrace logs` and `headrace events`: what happens, as it happens."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import click

from headrace.cli.errors import NOT_FOUND, CliError
from headrace.cli.loglines import shorten
from headrace.cli.output import emit_json, emit_json_line, text
from headrace.cli.server import Target, data_dir_option, server_options
from headrace.cli.up.layout import DataDir

LOOK_S = 0.3


@click.command()
@click.argument("job_id")
@click.option("-f", "--follow", "is_following", is_flag=True, help="Go on until the job is over.")
@click.option("--after", default=0, show_default=True, help="Only events with a higher id.")
@server_options
def events(job_id: str, is_following: bool, after: int, target: Target) -> None:
    """Show a job's events in order. With --json -f one object a line."""
    with target.connect() as api:
        found = api.events(job_id, after=after, follow=is_following)
        if target.as_json and not is_following:
            emit_json(list(found))
            return
        for event in found:
            if target.as_json:
                emit_json_line(event)
            else:
                facts = "  ".join(f"{key}={text(value)}" for key, value in (event.get("data") or {}).items())
                click.echo(f"{event['id']:>6}  {event['at']}  {event['type']}  {facts}")


@click.command()
@click.argument("services", nargs=-1)
@click.option("-f", "--follow", "is_following", is_flag=True, help="Go on with what is written.")
@click.option("--tail", default=50, show_default=True, type=click.IntRange(0), help="Last lines of each file.")
@click.option("--raw", is_flag=True, help="The lines as they are in the file.")
@data_dir_option
def logs(services: tuple[str, ...], is_following: bool, tail: int, raw: bool, data_dir: Path) -> None:
    """Show logs of this machine's SERVICES (all when none is named), each line with its service's name."""
    folder = DataDir(data_dir).logs
    here = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if unknown := [name for name in services if name not in here]:
        raise CliError(f"no log of {', '.join(unknown)} in {folder}; there are: {', '.join(here) or 'none'}", NOT_FOUND)
    chosen = {name: path for name, path in here.items() if not services or name in services}
    readers = {name: LogReader(path, tail) for name, path in chosen.items()}
    while True:
        for name, reader in readers.items():
            for line in reader.lines():
                click.echo(f"{name:<14} {line if raw else shorten(line)}")
        if not is_following:
            return
        time.sleep(LOOK_S)


class LogReader:
    """Reads a file from its last `tail` lines on, and from the start again when it was replaced."""

    def __init__(self, path: Path, tail: int) -> None:
        self._path = path
        self._file = path.open("rb")
        self._rest = b""
        lines = self._file.read().splitlines(keepends=True)
        self._first = lines[len(lines) - tail :] if tail else []

    def lines(self) -> Iterator[str]:
        """What is there since the last call, whole lines only."""
        if self._was_replaced():
            self._file.close()
            self._file = self._path.open("rb")
        found = self._rest + b"".join(self._first) + self._file.read()
        self._first = []
        *whole, self._rest = found.split(b"\n")
        for line in whole:
            yield line.decode("utf8", errors="replace")

    def _was_replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False
