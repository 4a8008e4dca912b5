"""What a simulated job is kept in, in memory or on PostgreSQL, behind one interface."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from control_plane.runner.turn import StoredManifest, Turn
from headrace.core.job.plan import JobPlan
from headrace.core.job.snapshot import StoredJob

Row = Mapping[str, Any]


class Repository(Protocol):
    """`control_plane.runner.repository.JobRepository`, as far as a runner uses it."""

    async def commit(self, turn: Turn) -> list[int]: ...

    async def load(self, plan: JobPlan) -> StoredJob | None: ...

    async def unsent(self) -> list[tuple[int, Mapping[str, Any]]]: ...

    async def desired(self) -> str | None: ...

    async def rewards_of_waiting(self) -> Any: ...

    async def manifest(self, policy_version: int) -> StoredManifest | None: ...


class Database(Protocol):
    """One job's rows, the lease on it, and what others than its runner write.

    `is_read_each_turn`: reading every row costs nothing; else it is done at takeovers and at the end.
    """

    is_read_each_turn: bool

    async def acquire(self) -> tuple[int, Repository]:
        """The next epoch; every repository handed out before is fenced off."""

    async def wish(self, desired: str) -> None: ...

    async def report_reward(self, row: Row) -> None: ...

    async def rows(self) -> "Rows": ...

    async def fingerprint(self) -> str:
        """Changes whenever anything of the job is written."""


@dataclass
class Rows:
    """A job's rows by their keys, as they are stored; `rewards` by trajectory, attempt and name."""

    job: Mapping[str, Any]
    groups: Mapping[str, Row]
    attempts: Mapping[tuple[str, int], Row]
    segments: Mapping[tuple[str, int, int], Row]
    versions: Mapping[int, Row]
    steps: Mapping[int, Row]
    rewards: Mapping[tuple[str, int, str], Row]
