"""What a job's runner says about its rollout: `OpenRollout.policy_json`, checked."""

import json
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.core.requests import LoadMode, RequestLimits
from headrace.core.router import AffinityRouter


class InvalidPolicy(ValueError):
    """The runner sent a policy that cannot be followed; the message names the key."""


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """`is_bound` (`load_at: drain`): each trajectory stays with one version and worker, and workers load when they have
    drained; otherwise an update makes its version the least one that unpinned requests run on.

    `tags` is the static affinity; `is_learned` routes by the profile instead.
    """

    on_load: LoadMode = LoadMode.CONTINUE
    is_bound: bool = False
    local_batch: int | None = None
    has_repack: bool = False
    repack_every_s: float = 5.0
    tags: AffinityRouter = field(default_factory=AffinityRouter)
    is_learned: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)
    engine_json: str = "{}"
    prefetch_deadline_s: float = 60.0


def parse_policy(text: str) -> RolloutPolicy:
    """Read `{"on_load", "load_at", "local_batch", "repack", "repack_every_s", "affinity", "hw_mapping", "task_tags",
    "engine", "limits", "prefetch_deadline_s"}`.

    Every key may be left out; keys that the proxy has no use for are left to others. Raises InvalidPolicy.
    """
    given = _object(text)
    return RolloutPolicy(
        on_load=_mode(given.get("on_load") or LoadMode.CONTINUE),
        is_bound=given.get("load_at") == "drain",
        local_batch=_local_batch(given.get("local_batch")),
        has_repack=given.get("load_at") == "drain" and bool(given.get("repack")),
        repack_every_s=_seconds("repack_every_s", given.get("repack_every_s", 5.0)),
        tags=AffinityRouter(pools=_pools(given.get("hw_mapping")), tags=_tags(given.get("task_tags"))),
        is_learned=_is_learned(given.get("affinity") or "static"),
        limits=_limits(given.get("limits")),
        engine_json=json.dumps(given.get("engine") or {}),
        prefetch_deadline_s=_seconds("prefetch_deadline_s", given.get("prefetch_deadline_s", 60.0)),
    )


def _object(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text or "{}")
    except ValueError as error:
        raise InvalidPolicy(f"policy_json is not JSON: {error}") from error
    if not isinstance(given, dict):
        raise InvalidPolicy("policy_json must be a JSON object")
    return given


def _mode(value: object) -> LoadMode:
    try:
        return LoadMode(str(value))
    except ValueError:
        raise InvalidPolicy(f"on_load is {value!r}; give one of {', '.join(LoadMode)}") from None


def _local_batch(value: object) -> int | None:
    if value is None or (isinstance(value, int) and value >= 1):
        return value
    raise InvalidPolicy(f"local_batch is {value!r}; give a whole number of 1 or more, or null")


def _is_learned(value: object) -> bool:
    if value not in ("static", "learned"):
        raise InvalidPolicy(f"affinity is {value!r}; give static or learned")
    return value == "learned"


def _pools(value: object) -> dict[str, tuple[str, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(pools, list) for pools in value.values()):
        raise InvalidPolicy("hw_mapping must map each tag to a list of pools")
    return {str(tag): tuple(str(pool) for pool in pools) for tag, pools in value.items()}


def _tags(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidPolicy("task_tags must map each task to its tag")
    return {str(task): str(tag) for task, tag in value.items() if tag is not None}


def _limits(value: object) -> RequestLimits:
    if value is None:
        return RequestLimits()
    if not isinstance(value, dict):
        raise InvalidPolicy("limits must be an object")
    known = {entry.name for entry in fields(RequestLimits)}
    try:
        return RequestLimits(**{key: number for key, number in value.items() if key in known and number is not None})
    except (TypeError, ValueError) as error:
        raise InvalidPolicy(f"limits: {error}") from error


def _seconds(key: str, value: object) -> float:
    if not isinstance(value, int | float) or value <= 0:
        raise InvalidPolicy(f"{key} is {value!r}; give seconds above 0")
    return float(value)
