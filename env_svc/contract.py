"""The environment contract: gymnasium's five-tuple with text or chat messages, checked and made plain.

``reset(seed=…) -> (observation, info)`` and ``step(text) -> (observation, reward, terminated, truncated, info)``,
sync or async. An observation is a string or a list of ``{"role", "content"}`` messages. A reward of None leaves the
scoring to graders.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from env_svc.faults import EnvFault
from env_svc.spec import PluginSpec
from env_svc.text import to_json

Message = dict[str, Any]
Observation = str | list[Message]


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset gave: an observation and a JSON-like info. version: what the environment declares, else empty."""

    observation: Observation
    info: dict[str, Any]
    version: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step gave."""

    observation: Observation
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def load(entry_point: str) -> Callable[..., Any]:
    """The class or factory that ``pkg.module:Name`` names.

    Raises:
        EnvFault: ``env_import``, naming what could not be found.
    """
    module_name, separator, name = entry_point.partition(":")
    if not (module_name and separator and name):
        raise EnvFault("env_import", f"env.entry_point {entry_point!r} is not pkg.module:Class", retryable=False)
    try:
        found: Any = import_module(module_name)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        detail = f"env.entry_point {entry_point!r} cannot be imported: {type(error).__name__}: {error}"
        raise EnvFault("env_import", detail, retryable=False) from error
    if not callable(found):
        raise EnvFault("env_import", f"env.entry_point {entry_point!r} is not a class or a factory", retryable=False)
    return found  # type: ignore[no-any-return]


def make(spec: PluginSpec) -> Any:
    """Construct the environment; ``split`` is passed when it has a parameter of that name."""
    factory = load(spec.entry_point)
    config = dict(spec.config)
    if spec.split and "split" not in config and _takes_split(factory):
        config["split"] = spec.split
    return factory(**config)


def is_async(factory: Callable[..., Any]) -> bool:
    """Whether the environment's step is a coroutine function."""
    return inspect.iscoroutinefunction(getattr(factory, "step", None))


def as_reset(raw: Any, environment: Any = None) -> Reset:
    """Raises EnvFault ``bad_return`` when ``raw`` is not (observation, info)."""
    if not (isinstance(raw, tuple) and len(raw) == 2):
        raise _bad("reset", f"(observation, info), not {_kind(raw)}")
    return Reset(_observation("reset", raw[0]), _info("reset", raw[1]), _version(environment))


def _version(environment: Any) -> str:
    """Pinned in the trajectory: actions and observations may mean something else under another one."""
    version = getattr(environment, "version", "")
    return str(version)[:100] if isinstance(version, str | int | float) else ""


def as_step(raw: Any) -> Step:
    """Raises EnvFault ``bad_return`` or ``bad_reward`` when ``raw`` is not the five-tuple."""
    if not (isinstance(raw, tuple) and len(raw) == 5):
        raise _bad("step", f"(observation, reward, terminated, truncated, info), not {_kind(raw)}")
    observation, reward, terminated, truncated, info = raw
    return Step(
        _observation("step", observation), _reward(reward), bool(terminated), bool(truncated), _info("step", info)
    )


def n_bytes(observation: Observation) -> int:
    """Size of an observation's text, in UTF-8 bytes (lone surrogates count as three)."""
    texts = [observation] if isinstance(observation, str) else [str(m["content"]) for m in observation]
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


def _takes_split(factory: Callable[..., Any]) -> bool:
    try:
        return "split" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # built-in classes have no signature
        return False


def _observation(method: str, raw: Any) -> Observation:
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list) and all(isinstance(m, Mapping) and "role" in m and "content" in m for m in raw):
        return [to_json(message) for message in raw]
    raise _bad(method, f"an observation that is a str or a list of role/content messages, not {_kind(raw)}")


def _reward(raw: Any) -> float | None:
    if raw is None:
        return None
    try:
        reward = float(raw)
    except (TypeError, ValueError):
        raise EnvFault("bad_reward", f"step must return a number or None as reward, not {_kind(raw)}") from None
    if not math.isfinite(reward):
        raise EnvFault("bad_reward", f"step returned the reward {reward}; it must be finite, or None")
    return reward


def _info(method: str, raw: Any) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise _bad(method, f"a dict as info, not {_kind(raw)}")
    return to_json(raw)  # type: ignore[no-any-return]


def _bad(method: str, what: str) -> EnvFault:
    return EnvFault("bad_return", f"{method} must return {what}", retryable=False)


def _kind(raw: Any) -> str:
    return f"a {type(raw).__name__}" + (f" of {len(raw)}" if isinstance(raw, tuple | list) else "")
