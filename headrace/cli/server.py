"""Which server a command talks to, and how its answers' errors become exit codes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli.errors import UNREACHABLE, USAGE, CliError, code_of_status
from headrace.cli.up import state
from headrace.cli.up.layout import DEFAULT, DataDir
from headrace.client.jobspec.problems import SpecError
from headrace.client.rest import ApiError, RestClient, Unreachable

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Target:
    """The server a command talks to, and the form of its answer."""

    server: str | None
    data_dir: Path
    as_json: bool

    def connect(self) -> RestClient:
        """A client of the server given, or of the one that runs in the data folder."""
        address = self.server or (state.read(DataDir(self.data_dir)) or {}).get("server")
        if not address:
            raise CliError(
                f"no server: nothing is up in {self.data_dir}; run `headrace up`, or give --server or HEADRACE_SERVER",
                UNREACHABLE,
            )
        return RestClient(str(address), token=os.environ.get("HEADRACE_TOKEN"))


def server_options(command: Callable[..., Result]) -> Callable[..., Result]:
    """`--server`, `--data-dir` and `--json`, given to the command as `target`; errors of the API as exit codes."""

    @wraps(command)
    def targeted(*args: Any, server: str | None, data_dir: Path, as_json: bool, **kwargs: Any) -> Result:
        with errors_as_exit_codes():
            return command(*args, target=Target(server, data_dir, as_json), **kwargs)

    json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
    server_option = click.option("--server", envvar="HEADRACE_SERVER", help="Address of the server, http://host:port.")
    return server_option(data_dir_option(json_option(targeted)))


def data_dir_option(command: Callable[..., Result]) -> Callable[..., Result]:
    """`--data-dir`, as a Path."""
    option: Callable[[Callable[..., Result]], Callable[..., Result]] = click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=DEFAULT,
        envvar="HEADRACE_DATA_DIR",
        show_default=True,
        help="Folder that `headrace up` keeps.",
    )
    return option(command)


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn what the client and the spec parser raise into messages and exit codes."""
    try:
        yield
    except Unreachable as error:
        raise CliError(str(error), UNREACHABLE) from None
    except ApiError as error:
        raise CliError(describe(str(error), error.errors), code_of_status(error.status)) from None
    except SpecError as error:
        problems = [{"pointer": p.pointer, "message": p.message, "fix": p.fix} for p in error.problems]
        raise CliError(describe("the job spec is refused", problems), USAGE) from None


def describe(message: str, causes: list[dict[str, str]]) -> str:
    """A message and, one a line, where each cause is and how to mend it."""
    lines = [message]
    for cause in causes:
        fix = f" ({cause['fix']})" if cause.get("fix") else ""
        lines.append(f"  {cause.get('pointer', '')}: {cause.get('message', '')}{fix}")
    return "\n".join(lines)
