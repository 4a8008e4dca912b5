"""The `headrace` command. Nothing but click is imported until a command runs, so that help comes at once."""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

from headrace.cli.errors import INTERRUPTED


@dataclass(frozen=True, slots=True)
class Lazy:
    """Where a command lives, and its line in the help of its group."""

    where: str
    help: str


COMMANDS = {
    "up": Lazy("up:up", "Start every service on this machine."),
    "down": Lazy("up:down", "Stop what `up` started."),
    "submit": Lazy("submit:submit", "Submit a job, and follow it with --follow."),
    "validate": Lazy("submit:validate", "Check a job file without submitting it."),
    "list": Lazy("jobs:list_jobs", "List jobs, newest first."),
    "describe": Lazy("jobs:describe", "Show one job: phase, progress, ledger, result."),
    "logs": Lazy("streams:logs", "Show the logs of this machine's services."),
    "events": Lazy("streams:events", "Show a job's events."),
    "cancel": Lazy("jobs:cancel", "End a job; its last checkpoint stays."),
    "pause": Lazy("jobs:pause", "Stop admission and new turns."),
    "resume": Lazy("jobs:resume", "Go on after a pause."),
    "wait": Lazy("jobs:wait", "Wait until a job is over or runs."),
    "trajectories": Lazy("data:trajectories", "List a job's trajectories, or show one."),
    "buffer": Lazy("data:buffer", "Show what a job's buffer holds."),
    "weights": Lazy("data:weights", "List a job's weight versions."),
    "workers": Lazy("data:workers", "List the processes that have registered."),
    "env": Lazy("plugins:env", "Try an environment."),
    "reward": Lazy("plugins:reward", "Try a grader."),
    "model": Lazy("model:model", "Make the demo's model."),
    "demo": Lazy("demo:demo", "Start everything, train the example job, report, stop."),
    "doctor": Lazy("doctor:doctor", "Check this machine and the server."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is run or asked for its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = COMMANDS.get(cmd_name)
        if lazy is None:
            return None
        module, _, name = lazy.where.partition(":")
        command: click.Command = getattr(import_module(f"headrace.cli.commands.{module}"), name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(_with_hint(error.message, args[0] if args else ""), ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in COMMANDS.items()])


def _with_hint(message: str, given: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(given, COMMANDS, n=1)
    return f"{message} Did you mean `headrace {near[0]}`?" if near else message


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def cli() -> None:
    """Train language-model agents by reinforcement learning, as a set of services.

    The server is taken from --server, HEADRACE_SERVER, or the .headrace folder that `headrace up` keeps.
    Exit codes: 0 ok, 1 job failed, 2 usage, 3 not found, 4 not allowed, 5 unreachable, 6 timed out, 130 interrupted.
    """


def main() -> None:
    """The console script."""
    try:
        result = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe has enough, as with `| head`; what is still buffered has nowhere to go.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)
