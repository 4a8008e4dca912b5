"""FrozenLake as a text game, on gymnasium's own environment.

The first observation is the whole map followed by the player's place; later ones are the place alone:

    SFFF
    FHFH
    FFFH
    HFFG
    00 #FF#

The last line reads: row digit, column digit, then the four neighbour cells in the order Left, Down, Right, Up, ``#``
standing for the edge of the map. An answer is one move word.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Literal

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv, generate_random_map

MOVES = ("Left", "Down", "Right", "Up")
"""Move words in gymnasium's action order."""

_OFFSETS = ((0, -1), (1, 0), (0, 1), (-1, 0))
_WORD = re.compile(r"[a-z]+")
_TAG = re.compile(r"</?[a-z_]+>")
_HELD_OUT_ONE_IN = 5
_MAX_MAP_DRAWS = 10_000


def map_split(desc: Sequence[str]) -> Literal["train", "heldout"]:
    """The split that a map belongs to: one map in five is held out, by a hash of its cells.

    Seeds cannot split maps: few distinct 4x4 maps exist, so different seeds would repeat them on both sides.
    """
    digest = blake2b("\n".join(desc).encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0 else "train"


def parse_move(text: str) -> int | None:
    """The action index of the one move word in ``text``, or None when there is none or more than one.

    Case, punctuation and surrounding tags do not matter: ``down``, ``DOWN.`` and ``<answer>Down</answer>`` are 1.
    """
    words = _WORD.findall(_TAG.sub(" ", text.lower()))
    return _INDEX.get(words[0]) if len(words) == 1 else None


_INDEX = {move.lower(): index for index, move in enumerate(MOVES)}


class FrozenLake:
    """Text environment with gymnasium's five-tuple contract.

    Args:
        split: which maps ``reset`` draws, ``train`` or ``heldout``.
        size: rows and columns of a random map, 2 to 10.
        frozen_probability: chance that a cell is frozen; only solvable maps are used.
        is_slippery: gymnasium's slippery ice (a move goes as asked one time in three).
        max_turns: turns until the episode is truncated; invalid answers count.
        on_invalid: ``continue`` leaves the player where it is; ``end`` terminates the episode with ``invalid_reward``.
        invalid_reward: reward of an invalid answer.
        instructions: text put before the first observation (a general language model needs the rules).
        desc: a fixed map instead of random ones; ``split`` is then without effect.

    Raises:
        ValueError: a setting is out of range.
    """

    isolation = "inline"
    """Steps take microseconds and cannot hang, so they run on the event loop."""

    version = f"1 (gymnasium {gymnasium.__version__})"

    def __init__(
        self,
        *,
        split: Literal["train", "heldout"] = "train",
        size: int = 4,
        frozen_probability: float = 0.8,
        is_slippery: bool = False,
        max_turns: int = 10,
        on_invalid: Literal["continue", "end"] = "continue",
        invalid_reward: float = 0.0,
        instructions: str = "",
        desc: Sequence[str] | None = None,
    ) -> None:
        _check_choice("split", split, ("train", "heldout"))
        _check_choice("on_invalid", on_invalid, ("continue", "end"))
        if not 2 <= size <= 10:
            raise ValueError(f"size is {size}; it must be 2 to 10, for rows and columns are single digits")
        if not 0 < frozen_probability <= 1:
            raise ValueError(f"frozen_probability is {frozen_probability}; it must be in (0, 1]")
        if max_turns < 1:
            raise ValueError(f"max_turns is {max_turns}; it must be at least 1")
        self._split, self._size, self._frozen_probability = split, size, frozen_probability
        self._is_slippery, self._max_turns = is_slippery, max_turns
        self._on_invalid, self._invalid_reward, self._instructions = on_invalid, invalid_reward, instructions
        self._fixed_desc = list(desc) if desc is not None else None
        self._desc: list[str] = []
        self._game: FrozenLakeEnv | None = None
        self._state = self._n_turns = self._n_invalid = 0
        self._is_over = True

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Start the episode that belongs to ``seed``: the same seed gives the same map (and the same slips)."""
        self._desc = self._fixed_desc or self._draw_map(seed)
        self._game = FrozenLakeEnv(desc=self._desc, is_slippery=self._is_slippery)
        self._state, _ = self._game.reset(seed=seed % 2**31)
        self._n_turns = self._n_invalid = 0
        self._is_over = False
        text = "\n".join([*self._desc, self._place()])
        info = {"map": list(self._desc), "split": map_split(self._desc), "is_slippery": self._is_slippery}
        return (f"{self._instructions}\n{text}" if self._instructions else text), info

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one move word; returns (observation, reward, terminated, truncated, info).

        Raises:
            RuntimeError: the episode has not begun or is over.
        """
        if self._is_over or self._game is None:
            raise RuntimeError("step on an episode that is over or has not begun; call reset first")
        self._n_turns += 1
        move = parse_move(text)
        reward, is_terminated = self._invalid_reward, self._on_invalid == "end"
        if move is None:
            self._n_invalid += 1
        else:
            self._state, reward, is_terminated, _, _ = self._game.step(move)
        is_truncated = not is_terminated and self._n_turns >= self._max_turns
        self._is_over = is_terminated or is_truncated
        info = {"is_valid": move is not None, "n_invalid": self._n_invalid, "n_turns": self._n_turns}
        return self._place(), float(reward), bool(is_terminated), is_truncated, info

    def close(self) -> None:
        """Release the game."""
        if self._game is not None:
            self._game.close()
        self._game, self._is_over = None, True

    def _draw_map(self, seed: int) -> list[str]:
        for draw in range(_MAX_MAP_DRAWS):
            digest = blake2b(f"{seed}:{draw}".encode(), digest_size=4).digest()
            desc: list[str] = generate_random_map(
                size=self._size, p=self._frozen_probability, seed=int.from_bytes(digest, "big")
            )
            if map_split(desc) == self._split:
                return desc
        raise RuntimeError(f"no {self._split} map in {_MAX_MAP_DRAWS} draws; enlarge size or lower frozen_probability")

    def _place(self) -> str:
        n_columns = len(self._desc[0])
        row, column = divmod(int(self._state), n_columns)
        cells = "".join(self._cell(row + down, column + right) for down, right in _OFFSETS)
        return f"{row}{column} {cells}"

    def _cell(self, row: int, column: int) -> str:
        is_inside = 0 <= row < len(self._desc) and 0 <= column < len(self._desc[0])
        return self._desc[row][column] if is_inside else "#"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(choices)}")
