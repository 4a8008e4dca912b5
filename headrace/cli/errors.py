"""Exit codes, and how an exception becomes one."""

import click

OK = 0
JOB_FAILED = 1
USAGE = 2
NOT_FOUND = 3
AUTH = 4
UNREACHABLE = 5
TIMED_OUT = 6
INTERRUPTED = 130


class CliError(click.ClickException):
    """A message on stderr and an exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: object = None) -> None:
        click.echo(f"error: {self.message}", err=True)


def code_of_status(status: int) -> int:
    """The exit code for an HTTP status."""
    if status in (401, 403):
        return AUTH
    if status == 404:
        return NOT_FOUND
    if status == 408:
        return TIMED_OUT
    return UNREACHABLE if status >= 500 else USAGE
