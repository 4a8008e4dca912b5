"""Settings of a service process: flags over `HEADRACE_*` variables over defaults."""

import json
import os
import socket
import sys
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn, Self

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

EXIT_USAGE = 2
ENV_PREFIX = "HEADRACE_"


def parse_labels(value: object) -> object:
    """`a=b,c=d` or a JSON object as a dictionary; anything else is left to validation."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return json.loads(value)
    pairs = [pair.split("=", 1) for pair in value.split(",") if pair.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("write labels as key=value,key=value")
    return {key.strip(): text.strip() for key, text in pairs}


class ServiceSettings(BaseSettings):
    """What every service process has in common; each service adds its own fields in a subclass.

    Durations are in seconds. A field `drain_timeout_s` is the flag `--drain-timeout-s` and the variable
    `HEADRACE_DRAIN_TIMEOUT_S`.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    control_address: str = Field("127.0.0.1:7071", description="host:port of the control plane's gRPC server")
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535, description="gRPC port, 0 for a free one")
    metrics_port: int = Field(0, ge=-1, le=65535, description="Prometheus port, 0 for a free one, -1 for none")
    name: str = Field("", description="name that stays the same across restarts, such as inference-0")
    labels: Annotated[dict[str, str], NoDecode, BeforeValidator(parse_labels)] = Field(
        default_factory=dict, description="key=value,key=value; pools are chosen by them"
    )
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="least level that is written")
    log_file: str | None = Field(None, description="file for JSON lines; stderr when absent")
    rpc_timeout_s: float = Field(10.0, gt=0, description="deadline of one call")
    register_timeout_s: float = Field(60.0, gt=0, description="how long to look for the control plane at the start")
    drain_timeout_s: float = Field(10.0, ge=0, description="how long work in hand may take at the end")

    @classmethod
    def from_args(cls, argv: Sequence[str] | None = None) -> Self:
        """Settings from a command line; prints what is wrong and exits with 2 when they do not hold."""
        given = vars(_parser(cls.model_fields, cls.__doc__).parse_args(argv))
        try:
            return cls(**given)
        except ValidationError as error:
            _refuse(error)
        except ValueError as error:  # pydantic-settings wraps a variable that it cannot decode
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 -- the command line is the user interface
            raise SystemExit(EXIT_USAGE) from None

    def resolved_name(self, kind: str) -> str:
        """The name given, or one from kind, host and pid."""
        return self.name or f"{kind}-{socket.gethostname()}-{os.getpid()}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _is_plain(field: FieldInfo) -> bool:
    """Whether the field's text goes to validation as it is, without JSON."""
    return any(word in repr(field.annotation) for word in ("str", "int", "float", "bool", "Path")) and not any(
        word in repr(field.annotation) for word in ("dict", "list", "tuple", "set")
    )


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parser(fields: Mapping[str, FieldInfo], doc: str | None) -> ArgumentParser:
    parser = ArgumentParser(description=(doc or "").split("\n", 1)[0], argument_default=SUPPRESS, allow_abbrev=False)
    for name, field in fields.items():
        options: dict[str, Any] = {"dest": name, "help": (field.description or "").replace("%", "%%")}
        if field.annotation is bool:
            parser.add_argument(_flag(name), action=BooleanOptionalAction, **options)
        else:
            parser.add_argument(_flag(name), type=str if _is_plain(field) else _json_or_text, **options)
    return parser


def _refuse(error: ValidationError) -> NoReturn:
    for problem in error.errors():
        field = str(problem["loc"][0]) if problem["loc"] else ""
        source = f"{_flag(field)} (or {ENV_PREFIX}{field.upper()})" if field else "settings"
        print(f"error: {source}: {problem['msg']}, got {problem.get('input')!r}", file=sys.stderr)  # noqa: T201
    raise SystemExit(EXIT_USAGE) from None
