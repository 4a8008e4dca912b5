"""JSON logs, one object a line, with the ids of the job, trajectory and version that a line is about."""

import logging
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TextIO

import structlog

LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


def configure_logging(level: str = "INFO", log_file: str | None = None, **fields: str) -> None:
    """Write every record of this process, ours and libraries', as JSON lines to `log_file` or to stderr.

    `fields` (service, worker_id, …) stand on every line. Calling it again replaces the former set-up.
    """
    stream = _open(log_file)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _drop_colours,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _adder(fields),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])
    # These announce every request or poll at INFO; what matters of them is in our own lines.
    for noisy in ("httpx", "httpcore", "asyncio", "urllib3", "alembic.runtime"):
        logging.getLogger(noisy).setLevel(max(LEVELS[level], logging.WARNING))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose calls take an event name and fields: `log.info("registered", address=…)`."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return logger


def bound_ids(
    *, job_id: str | None = None, trajectory_id: str | None = None, policy_version: int | None = None, **more: Any
) -> AbstractContextManager[None]:
    """Inside this context every line of the task carries these ids; those that are None are left out."""
    ids = {"job_id": job_id, "trajectory_id": trajectory_id, "policy_version": policy_version, **more}
    context: AbstractContextManager[None] = structlog.contextvars.bound_contextvars(
        **{key: value for key, value in ids.items() if value is not None}
    )
    return context


def _open(log_file: str | None) -> TextIO:
    if log_file is None:
        return sys.stderr
    path = Path(log_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", buffering=1, encoding="utf8", errors="backslashreplace")


def _drop_colours(_logger: object, _name: str, event: dict[str, Any]) -> dict[str, Any]:
    """uvicorn says everything twice, the second time in colours."""
    event.pop("color_message", None)
    return event


def _adder(fields: dict[str, str]) -> Any:
    def add(_logger: object, _name: str, event: dict[str, Any]) -> dict[str, Any]:
        return {**event, **{key: value for key, value in fields.items() if key not in event}}

    return add
