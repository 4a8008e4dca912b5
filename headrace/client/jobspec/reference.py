"""The job spec's reference page, made from the models, so that it cannot say anything else than they do."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace.client.jobspec import base
from headrace.client.jobspec.model import JobSpec
from headrace.client.jobspec.parsing import block_of
from headrace.core.async_policy import POLICY_FIELDS, PRESETS

HEAD = """\
# The job spec

A job is one YAML or JSON document, `schema: headrace/v1`. Unknown keys are refused with the nearest known name; types
are strict; numbers are finite and integers below 2^53. `headrace validate job.yaml --set async.alpha=2` checks a file
with overrides (list elements by index or by their `name`); submission stores the resolved copy, in which every default
and every field of the preset is written out. The resolved copy is a job spec again and means the same.

This page is generated: `python -m headrace.client.jobspec > docs/job-spec.md`.
"""

PRESETS_HEAD = """\
## Presets of `async`

A preset fills the fields of `async` that are not given; nothing else depends on its name. `partial` and `bounded`
differ in `alpha` alone, and where a job asks for RollArt's own order (`load_at: get_batch, alpha: 2`) in `load_at`.

"""

_REFUSALS = (
    (
        "`async.alpha: 0` with `load_at: get_batch`",
        "workers load after the take, so all they make is one version old",
    ),
    (
        "`interaction: lockstep` with `load_at: drain`",
        "a cohort spans workers, drain binds a trajectory to one",
    ),
    (
        "`interaction: lockstep` with `reward: at_end_of_trajectory`",
        "no episode is over before its cohort is",
    ),
    (
        "`reward: at_end_of_batch` with `train_on: as_groups_complete`, or with `overlap: free`",
        "no group completes before the batch; there is no batch",
    ),
    (
        "`on_load` other than `finish_first` with `load_at: drain`",
        "a drained worker has nothing to continue or discard",
    ),
    (
        "`repack` or `local_batch` without `load_at: drain`",
        "they would be ignored",
    ),
    (
        "`on_stale: wait` with `alpha: null`",
        "nothing becomes stale",
    ),
    (
        "`batch.group_size: 1`",
        "one sibling has advantage 0",
    ),
    (
        "`async.max_inflight` or `resources.env_slots` below k = ceil(group_size * redundancy)",
        "a group would never fit",
    ),
    (
        "lockstep with `resources.env_slots` below groups * k",
        "a cohort would never fit",
    ),
    (
        "`sampling.top_p` other than 1, `top_k` other than 0",
        "importance weights would be against another distribution",
    ),
    (
        "`sampling.temperature: 0`",
        "siblings would all be the same",
    ),
    (
        "`correction.cap` with `type: none`, `kl.estimator` with `coef: 0`",
        "they would be ignored",
    ),
    (
        "two tasks, or two rewards of a task, of one name",
        "their scores could not be told apart",
    ),
    (
        "a reward with both or neither of `env: true` and `fn`",
        "it would be two or none",
    ),
    (
        "an `affinity` tag that `hw_mapping` lacks",
        "it would be ignored",
    ),
)

_PATTERNS = {
    base.IDENT_PATTERN: "name (letters, digits, `_ . -`)",
    base.IMPORT_PATH_PATTERN: "`package.module:Name`",
    base.NAME_PATTERN: "text",
}
_PLAIN: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
_LIMITS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}"}


def reference() -> str:
    """The whole page, Markdown."""
    sections = [HEAD, *_blocks(JobSpec, "", "The document"), _presets(), _refusals()]
    return "\n".join(sections)


def _blocks(block: type[BaseModel], path: str, title: str) -> Iterator[str]:
    rows = [_row(path, name, field) for name, field in block.model_fields.items()]
    table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows]
    yield f"## {title}\n\n{_first_line(block)}\n\n" + "\n".join(table) + "\n"
    for name, field in block.model_fields.items():
        inner = block_of(field.annotation)
        if inner is not None:
            below = f"{path}{field.alias or name}{'[]' if get_origin(field.annotation) is tuple else ''}"
            yield from _blocks(inner, below + ".", f"`{below}`")


def _row(path: str, name: str, field: FieldInfo) -> str:
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{path}{field.alias or name}` | {_type(field)} | {_default(path, name, field)} | {meaning} |"


def _first_line(block: type[BaseModel]) -> str:
    return (block.__doc__ or "").strip().partition("\n")[0]


def _default(path: str, name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if path == "async." and name in POLICY_FIELDS:
        return "the preset's"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, BaseModel):
        return "see below"
    if isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        value = [item.model_dump(exclude_defaults=True) for item in value]
    return f"`{json.dumps(value)}`"


def _type(field: FieldInfo) -> str:
    limits = [_limit(one) for one in field.metadata]
    text = _annotation(field.annotation)
    shown = ", ".join([text, *filter(None, limits)])
    pattern = next((one.pattern for one in field.metadata if getattr(one, "pattern", None)), None)
    return _PATTERNS.get(pattern, shown) if pattern else shown


def _annotation(annotation: Any) -> str:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "block"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(_annotation(argument) for argument in arguments)
    if origin is tuple:
        parts = [argument for argument in arguments if argument is not Ellipsis]
        if Ellipsis in arguments:
            return f"list of {_annotation(parts[0])}"
        return f"list of {len(parts)}: {_annotation(parts[0])}"
    if origin is dict:
        return "mapping"
    return _metadata(annotation)


def _metadata(annotation: Any) -> str:
    """`Annotated[...]`: the type, its form, its limits."""
    inner, *metadata = get_args(annotation) or (annotation,)
    for one in metadata:
        pattern = getattr(one, "pattern", None)
        if pattern in _PATTERNS:
            return _PATTERNS[pattern]
    limits = [limit for one in metadata for limit in map(_limit, getattr(one, "metadata", [one])) if limit]
    return ", ".join([_annotation(inner) if inner is not annotation else "any JSON value", *limits])


def _limit(one: Any) -> str:
    for name, form in _LIMITS.items():
        value = getattr(one, name, None)
        if value is not None and value not in (base.MAX_INT, 1e9):
            return form.format(value if isinstance(value, int) else f"{value:g}")
    return ""


def _presets() -> str:
    head = [
        "| preset | " + " | ".join(f"`{name}`" for name in POLICY_FIELDS) + " |",
        "|---" * (len(POLICY_FIELDS) + 1) + "|",
    ]
    rows = []
    for name, policy in PRESETS.items():
        values = asdict(policy)
        cells = [re.sub('"', "", json.dumps(values[field])) for field in POLICY_FIELDS]
        rows.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return PRESETS_HEAD + "\n".join([*head, *rows]) + "\n"


def _refusals() -> str:
    rows = [f"| {combination} | {why} |" for combination, why in _REFUSALS]
    return "\n".join(["## Combinations that are refused", "", "| combination | why |", "|---|---|", *rows, ""])
