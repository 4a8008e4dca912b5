"""Refusals below keys and types: texts, numbers and nesting that JSON readers or PostgreSQL cannot keep."""

import json
from collections.abc import Iterator
from math import isfinite

from headrace.client.jobspec.base import MAX_INT
from headrace.client.jobspec.problems import Problem, SpecError, pointer

MAX_DEPTH = 48
MAX_PROBLEMS = 50


def check_plain(document: object) -> list[Problem]:
    """Walk plain data (dict, list, str, numbers, None) without recursion; at most MAX_PROBLEMS are named."""
    found: list[Problem] = []
    waiting: list[tuple[tuple[str | int, ...], object]] = [((), document)]
    while waiting and len(found) < MAX_PROBLEMS:
        at, value = waiting.pop()
        if len(at) > MAX_DEPTH:
            found.append(Problem(pointer(at), f"nested deeper than {MAX_DEPTH} levels", "flatten it"))
            continue
        if isinstance(value, dict):
            found.extend(_bad_keys(at, value))
            waiting.extend(((*at, str(key)), item) for key, item in reversed(value.items()))
        elif isinstance(value, list | tuple):
            waiting.extend(((*at, index), item) for index, item in reversed(list(enumerate(value))))
        else:
            found.extend(_bad_scalar(at, value))
    return found


def _bad_keys(at: tuple[str | int, ...], mapping: dict[object, object]) -> Iterator[Problem]:
    for key in mapping:
        if not isinstance(key, str):
            yield Problem(pointer(at), f"key {key!r} is not a text", "quote it")
        elif (why := _bad_text(key)) is not None:
            yield Problem(pointer(at), f"key {printable(key)!r} {why}", "remove the character")


def _bad_scalar(at: tuple[str | int, ...], value: object) -> Iterator[Problem]:
    match value:
        case None | bool():
            return
        case str():
            if (why := _bad_text(value)) is not None:
                yield Problem(pointer(at), f"text {why}", "remove the character")
        case int():
            if abs(value) > MAX_INT:
                yield Problem(
                    pointer(at), "integers are limited to 2**53 - 1, or readers would round them", "shorten it"
                )
        case float():
            if not isfinite(value):
                yield Problem(pointer(at), "not a finite number", "use a finite number")
        case _:
            yield Problem(pointer(at), f"{type(value).__name__} is not a JSON value", "quote it to make it a text")


def _bad_text(text: str) -> str | None:
    if "\x00" in text:
        return "holds U+0000, which PostgreSQL cannot store"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "holds a lone surrogate, which is no character"
    return None


def printable(text: str) -> str:
    """`text` with NUL and lone surrogates replaced by U+FFFD, so that any encoder takes it."""
    return text.replace("\x00", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_json(text: str | bytes) -> object:
    """Parse JSON without surprises: no NaN or Infinity, no duplicate keys, no bomb of brackets.

    Raises:
        SpecError: with the line and column where the text stops being JSON.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise SpecError([Problem("", f"nested deeper than {MAX_DEPTH} levels", "flatten it")]) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise SpecError([Problem("", f"not JSON: {error.msg} at {where}", "correct the syntax")]) from None
    except UnicodeDecodeError:
        raise SpecError([Problem("", "not UTF-8", "encode the document as UTF-8")]) from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise SpecError([Problem("", f"not JSON: {error}", "correct it")]) from None


def _refuse_constant(name: str) -> object:
    raise SpecError([Problem("", f"{name} is not JSON", "use a finite number")])


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise SpecError([Problem("", f"key {printable(twice)!r} stands twice in one object", "keep one of them")])
    return seen
