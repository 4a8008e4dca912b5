"""`python -m inference_svc worker|proxy`: the two processes of the inference service."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

USAGE = "usage: python -m inference_svc {worker,proxy} [--help] [settings]"


def _worker() -> Callable[[Sequence[str]], None]:
    from inference_svc.worker.main import main

    return main


def _proxy() -> Callable[[Sequence[str]], None]:
    from inference_svc.proxy.main import main

    return main


COMMANDS = {"worker": _worker, "proxy": _proxy}


def run(argv: Sequence[str]) -> None:
    """Run the process that the first argument names; exit 2 with the usage line for any other."""
    if not argv or argv[0] not in COMMANDS:
        print(USAGE, file=sys.stderr)  # noqa: T201 -- the command line is the user interface
        raise SystemExit(0 if argv and argv[0] in ("-h", "--help") else 2)
    COMMANDS[argv[0]]()(argv[1:])


if __name__ == "__main__":
    run(sys.argv[1:])
