"""How asynchronous a job may be: one frozen value per job, and presets that are rows in a table.

Nothing in Headrace branches on a preset's name: a preset fills fields, and every decision reads fields.
`partial` and `bounded` differ in `alpha` and, where a job asks for RollArt's own order, in `load_at`; nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from types import MappingProxyType
from typing import Literal, get_args

Interaction = Literal["trajectory", "lockstep"]
RewardAt = Literal["at_end_of_batch", "at_end_of_trajectory"]
LoadAt = Literal["before_batch", "get_batch", "publish", "drain"]
OnLoad = Literal["finish_first", "continue", "discard"]
Overlap = Literal["none", "one_batch", "free"]
TrainOn = Literal["full_batch", "as_groups_complete"]
OnStale = Literal["evict", "wait"]


@dataclass(frozen=True, slots=True)
class PolicyProblem:
    """A field of an AsyncPolicy that cannot stand, why, and what would."""

    field: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncPolicy:
    """When workers load, what becomes of running work, and how old a group may be when it is taken.

    Attributes:
        interaction: `trajectory`: every episode steps on its own; `lockstep`: a cohort takes its turns together.
        reward: score each episode when it ends, or all of a batch when its last episode ends.
        load_at: when workers swap to a newer version: before generation for a batch starts, when a batch is taken,
            as soon as a version is published and resident, or when a worker has drained what is bound to it.
        on_load: running requests are finished first, continued with their kept tokens, or discarded and restarted.
        overlap: training and generation never overlap, by one batch, or freely.
        train_on: take a batch when all of it is ready, or hand groups to the trainer as they complete.
        alpha: largest lag L = depth(n) - depth(v0) at which a group may be taken; None: no bound.
        on_stale: evict groups that pass alpha, or hold the take until groups about to pass it are in.
        repack: merge the long tail of same-version trajectories onto fewer workers (Laminar, Algorithm 1).
        local_batch: trajectories that a worker starts under one version before it closes and drains; None: no limit.
        overcommit: factor on the admission bound (w + alpha - m + 1) * B of open and ready groups.
        max_inflight: most training attempts in the making at once, from admission until their group is ready; None: as
            many as the slots allow.
    """

    interaction: Interaction
    reward: RewardAt
    load_at: LoadAt
    on_load: OnLoad
    overlap: Overlap
    train_on: TrainOn
    alpha: int | None
    on_stale: OnStale = "evict"
    repack: bool = False
    local_batch: int | None = None
    overcommit: float = 1.0
    max_inflight: int | None = None

    def validate(self) -> tuple[PolicyProblem, ...]:
        """Every reason why this combination of fields cannot run; empty when it can."""
        found = [*_bad_choices(self), *_bad_numbers(self), *_bad_combinations(self)]
        return tuple(found)


PRESETS: Mapping[str, AsyncPolicy] = MappingProxyType(
    {
        "sync": AsyncPolicy(
            interaction="lockstep",
            reward="at_end_of_batch",
            load_at="before_batch",
            on_load="finish_first",
            overlap="none",
            train_on="full_batch",
            alpha=0,
        ),
        "sync_plus": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="before_batch",
            on_load="finish_first",
            overlap="none",
            train_on="full_batch",
            alpha=0,
        ),
        "one_off": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="before_batch",
            on_load="finish_first",
            overlap="one_batch",
            train_on="full_batch",
            alpha=1,
        ),
        "stream": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="before_batch",
            on_load="finish_first",
            overlap="one_batch",
            train_on="as_groups_complete",
            alpha=1,
        ),
        "partial": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="publish",
            on_load="continue",
            overlap="free",
            train_on="full_batch",
            alpha=4,
        ),
        "bounded": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="publish",
            on_load="continue",
            overlap="free",
            train_on="full_batch",
            alpha=1,
        ),
        "independent": AsyncPolicy(
            interaction="trajectory",
            reward="at_end_of_trajectory",
            load_at="drain",
            on_load="finish_first",
            overlap="free",
            train_on="full_batch",
            alpha=None,
        ),
    }
)
"""sync: verl-like baseline; sync_plus: RollArt's Sync+; one_off: one step off; stream: stream generation;
partial: AReaL (its eta is alpha); bounded: RollArt; independent: Laminar."""

POLICY_FIELDS: tuple[str, ...] = tuple(field.name for field in fields(AsyncPolicy))

_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "interaction": get_args(Interaction),
        "reward": get_args(RewardAt),
        "load_at": get_args(LoadAt),
        "on_load": get_args(OnLoad),
        "overlap": get_args(Overlap),
        "train_on": get_args(TrainOn),
        "on_stale": get_args(OnStale),
    }
)


def _bad_choices(policy: AsyncPolicy) -> list[PolicyProblem]:
    return [
        PolicyProblem(name, f"{getattr(policy, name)!r} is not a choice", f"use one of {', '.join(choices)}")
        for name, choices in _CHOICES.items()
        if getattr(policy, name) not in choices
    ]


def _bad_numbers(policy: AsyncPolicy) -> list[PolicyProblem]:
    found = []
    if policy.alpha is not None and policy.alpha < 0:
        found.append(PolicyProblem("alpha", "a lag is never negative", "use 0 or more, or null for no bound"))
    if not isfinite(policy.overcommit) or policy.overcommit < 1:
        found.append(
            PolicyProblem("overcommit", "below 1 admission stops before a batch can fill", "use a finite number >= 1")
        )
    for name in ("local_batch", "max_inflight"):
        value = getattr(policy, name)
        if value is not None and value < 1:
            found.append(PolicyProblem(name, "nothing could ever run", "use 1 or more, or null for no limit"))
    return found


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A combination that cannot run: every named field has the value beside it."""

    when: Mapping[str, object]
    field: str
    message: str
    fix: str


_DRAIN_ONLY = "only a worker that loads at drain binds trajectories to one version"

_REFUSALS: tuple[_Refusal, ...] = (
    _Refusal(
        {"alpha": 0, "load_at": "get_batch"},
        "alpha",
        "workers load after the batch is taken, so all they make is at least one version old and alpha 0 trains none",
        "set alpha to 1 or more, or load_at to publish or before_batch",
    ),
    _Refusal(
        {"interaction": "lockstep", "load_at": "drain"},
        "interaction",
        "a cohort in lockstep spans workers, while drain binds each trajectory to one worker's version",
        "set interaction to trajectory, or load_at to before_batch",
    ),
    _Refusal(
        {"interaction": "lockstep", "reward": "at_end_of_trajectory"},
        "reward",
        "in lockstep no episode is over before its cohort is",
        "set reward to at_end_of_batch, or interaction to trajectory",
    ),
    _Refusal(
        {"reward": "at_end_of_batch", "train_on": "as_groups_complete"},
        "train_on",
        "no group completes before the rewards at the end of the batch",
        "set reward to at_end_of_trajectory, or train_on to full_batch",
    ),
    _Refusal(
        {"reward": "at_end_of_batch", "overlap": "free"},
        "reward",
        "with free overlap generation has no batches that could end",
        "set reward to at_end_of_trajectory, or overlap to none or one_batch",
    ),
    _Refusal(
        {"load_at": "drain", "on_load": "continue"},
        "on_load",
        "a drained worker has nothing left to continue",
        "set on_load to finish_first",
    ),
    _Refusal(
        {"load_at": "drain", "on_load": "discard"},
        "on_load",
        "a drained worker has nothing left to discard",
        "set on_load to finish_first",
    ),
    _Refusal(
        {"alpha": None, "on_stale": "wait"},
        "on_stale",
        "without a bound nothing becomes stale, so there is nothing to wait for",
        "set alpha, or on_stale to evict",
    ),
)


def _bad_combinations(policy: AsyncPolicy) -> list[PolicyProblem]:
    found = [
        PolicyProblem(refusal.field, refusal.message, refusal.fix)
        for refusal in _REFUSALS
        if all(getattr(policy, name) == value for name, value in refusal.when.items())
    ]
    if policy.load_at != "drain":
        if policy.repack:
            found.append(PolicyProblem("repack", _DRAIN_ONLY, "set load_at to drain, or leave repack out"))
        if policy.local_batch is not None:
            found.append(PolicyProblem("local_batch", _DRAIN_ONLY, "set load_at to drain, or leave local_batch out"))
    return found
