"""The memory repository as a simulated job's database, and what reward workers and the job's owner write beside it."""

from testkit.memory_repository import MemoryRepository, MemoryTables
from testkit.sim.database import Repository, Row, Rows

TTL_S = 30.0


class MemoryDatabase:
    is_read_each_turn = True

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        self.tables = MemoryTables()
        self.rewards: dict[tuple[str, int, str], Row] = {}

    async def acquire(self) -> tuple[int, Repository]:
        self.tables.now += TTL_S + 1.0  # the lease of whoever had the job lapses
        epoch = self.tables.acquire("simulator", TTL_S)
        assert epoch is not None
        return epoch, MemoryRepository(self.tables, self.job_id, epoch, TTL_S)

    async def wish(self, desired: str) -> None:
        self.tables.job["desired"] = desired

    async def report_reward(self, row: Row) -> None:
        """The first report stands; a retryable fault gives way to a later try. Only for attempts that are scored."""
        key = (row["trajectory_id"], row["attempt"], row["reward_name"])
        attempt = self.tables.attempts.get(key[:2])
        if attempt is None or attempt["state"] != "scoring":
            return
        known = self.rewards.get(key)
        if known is not None:
            if not known["fault"].get("retryable") or known["try"] >= row["try"]:
                return
            self.tables.rewards.remove(known)  # type: ignore[arg-type]
        self.rewards[key] = row
        self.tables.rewards.append(dict(row))

    async def rows(self) -> Rows:
        """Live: what is read here is what is stored now."""
        t = self.tables
        return Rows(t.job, t.groups, t.attempts, t.segments, t.versions, t.steps, self.rewards)

    async def fingerprint(self) -> str:
        return repr(self.tables)
