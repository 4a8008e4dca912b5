"""When a process that ended is started again, and when the launcher gives up on it."""

from dataclasses import dataclass

FIRST_DELAY_S = 0.1
MOST_DELAY_S = 5.0
STABLE_S = 10.0
QUICK_CRASHES = 6
EXIT_USAGE = 2


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Starting it again would not help."""

    reason: str


@dataclass(slots=True)
class RestartPolicy:
    """The record of one process.

    A process that ran for `STABLE_S` starts with a clean record; one that crashes `QUICK_CRASHES` times in a row, or
    refuses its command line, is given up.
    """

    quick_crashes: int = 0

    def on_exit(self, exit_code: int, ran_s: float) -> Restart | GiveUp:
        """Decide after an end that nobody asked for."""
        if exit_code == EXIT_USAGE:
            return GiveUp("refused its settings")
        if ran_s >= STABLE_S:
            self.quick_crashes = 0
        self.quick_crashes += 1
        if self.quick_crashes >= QUICK_CRASHES:
            return GiveUp(f"crashed {self.quick_crashes} times in a row within {STABLE_S:g} s of its start")
        return Restart(min(FIRST_DELAY_S * 2 ** (self.quick_crashes - 1), MOST_DELAY_S))
