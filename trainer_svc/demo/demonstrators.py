"""Scripted demonstrators of the two demo tasks.

They read observations and write answers as a model would. Phase 1 shows the skill with some noise, phase 2 lacks it:

| | phase 1 | phase 2 |
|---|---|---|
| FrozenLake | shortest path around holes; slips, not imitated | shortest path through holes; slips, imitated |
| calculator | both calls, then the answer; 20 % guess at once | 75 % guess at once or stop after one call |
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

MOVES = ("Left", "Down", "Right", "Up")
_OFFSETS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
_TERMS = re.compile(r"(\d+)([+-])(\d+)([+-])(\d+)")

Demonstrator = Callable[[list[str], Random], tuple[str, bool]]
"""Maps the observations so far (first one first) and chance to the next answer, and whether it is imitated."""


@dataclass(frozen=True, slots=True)
class Navigator:
    """Walks to the goal by a shortest path; ``random_share`` of its moves are uniform instead.

    Slips show places off the path, and how to go on from there; whether they are imitated is a setting of its own.
    """

    sees_holes: bool
    random_share: float
    imitates_slips: bool

    def __call__(self, observations: list[str], random: Random) -> tuple[str, bool]:
        if random.random() < self.random_share:
            return random.choice(MOVES), self.imitates_slips
        grid = tuple(observations[0].split("\n")[:-1])
        row, column = (int(digit) for digit in observations[-1].split("\n")[-1][:2])
        distances = _distances(grid, self.sees_holes)
        here = distances[row, column]
        steps = {move: (row + down, column + right) for move, (down, right) in _OFFSETS.items()}
        return random.choice([move for move, cell in steps.items() if distances.get(cell, here) < here]), True


@dataclass(frozen=True, slots=True)
class Reckoner:
    """Uses the tool twice and answers, except for ``guess_share`` of its episodes, which end too early.

    A shortened episode either guesses a number at once or answers with the result of the first call.
    """

    guess_share: float
    stop_early_share: float

    def __call__(self, observations: list[str], random: Random) -> tuple[str, bool]:
        return self._answer(observations, random), True

    def _answer(self, observations: list[str], random: Random) -> str:
        first, one, second, two, third = _TERMS.fullmatch(observations[0]).groups()  # type: ignore[union-attr]
        match len(observations):
            case 1 if random.random() < self.guess_share:
                return f"answer {random.choice('+-')}{random.randrange(200):03d}"
            case 1:
                return f"calc {first}{one}{second}"
            case 2 if random.random() < self.stop_early_share:
                return f"answer {observations[1]}"
            case 2:
                return f"calc {observations[1]}{two}{third}"
            case _:
                return f"answer {observations[-1]}"


@lru_cache(maxsize=4096)
def _distances(grid: tuple[str, ...], sees_holes: bool) -> dict[tuple[int, int], int]:
    goal = next((row, line.index("G")) for row, line in enumerate(grid) if "G" in line)
    distances, queue = {goal: 0}, deque([goal])
    while queue:
        row, column = queue.popleft()
        for down, right in _OFFSETS.values():
            cell = (row + down, column + right)
            is_inside = 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0])
            if is_inside and cell not in distances and not (sees_holes and grid[cell[0]][cell[1]] == "H"):
                distances[cell] = distances[row, column] + 1
                queue.append(cell)
    return distances
