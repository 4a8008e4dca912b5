"""JSON log lines as people read them."""

import json

from headrace.cli.output import text

HIDDEN = frozenset({"timestamp", "level", "event", "logger", "service", "worker_id", "exception"})
LONGEST = 200


def shorten(line: str) -> str:
    """A JSON log line as words, of an exception its last line; anything else as it is."""
    try:
        record = json.loads(line)
    except ValueError:
        return line
    if not isinstance(record, dict):
        return line
    words = [str(record.get("timestamp", ""))[11:23], f"{record.get('level', '')!s:<7}", str(record.get("event", ""))]
    words += [f"{key}={_one_line(text(value))}" for key, value in record.items() if key not in HIDDEN]
    if exception := str(record.get("exception", "")).strip():
        words.append(exception.splitlines()[-1])
    return "  ".join(words).rstrip()


def _one_line(value: str) -> str:
    line = " ".join(value.split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
