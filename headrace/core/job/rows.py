"""Rows of a job as the machine holds them and the control plane stores them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from headrace.core.ledger import EXITS, IN_FLIGHT, AttemptState


class Key(NamedTuple):
    """The ledger's unit."""

    trajectory_id: str
    attempt: int


class SegmentRow(NamedTuple):
    """A run of generated tokens with the version, replica and weights that made it."""

    policy_version: int
    worker_id: str
    weight_digest: str
    n_tokens: int


@dataclass(slots=True)
class Attempt:
    """One try at one sibling's episode. Seconds are the control plane's clock."""

    key: Key
    group_id: str
    purpose: str
    task: str
    sibling: int
    kind: str  # first | redundant | refill
    mode: str  # sampled | greedy
    issued_at: float
    state: AttemptState = AttemptState.QUEUED
    reason: str = ""
    start_version: int | None = None
    finish_version: int | None = None
    sample_version: int | None = None
    step: int | None = None
    env_worker_id: str = ""
    reward: float | None = None
    reward_components: dict[str, float] = field(default_factory=dict)
    weight: float = 1.0  # in the batch that took it
    pending_rewards: set[str] = field(default_factory=set)
    reward_try: int = 0
    reward_deadline: float | None = None
    token_blob: str = ""
    grading_blob: str = ""
    n_tokens: int = 0
    n_generated_tokens: int = 0
    n_turns: int = 0
    discarded_tokens: int = 0
    invalid_actions: int = 0
    finish_reason: str = ""
    is_truncated: bool = False
    segments: tuple[SegmentRow, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)
    fault: Mapping[str, str] = field(default_factory=dict)
    started_at: float | None = None
    finished_at: float | None = None
    closed_at: float | None = None

    @property
    def is_in_flight(self) -> bool:
        return self.state in IN_FLIGHT

    @property
    def is_lost(self) -> bool:
        return self.state in EXITS


class GroupState(StrEnum):
    OPEN = "open"
    COMPLETE = "complete"
    READY = "ready"
    TAKEN = "taken"
    DROPPED = "dropped"
    EVALUATED = "evaluated"


GROUP_TRANSITIONS: Mapping[GroupState, frozenset[GroupState]] = {
    GroupState.OPEN: frozenset({GroupState.COMPLETE, GroupState.READY, GroupState.DROPPED, GroupState.EVALUATED}),
    GroupState.COMPLETE: frozenset({GroupState.OPEN, GroupState.READY, GroupState.DROPPED, GroupState.EVALUATED}),
    GroupState.READY: frozenset({GroupState.TAKEN, GroupState.DROPPED}),
    GroupState.TAKEN: frozenset({GroupState.DROPPED}),
}


@dataclass(slots=True)
class Group:
    """Siblings of one prompt and one environment seed, joined by id. `members` holds every attempt ever issued."""

    id: str
    ordinal: int
    purpose: str
    task: str
    env_seed: int
    admitted_version: int
    created_at: float
    parent_group: str = ""
    requeues: int = 0
    cohort: str = ""
    state: GroupState = GroupState.OPEN
    reason: str = ""
    ready_order: int | None = None
    step: int | None = None
    ready_at: float | None = None
    closed_at: float | None = None
    members: dict[Key, Attempt] = field(default_factory=dict)

    @property
    def live(self) -> list[Attempt]:
        return [member for member in self.members.values() if member.state in IN_FLIGHT]

    def in_state(self, *states: AttemptState) -> list[Attempt]:
        return [member for member in self.members.values() if member.state in states]


class StepState(StrEnum):
    SAMPLED = "sampled"
    COMMITTED = "committed"


class BatchMember(NamedTuple):
    key: Key
    sibling: int
    token_blob: str
    reward: float | None
    is_truncated: bool
    lag: int
    weight: float = 1.0


class BatchGroup(NamedTuple):
    group_id: str
    task: str
    members: tuple[BatchMember, ...]


@dataclass(slots=True)
class Step:
    """One training step: its batch is its identity. It is taken whole, or in parts as groups complete."""

    step: int
    batch_digest: str
    policy_version: int
    publish_version: int
    groups: tuple[BatchGroup, ...]
    n_tokens: int
    sampled_at: float
    state: StepState = StepState.SAMPLED
    published_version: int | None = None
    replays: int = 0
    committed_at: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    ledger: dict[str, object] = field(default_factory=dict)

    def is_full(self, groups: int) -> bool:
        """Whether all of the batch has been taken."""
        return self.state is StepState.COMMITTED or len(self.groups) >= groups
