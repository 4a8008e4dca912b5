"""Where `headrace up` keeps things."""

from dataclasses import dataclass
from pathlib import Path

DEFAULT = Path(".headrace")


@dataclass(frozen=True, slots=True)
class DataDir:
    """The data folder of one set of services.

    up.json        who runs, where, and since when      secrets.json   database and broker URLs, for their owner alone
    logs/          one file per process                 postgres/ redis/   the embedded servers
    """

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "up.json"

    @property
    def lock(self) -> Path:
        return self.root / "up.lock"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def previous_logs(self) -> Path:
        return self.root / "logs.previous"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"
