"""How a grader is called and what it may return. Runs inside the grader process.

Arguments are injected by name from the attempt's document:

| name | value |
|---|---|
| completion, completions | the assistant's last text; its texts, one per turn |
| prompt | the text of what came before its first turn |
| messages | the whole talk as role/content messages |
| answer, info, task | the environment's `info["answer"]`, its `info`, the task's name |
| env_reward, finish_reason, is_truncated | how the episode went |
| trajectory | all of these as one dictionary |
| data_source, solution_str, ground_truth, extra_info | task, completion, answer and info, as verl calls them |

Only text that the model generated is in `completion` and `completions`.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import Parameter
from typing import Any

VERL_NAMES = {"data_source": "task", "solution_str": "completion", "ground_truth": "answer", "extra_info": "info"}


class GraderFault(Exception):
    """A grader that cannot be called, or whose answer is no score. `code` is stable."""

    def __init__(self, code: str, detail: str, *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.retryable = code, detail, retryable


@dataclass(frozen=True, slots=True)
class Score:
    """value None: the grader abstains. components: named parts, for people to look at."""

    value: float | None
    components: dict[str, float] = field(default_factory=dict)


def load(fn: str) -> Callable[..., Any]:
    """The grader that ``pkg.module:function`` names. Raises GraderFault ``grader_import``."""
    module_name, separator, name = fn.partition(":")
    if not (module_name and separator and name):
        raise GraderFault("grader_import", f"rewards.fn {fn!r} is not pkg.module:function")
    try:
        found: Any = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise GraderFault("grader_import", f"rewards.fn {fn!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise GraderFault("grader_import", f"rewards.fn {fn!r} is not callable")
    return found  # type: ignore[no-any-return]


def grade(grader: Callable[..., Any], document: Mapping[str, Any]) -> Score:
    """Call a grader, sync or async, on one attempt's document.

    Raises:
        GraderFault: ``grader_signature``, ``grader_error`` (it raised), ``memory``, ``bad_return`` or ``not_finite``.
    """
    args, kwargs = arguments(grader, values(document))
    try:
        result = grader(*args, **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_await(result))
    except MemoryError as error:
        raise GraderFault("memory", "the grader wanted more memory than it may have (--grader-memory-mb)") from error
    except Exception as error:
        raise GraderFault("grader_error", f"{type(error).__name__}: {error}", retryable=True) from error
    return as_score(result)


def values(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that can be injected, by name."""
    given = dict(document)
    given["prompt"] = _prompt(given.get("messages") or [])
    given |= {alias: given.get(name) for alias, name in VERL_NAMES.items()}
    given["trajectory"] = dict(document)
    return given


def arguments(grader: Callable[..., Any], given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments for a grader. Raises GraderFault ``grader_signature``."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in _parameters(grader).items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            kwargs = {**given, **kwargs}
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            continue
        elif name not in given:
            if parameter.default is Parameter.empty:
                raise GraderFault("grader_signature", f"parameter {name!r} is none of {', '.join(sorted(given))}")
        elif parameter.kind is Parameter.POSITIONAL_ONLY:
            args.append(given[name])
        else:
            kwargs[name] = given[name]
    return args, kwargs


def as_score(result: Any) -> Score:
    """A number, None, or a mapping with ``score`` (and ``components``, or further numbers beside it)."""
    if isinstance(result, Score):
        return result
    if not isinstance(result, Mapping):
        return Score(_number(result))
    if "score" not in result:
        raise GraderFault("bad_return", f"a mapping needs the key 'score'; it has {', '.join(map(str, result))}")
    parts = result.get("components")
    if parts is None:
        parts = {name: value for name, value in result.items() if name != "score"}
    if not isinstance(parts, Mapping):
        raise GraderFault("bad_return", f"components is a {type(parts).__name__}; it must be a mapping")
    components = {str(name): float(value) for name, value in parts.items() if _is_finite(value)}
    return Score(_number(result["score"]), components)


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):  # float("0.5") would hide a grader that returns its input
        raise GraderFault("bad_return", f"the score is the text {value[:80]!r}; return a number or None")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise GraderFault("bad_return", f"the score is a {type(value).__name__}; return a number or None") from None
    if not math.isfinite(number):
        raise GraderFault("not_finite", f"the score is {number}; return a finite number, or None to abstain")
    return number


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _parameters(grader: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(grader).parameters
    except (TypeError, ValueError) as error:
        raise GraderFault("grader_signature", f"the signature cannot be read: {error}") from error


def _prompt(messages: list[Mapping[str, Any]]) -> str:
    texts = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        texts.append(str(message.get("content", "")))
    return "\n".join(texts)


async def _await(result: Any) -> Any:
    return await result
