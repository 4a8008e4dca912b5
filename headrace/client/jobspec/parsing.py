"""From plain data to a JobSpec, with every error as pointer, message and fix."""

import json
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from headrace.client.jobspec import base
from headrace.client.jobspec.model import JobSpec
from headrace.client.jobspec.plain import check_plain, printable, read_json
from headrace.client.jobspec.problems import Problem, SpecError, pointer
from headrace.client.jobspec.rules import check

FORMERLY: dict[str, str] = {
    "max_staleness": "async.alpha",
    "staleness": "async.alpha",
    "lr": "optimizer.lr",
    "learning_rate": "optimizer.lr",
    "n_samples": "batch.group_size",
    "num_generations": "batch.group_size",
    "rollout_n": "batch.group_size",
    "batch_size": "batch.groups",
}
"""Names that other systems use, to the key that means the same here."""


def parse(document: object) -> JobSpec:
    """Validate plain data (what a JSON or YAML reader gives).

    Raises:
        SpecError: with every problem of the first layer that has any: characters and numbers, then keys and types,
            then combinations.
    """
    if not isinstance(document, dict):
        raise SpecError([Problem("", "a job spec is a mapping of keys", "start with `schema: headrace/v1`")])
    if problems := check_plain(document):
        raise SpecError(problems)
    try:
        spec = JobSpec.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise SpecError(map(_explain, _root_causes(error.errors(include_url=False)))) from None
    if problems := check(spec):
        raise SpecError(problems)
    return spec


def parse_json(text: str | bytes) -> JobSpec:
    """Parse and validate a JSON text, for instance the resolved spec that travels as `spec_json`. Raises SpecError."""
    return parse(read_json(text))


def _root_causes(items: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out a sequence called too short only because its elements were refused."""
    return [
        item
        for item in items
        if item["type"] != "too_short"
        or not any(other["loc"][: len(item["loc"])] == item["loc"] for other in items if other is not item)
    ]


_FORMS = {
    base.IMPORT_PATH_PATTERN: "has the form package.module:Name",
    base.IDENT_PATTERN: "starts with a letter or digit and holds only letters, digits, `_`, `.`, `-`",
    base.NAME_PATTERN: "holds no control characters",
}


def _explain(item: ErrorDetails) -> Problem:
    location, kind = [part for part in item["loc"] if part != "[key]"], item["type"]
    context = item.get("ctx", {})
    message, fix = item["msg"], ""
    if kind == "extra_forbidden":
        message, fix = "unknown key", _nearest(str(location[-1]), location[:-1])
    elif kind == "missing":
        message, fix = "this key is required", "add it"
    elif kind == "literal_error":
        message, fix = f"{_show(item['input'])} is not a choice", f"use {context.get('expected')}"
    elif kind == "string_pattern_mismatch":
        form = _FORMS.get(str(context.get("pattern")), "another form")
        message, fix = f"{_show(item['input'])} does not fit", f"use a text that {form}"
    elif kind.endswith(("_type", "_parsing")):
        message = f"{message[:1].lower()}{message[1:]}, got {_show(item['input'])}"
    else:
        message = f"{message[:1].lower()}{message[1:]}"
    return Problem(pointer(location), message, fix)


def _show(value: object) -> str:
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 60 else text[:57] + "…"


def _nearest(key: str, location: list[str | int]) -> str:
    known = _known_keys(location)
    if close := get_close_matches(key, known, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    if (elsewhere := FORMERLY.get(key)) is not None:
        return f"did you mean {elsewhere}?"
    return f"known keys: {', '.join(known)}"


def _known_keys(location: list[str | int]) -> list[str]:
    block = block_at(location)
    if block is None:
        return []
    return [field.alias or name for name, field in block.model_fields.items()]


def block_at(location: list[str | int]) -> type[BaseModel] | None:
    """The model class that a path of keys and indexes leads to; None where the path leaves the model."""
    block: type[BaseModel] | None = JobSpec
    for part in location:
        if isinstance(part, int):
            continue
        if block is None:
            return None
        fields = {field.alias or name: field for name, field in block.model_fields.items()}
        block = block_of(fields[part].annotation) if part in fields else None
    return block


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The model class inside an annotation such as `tuple[TaskBlock, ...]`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if (found := block_of(argument)) is not None:
            return found
    return None
