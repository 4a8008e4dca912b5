"""The part of a resolved job spec that environments need."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from env_svc.faults import JobRefused
from headrace.core.episode import EpisodeLimits

ISOLATIONS = ("auto", "inline", "thread", "process")


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """An environment by import path, ``pkg.module:Class``, and how it is run."""

    entry_point: str
    config: Mapping[str, Any] = field(default_factory=dict)
    split: str = ""
    isolation: str = "auto"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds of one reset (construction included), of one step, and of the whole episode (pauses excluded)."""

    reset_s: float = 60.0
    step_s: float = 30.0
    episode_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the engine is asked for in each turn; always explicit."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task of the mixture.

    has_env_reward: the job counts the environment's own reward. overflow_reward: added when an episode is cut by
    tokens. max_observation_tokens: longer observations are cut, by tokens. on_length: see `EpisodeLimits`.
    """

    name: str
    plugin: PluginSpec
    deadlines: Deadlines = Deadlines()
    sampling: Sampling = Sampling()
    max_turns: int | None = None
    max_observation_tokens: int | None = None
    overflow_reward: float = 0.0
    on_length: str = "end"
    observation_role: str = "user"
    has_env_reward: bool = True

    def limits(self, max_len: int) -> EpisodeLimits:
        """Limits of an episode of this task under a row length."""
        return EpisodeLimits(max_len, self.sampling.max_tokens, self.max_turns, self.on_length)


@dataclass(frozen=True, slots=True)
class JobSpec:
    """max_len: tokens of a whole row; pause_ttl_s: how long environments outlive a pause."""

    tasks: Mapping[str, TaskSpec]
    max_len: int
    pause_ttl_s: float = 3600.0


def parse_job_spec(spec_json: str) -> JobSpec:
    """Raises JobRefused, naming the field, when something that environments need is missing or wrong."""
    try:
        document = json.loads(spec_json)
        tasks = [_task(task) for task in document["tasks"]]
        job = JobSpec(
            tasks={task.name: task for task in tasks},
            max_len=int(_get(document, "model", "max_len", default=4096)),
            pause_ttl_s=float(_get(document, "limits", "pause_ttl_s", default=3600.0)),
        )
        for task in tasks:
            task.limits(job.max_len)
    except KeyError as error:
        raise JobRefused(f"spec_json: key {error} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise JobRefused(f"spec_json: {error}") from None
    return job


def _task(task: Mapping[str, Any]) -> TaskSpec:
    env, sampling = task["env"], task.get("sampling") or {}
    timeouts = env.get("timeouts") or {}
    isolation = env.get("isolation") or "auto"
    if isolation not in ISOLATIONS:
        raise ValueError(f"env.isolation is {isolation!r}; choose one of {', '.join(ISOLATIONS)}")
    rewards = task.get("rewards") or [{"env": True}]
    return TaskSpec(
        name=task["name"],
        plugin=PluginSpec(env["entry_point"], env.get("config") or {}, isolation=isolation),
        deadlines=Deadlines(**{name: float(value) for name, value in timeouts.items() if value is not None}),
        sampling=Sampling(
            temperature=float(_or(sampling.get("temperature"), 1.0)),
            top_p=float(_or(sampling.get("top_p"), 1.0)),
            top_k=int(sampling.get("top_k") or 0),
            max_tokens=int(_or(sampling.get("max_tokens"), 64)),
            stop=tuple(sampling.get("stop") or ()),
        ),
        max_turns=env.get("max_turns"),
        max_observation_tokens=task.get("max_observation_tokens"),
        overflow_reward=float(task.get("overflow_reward") or 0.0),
        on_length=task.get("on_length") or "end",
        observation_role=env.get("observation_role") or "user",
        has_env_reward=any(reward.get("env") for reward in rewards),
    )


def _get(document: Mapping[str, Any], block: str, key: str, *, default: float) -> Any:
    return _or((document.get(block) or {}).get(key), default)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
