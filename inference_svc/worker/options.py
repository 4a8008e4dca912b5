"""What an engine is built from: the worker's own settings, overridden by the job's engine settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from inference_svc.worker.settings import WorkerSettings


class BadOptions(Exception):
    """Engine settings that cannot be read; the message names the key."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes of an engine; tokens and seconds. ``max_len`` 0 leaves the model's own window."""

    max_running: int = 64
    kv_tokens: int = 32768
    page_size: int = 16
    max_batch_tokens: int = 512
    max_len: int = 0
    t0_s: float = 0.002
    per_running_s: float = 0.0
    per_kv_token_s: float = 0.0
    seed: int = 0
    vocab_size: int = 64

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """The worker's own defaults."""
        return cls(
            max_running=settings.max_running,
            kv_tokens=settings.kv_tokens,
            page_size=settings.page_size,
            max_batch_tokens=settings.max_batch_tokens,
            max_len=settings.max_len,
            t0_s=settings.scripted_t0_s,
            per_running_s=settings.scripted_per_running_s,
            per_kv_token_s=settings.scripted_per_kv_token_s,
            seed=settings.scripted_seed,
            vocab_size=settings.scripted_vocab_size,
        )

    def overridden(self, engine_json: str) -> tuple[Self, list[str]]:
        """These options with a job's JSON object over them, and the keys that no engine knows. Raises BadOptions."""
        given = _parse(engine_json)
        known = {field.name: field for field in fields(self)}
        changes = {key: _number(key, value) for key, value in given.items() if key in known and value is not None}
        unknown = sorted(set(given) - set(known))
        for key in ("max_running", "kv_tokens", "page_size", "max_batch_tokens"):
            if key in changes and changes[key] < 1:
                raise BadOptions(f"engine setting {key} is {changes[key]}; give at least 1")
        return replace(self, **changes), unknown


def _parse(engine_json: str) -> Mapping[str, Any]:
    try:
        given = json.loads(engine_json or "{}")
    except ValueError as error:
        raise BadOptions(f"engine settings are not JSON: {error}") from error
    if not isinstance(given, dict):
        raise BadOptions("engine settings are not a JSON object")
    return given


def _number(key: str, value: object) -> Any:
    is_time = key.endswith("_s")
    if isinstance(value, bool) or not isinstance(value, (int, float) if is_time else int) or value < 0:
        kind = "a number of seconds" if is_time else "a whole number"
        raise BadOptions(f"engine setting {key} is {value!r}; give {kind}, not negative")
    return value
