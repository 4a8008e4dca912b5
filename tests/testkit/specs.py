"""Resolved job specs as a runner gets them."""

from typing import Any

from headrace.client.jobspec import JobSpec, parse

CALCULATOR: dict[str, Any] = {
    "name": "tools",
    "env": {"entry_point": "env_svc.environments.calculator:Calculator"},
    "rewards": [{"fn": "reward_svc.graders.calculator:grade", "name": "grade", "timeout_s": 5, "retries": 2}],
}
LAKE: dict[str, Any] = {
    "name": "lake",
    "env": {"entry_point": "env_svc.environments.frozen_lake:FrozenLake", "timeouts": {"episode_s": 90}},
    "rewards": [{"env": True, "weight": 0.5}],
}


def make_spec(**blocks: Any) -> JobSpec:
    """Two tasks, one paid by its environment and one graded; keyword arguments replace whole blocks."""
    document = {
        "schema": "headrace/v1",
        "name": "two tasks",
        "seed": 7,
        "max_steps": 3,
        "model": {"path": "/models/tiny"},
        "batch": {"groups": 2, "group_size": 2},
        "eval": {"at_start": False, "at_end": False},
        "tasks": [LAKE, CALCULATOR],
        **blocks,
    }
    return parse(document).resolve()
