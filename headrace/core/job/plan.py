"""What a job asked for, as the machine needs it. Built once from the resolved job spec."""

import math
from dataclasses import dataclass, field

from headrace.core.async_policy import AsyncPolicy
from headrace.core.buffer import Fifo, Room, Sampler
from headrace.core.staleness import issued_per_group


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """One task of the mixture. `n_prompts` None: its seeds never run out."""

    name: str
    weight: float = 1.0
    reward_names: tuple[str, ...] = ()  # graded by reward workers, beside what the environment returns
    reward_weights: tuple[float, ...] = ()
    env_reward_weight: float = 1.0
    has_env_reward: bool = True
    reward_timeout_s: float = 30.0
    episode_s: float = 600.0
    n_prompts: int | None = None


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Evaluation: `episodes` held-out episodes per task and mode, always the same ones."""

    episodes: int = 0
    modes: tuple[str, ...] = ("sampled", "greedy")
    at_start: bool = True
    at_end: bool = True
    every: int = 0
    workers: int = 1
    deadline_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds and bounded counts; passing one is a named loss or a named failure of the job."""

    step_s: float = 600.0
    job_s: float = 86400.0  # pauses not counted
    pause_ttl_s: float = 3600.0
    quota_patience_s: float = 60.0
    stale_deadline_s: float = 60.0
    prefetch_s: float = 30.0
    update_s: float = 60.0
    start_s: float = 300.0
    max_requeues: int = 2
    max_attempts: int = 3
    max_failed_groups: int = 32
    max_filtered: int = 4
    reward_tries: int = 3


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The whole of it. `groups` is B, the groups that one step consumes over all tasks."""

    job_id: str
    seed: int
    max_steps: int
    groups: int
    group_size: int
    tasks: tuple[TaskPlan, ...]
    policy: AsyncPolicy
    redundancy: str = "1"
    on_short: str = "drop"
    filter: str = "none"
    sampler: Sampler = field(default_factory=Fifo)
    room: Room = field(default_factory=Room)
    env_slots: int = 1 << 20  # environments of the job that may be live at once, over all processes
    selection_cap: float | None = None  # inverse-propensity weights up to this; None: all weights are 1
    updates_per_step: int = 1
    checkpoint_every: int = 0
    export_path: str = ""
    evaluation: EvalPlan = field(default_factory=EvalPlan)
    limits: Limits = field(default_factory=Limits)

    # Worked out once: they are asked for at every turn.
    issued: int = field(init=False, repr=False, compare=False)  # k: attempts issued for a group at its admission
    part_sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _quotas: dict[str, int] = field(init=False, repr=False, compare=False)
    _by_name: dict[str, TaskPlan] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        known = {
            "issued": issued_per_group(self.group_size, self.redundancy),
            "part_sizes": self._part_sizes(),
            "_quotas": self._rounded_quotas(),
            "_by_name": {task.name: task for task in self.tasks},
        }
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def _part_sizes(self) -> tuple[int, ...]:
        """Groups of each part of a batch: one part, or one per update where groups are trained as they complete."""
        n_parts = min(self.updates_per_step, self.groups) if self.policy.train_on == "as_groups_complete" else 1
        return tuple(self.groups * (i + 1) // n_parts - self.groups * i // n_parts for i in range(n_parts))

    def task(self, name: str) -> TaskPlan:
        return self._by_name[name]

    def quotas(self) -> dict[str, int]:
        """Groups of each task in a batch: weights rounded by largest remainder, so that they sum to B."""
        return dict(self._quotas)

    def _rounded_quotas(self) -> dict[str, int]:
        total = sum(task.weight for task in self.tasks)
        exact = {task.name: self.groups * task.weight / total for task in self.tasks}
        quota = {name: math.floor(share) for name, share in exact.items()}
        by_remainder = sorted(exact, key=lambda name: (quota[name] - exact[name], name))
        for name in by_remainder[: self.groups - sum(quota.values())]:
            quota[name] += 1
        return quota
