"""FrozenLake as text: maps per seed and split, words to moves, what an invalid answer costs."""

import pytest

from env_svc.environments.frozen_lake import MOVES, FrozenLake, map_split, parse_move

SMALL = ("SFF", "HFH", "FFG")


def play(lake: FrozenLake, *words: str) -> list[tuple[str, float, bool, bool, dict]]:  # type: ignore[type-arg]
    return [lake.step(word) for word in words]


def test_the_first_observation_is_the_map_and_the_place() -> None:
    observation, info = FrozenLake(desc=SMALL).reset(seed=1)
    assert observation == "SFF\nHFH\nFFG\n00 #HF#"
    assert info["is_slippery"] is False


def test_later_observations_are_the_place_alone() -> None:
    lake = FrozenLake(desc=SMALL)
    lake.reset(seed=1)
    observation, reward, is_terminated, is_truncated, _ = lake.step("Right")
    assert (observation, reward, is_terminated, is_truncated) == ("01 SFF#", 0.0, False, False)


def test_every_spelling_of_a_move_reaches_the_goal() -> None:
    lake = FrozenLake(desc=SMALL)
    lake.reset(seed=1)
    *_, last = play(lake, "Right", "down", "DOWN.", "<answer>Right</answer>")
    assert last[0].startswith("22")
    assert last[1:4] == (1.0, True, False)
    assert last[4]["n_turns"] == 4


@pytest.mark.parametrize("text", ["Diagonal", "", "Left or Right", "2", "<|end|>", "Rightmost", "ＤＯＷＮ", "\x00"])
def test_an_invalid_answer_moves_nothing_and_counts(text: str) -> None:
    lake = FrozenLake(desc=SMALL, invalid_reward=-0.1)
    before, _ = lake.reset(seed=1)
    observation, reward, is_terminated, is_truncated, info = lake.step(text)
    assert before.endswith(observation)
    assert (reward, is_terminated, is_truncated) == (-0.1, False, False)
    assert (info["is_valid"], info["n_invalid"], info["n_turns"]) == (False, 1, 1)


def test_invalid_answers_end_at_the_turn_limit() -> None:
    lake = FrozenLake(desc=SMALL, max_turns=3)
    lake.reset(seed=1)
    ends = [step[2:4] for step in play(lake, "2", "2", "2")]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(RuntimeError, match="reset"):
        lake.step("Right")


def test_an_invalid_answer_can_end_the_episode() -> None:
    lake = FrozenLake(desc=SMALL, on_invalid="end")
    lake.reset(seed=1)
    assert lake.step("2")[1:4] == (0.0, True, False)


def test_a_hole_ends_the_episode_without_reward() -> None:
    lake = FrozenLake(desc=SMALL)
    lake.reset(seed=1)
    assert lake.step("Down")[1:4] == (0.0, True, False)


def test_members_of_a_group_share_a_map_and_groups_differ() -> None:
    maps = [[FrozenLake().reset(seed=seed)[1]["map"] for _ in range(4)] for seed in range(12)]
    assert all(group.count(group[0]) == 4 for group in maps)
    assert len({tuple(group[0]) for group in maps}) > 6
    lake = FrozenLake()
    assert [lake.reset(seed=seed)[1]["map"] for seed in range(12)] == [group[0] for group in maps]


def test_splits_share_no_map() -> None:
    drawn = {
        split: {tuple(FrozenLake(split=split).reset(seed=seed)[1]["map"]) for seed in range(300)}
        for split in ("train", "heldout")
    }
    assert not drawn["train"] & drawn["heldout"]
    for split, maps in drawn.items():
        assert {map_split(desc) for desc in maps} == {split}
        assert len(maps) > 40


def test_without_slipping_the_path_always_arrives_and_with_it_a_third_of_moves_go_as_asked() -> None:
    lake = FrozenLake(desc=SMALL, is_slippery=False)
    for seed in range(20):
        lake.reset(seed=seed)
        assert play(lake, "Right", "Down", "Down", "Right")[-1][1] == 1.0
    slippery = FrozenLake(desc=("SFF", "FFF", "FFG"), is_slippery=True)
    n_as_asked = 0
    for seed in range(300):
        assert slippery.reset(seed=seed)[1]["is_slippery"] is True
        n_as_asked += slippery.step("Right")[0].startswith("01")
    assert 70 < n_as_asked < 130


def test_instructions_come_first() -> None:
    observation, _ = FrozenLake(desc=SMALL, instructions="Find the goal: ° 価").reset(seed=1)
    assert observation.startswith("Find the goal: ° 価\nSFF\n")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"split": "test"}, "split"),
        ({"size": 1}, "size"),
        ({"max_turns": 0}, "max_turns"),
        ({"on_invalid": "x"}, "on_invalid"),
        ({"frozen_probability": 0}, "frozen_probability"),
    ],
)
def test_a_bad_setting_is_named(config: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        FrozenLake(**config)  # type: ignore[arg-type]


def test_moves_stand_in_gymnasium_order() -> None:
    assert [parse_move(move) for move in MOVES] == [0, 1, 2, 3]
