"""Job files: YAML or JSON, with dotted overrides from the command line."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from headrace.client.jobspec.model import JobSpec
from headrace.client.jobspec.parsing import parse
from headrace.client.jobspec.plain import printable, read_json
from headrace.client.jobspec.problems import Problem, SpecError, pointer

MAX_FILE_BYTES = 4 << 20


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (4e-4 is a number, `on` is a text), no aliases, no duplicate keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"key {twice!r} stands twice", node.start_mark)
        return mapping


_EXPONENT = r"[eE][-+]?[0-9]+"
_FLOAT = rf"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:{_EXPONENT})?|[0-9]+{_EXPONENT}|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
# Tag, pattern, and every first character of a text that may match ("" is the empty text).
_SCALARS: tuple[tuple[str, str, list[str]], ...] = (
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("null", r"~|null|Null|NULL|", [*"~nN", ""]),
)
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def load(path: str | Path, overrides: Iterable[str] = ()) -> JobSpec:
    """Read a `.json` file as JSON and any other as YAML, apply `a.b=c` overrides, validate.

    Raises:
        SpecError: unreadable file, bad syntax, or any problem of the spec.
    """
    return parse(apply_overrides(read_document(path), overrides))


def read_document(path: str | Path) -> object:
    """The plain data of a job file. Raises SpecError."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError([Problem("", f"{path} is larger than {MAX_FILE_BYTES} bytes", "name another file")])
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError([Problem("", f"cannot read {path}: {error.strerror}", "name a readable file")]) from None
    return read_json(raw) if path.suffix == ".json" else read_yaml(raw)


def read_yaml(raw: str | bytes) -> object:
    """Parse one YAML document. Raises SpecError with line and column."""
    try:
        return yaml.load(raw, Loader=_Loader)
    except RecursionError:
        raise SpecError([Problem("", "nested too deeply", "flatten it")]) from None
    except (yaml.YAMLError, ValueError, UnicodeDecodeError) as error:
        raise SpecError([Problem("", f"not YAML: {printable(' '.join(str(error).split()))}", "correct it")]) from None


def apply_overrides(document: object, overrides: Iterable[str]) -> object:
    """Set `a.b=c` paths in the document in place; list elements by index, values in YAML notation.

    `tasks.0.weight=2` and `tasks.frozen_lake.weight=2` mean the same where that is the first task's name.

    Raises:
        SpecError: a path that leads through something that is no mapping or list.
    """
    for override in overrides:
        path, equals, raw = override.partition("=")
        if not equals or not path:
            raise SpecError([Problem("", f"override {override!r} has no value", "write key.subkey=value")])
        _set(document, path.split("."), read_yaml(raw))
    return document


def _set(document: object, parts: list[str], value: object) -> None:
    target = document
    for depth, part in enumerate(parts):
        is_last = depth == len(parts) - 1
        if isinstance(target, dict):
            if is_last:
                target[part] = value
                return
            target = target.setdefault(part, {})
            if target is None:
                raise _no_way(parts, depth + 1)
        elif isinstance(target, list):
            index = _index(target, part)
            if index is None:
                raise _no_way(parts, depth)
            if is_last:
                target[index] = value
                return
            target = target[index]
        else:
            raise _no_way(parts, depth)


def _index(items: list[object], part: str) -> int | None:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    return next((i for i, item in enumerate(items) if isinstance(item, dict) and item.get("name") == part), None)


def _no_way(parts: list[str], depth: int) -> SpecError:
    at = pointer(parts[:depth])
    return SpecError([Problem(at, f"{'.'.join(parts)} leads nowhere", "name an existing element of the spec")])
