"""From commands and token blobs to rows."""

from dataclasses import replace

import pytest

from headrace.core.advantages import dr_grpo
from headrace.wire.common.v1 import common_pb2
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.trainer.v1 import trainer_pb2 as pb
from trainer_svc.errors import BatchUnusable
from trainer_svc.rows import BatchRows, RowRules, build_rows

RULES = RowRules(dr_grpo, mask_truncated=False, vocab_size=29)


def blob(ids: list[int], spans: list[tuple[int, int]], logprobs: list[float], segments: list[tuple[int, int]]) -> bytes:
    return environments_pb2.TrajectoryTokens(
        token_ids=ids,
        spans=[environments_pb2.TokenSpan(start=start, n_tokens=n) for start, n in spans],
        logprobs=logprobs,
        segments=[common_pb2.Segment(policy_version=version, n_tokens=n) for version, n in segments],
        temperature=1.0,
    ).SerializeToString()


TWO_TURNS = blob([11, 12, 13, 14, 4, 15, 16, 17, 4], [(3, 2), (7, 2)], [-0.1, -0.2, -0.3, -0.4], [(3, 3), (4, 1)])


def group(name: str, *members: tuple[str, float | None], truncated: bool = False) -> pb.TrainGroup:
    return pb.TrainGroup(
        group_id=name,
        task="lake",
        members=[
            pb.TrainMember(
                key=common_pb2.AttemptKey(trajectory_id=f"{name}{sibling}", attempt=1),
                sibling=sibling,
                token_blob=digest,
                reward=reward,
                is_truncated=truncated,
            )
            for sibling, (digest, reward) in enumerate(members)
        ],
    )


def build(*groups: pb.TrainGroup, rules: RowRules = RULES, **blobs: bytes) -> BatchRows:
    return build_rows(groups, {"x": TWO_TURNS, **blobs}, rules)


def test_generated_tokens_train_and_observations_do_not() -> None:
    rows = build(group("a", ("x", 1.0), ("x", 0.0))).rows
    assert list(rows[0].mask) == [0, 0, 0, 1, 1, 0, 0, 1, 1]
    assert list(rows[0].behaviour) == pytest.approx([0, 0, 0, -0.1, -0.2, 0, 0, -0.3, -0.4])
    assert list(rows[0].versions) == [-1, -1, -1, 3, 3, -1, -1, 3, 4]
    assert rows[0].n_loss_tokens == 4
    assert (rows[0].weight, rows[0].temperature, rows[0].task) == (1.0, 1.0, "lake")


def test_a_response_of_its_end_token_alone_is_one_trained_token() -> None:
    one = blob([5, 6, 7, 8, 9, 4], [(5, 1)], [-0.5], [(0, 1)])
    batch = build(group("a", ("one", 0.0), ("x", 1.0)), one=one)
    assert list(batch.rows[0].mask) == [0, 0, 0, 0, 0, 1]
    assert [row.advantage for row in batch.rows] == pytest.approx([-0.5, 0.5])


def test_groups_are_joined_by_id_whatever_their_length_and_text() -> None:
    batch = build(group("p7", ("x", 1.0), ("x", 1.0), ("x", 0.0)), group("p19", ("x", 0.0), ("x", 1.0)))
    assert [row.advantage for row in batch.rows] == pytest.approx([1 / 3, 1 / 3, -2 / 3, -0.5, 0.5])
    assert batch.groups == [[0, 1, 2], [3, 4]]


def test_unscorable_and_empty_members_neither_vote_nor_train() -> None:
    batch = build(
        group("a", ("x", 2.0), ("x", None), ("x", 0.5), ("x", 0.5)), group("b", ("none", 10.0), ("x", 0.0), ("x", 0.0)),
        none=blob([5, 6], [], [], []),
    )  # fmt: skip
    assert [row.advantage for row in batch.rows] == pytest.approx([1.0, 0, -0.5, -0.5, 0, 0, 0])
    assert [row.n_loss_tokens for row in batch.rows] == [4, 0, 4, 4, 0, 4, 4]
    assert batch.counts == {"n_zero_variance_groups": 1, "n_unscorable": 2, "n_empty": 1, "n_truncated": 0}


def test_a_masked_truncation_votes_and_does_not_train() -> None:
    cut = group("a", ("x", 1.0), ("x", 0.0), truncated=True)
    assert [row.n_loss_tokens for row in build(cut).rows] == [4, 4]
    masked = build(cut, rules=replace(RULES, mask_truncated=True)).rows
    assert [(row.n_loss_tokens, row.advantage) for row in masked] == [(0, 0.5), (0, -0.5)]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xff\xff", "does not parse"),
        (blob([], [], [], []), "no tokens"),
        (blob([5, 99], [(1, 1)], [-1.0], [(0, 1)]), "vocabulary"),
        (blob([5, 6], [(1, 1)], [-1.0, -1.0], [(0, 1)]), "logprobs"),
        (blob([5, 6], [(1, 1)], [-1.0], [(0, 2)]), "segments"),
        (blob([5, 6], [(1, 2)], [-1.0, -1.0], [(0, 2)]), "span"),
        (blob([5, 6], [(0, 1)], [-1.0], [(0, 1)]), "span"),
        (blob([5, 6, 7], [(2, 1), (1, 1)], [-1.0, -1.0], [(0, 2)]), "span"),
    ],
)
def test_tokens_that_contradict_themselves_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(BatchUnusable, match=f"trajectory a0 attempt 1.*{reason}"):
        build(group("a", ("bad", 1.0), ("x", 0.0)), bad=data)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_is_named(reward: float) -> None:
    with pytest.raises(BatchUnusable, match="leave it out"):
        build(group("a", ("x", reward), ("x", 0.0)))
