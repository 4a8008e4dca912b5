"""Which server a command talks to, and how its answers' errors become exit codes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click

from headrace.cli.errors import UNREACHABLE, USAGE, CliError, code_of_status
from headrace.cli.up import state
from headrace.cli.up.layout import DEFAULT, DataDir
from headrace.client.jobspec.problems import SpecError
from headrace.client.rest import ApiError, RestClient, Unreachable

Params = ParamSpec("Params")
Result = TypeVar("Result")


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--server`, `--data-dir` and `--json`, and errors of the API as exit codes."""
    command = translate_errors(command)
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    command = data_dir_option(command)
    return click.option("--server", envvar="HEADRACE_SERVER", help="Address of the server, http://host:port.")(command)


def data_dir_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--data-dir`, as a Path."""
    option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
        "--data-dir",
        type=click.Path(path_type=Path),
        default=DEFAULT,
        envvar="HEADRACE_DATA_DIR",
        show_default=True,
        help="Folder that `headrace up` keeps.",
    )
    return option(command)


def connect(server: str | None, data_dir: Path) -> RestClient:
    """A client of the server given, or of the one that runs in `data_dir`."""
    address = server or (state.read(DataDir(data_dir)) or {}).get("server")
    if not address:
        raise CliError(
            f"no server: nothing is up in {data_dir}; run `headrace up`, or give --server or HEADRACE_SERVER",
            UNREACHABLE,
        )
    return RestClient(str(address), token=os.environ.get("HEADRACE_TOKEN"))


def translate_errors(command: Callable[Params, Result]) -> Callable[Params, Result]:
    """Turn what the client and the spec parser raise into messages and exit codes."""

    @wraps(command)
    def translated(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with errors_as_exit_codes():
            return command(*args, **kwargs)

    return translated


@contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """The same as a context."""
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
