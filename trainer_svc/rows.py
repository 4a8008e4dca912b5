"""From a step command and its token blobs to rows: join by key, advantages by group, masks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite

from google.protobuf.message import DecodeError

from headrace.core.advantages import Estimator
from headrace.wire.environments.v1 import environments_pb2
from headrace.wire.trainer.v1 import trainer_pb2
from trainer_svc.batch import Row
from trainer_svc.errors import BatchUnusable


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows in the order of the command's members, the rows of each group, and counts for the metrics."""

    rows: list[Row]
    groups: list[list[int]]
    counts: dict[str, float]


@dataclass(frozen=True, slots=True)
class RowRules:
    """What turns members into rows: the estimator, whether truncated episodes train, and the model's limits."""

    estimate: Estimator
    mask_truncated: bool
    vocab_size: int


def token_blobs(groups: Sequence[trainer_pb2.TrainGroup]) -> list[str]:
    """Digests of every member's tokens."""
    return [member.token_blob for group in groups for member in group.members]


def build_rows(groups: Sequence[trainer_pb2.TrainGroup], blobs: Mapping[str, bytes], rules: RowRules) -> BatchRows:
    """Raises BatchUnusable naming the trajectory.

    A member that is unscorable, or generated no token, neither votes in its group's baseline nor trains. A truncated
    one always votes, and trains unless the rules mask it.
    """
    batch = BatchRows([], [], {"n_zero_variance_groups": 0.0, "n_unscorable": 0.0, "n_empty": 0.0, "n_truncated": 0.0})
    for group in groups:
        tokens = [_parse(member, blobs[member.token_blob], rules.vocab_size) for member in group.members]
        rewards = [_vote(member, entry) for member, entry in zip(group.members, tokens, strict=True)]
        result = rules.estimate(rewards)
        batch.counts["n_zero_variance_groups"] += result.is_zero_variance
        batch.counts["n_unscorable"] += rewards.count(None)
        first = len(batch.rows)
        for member, entry, reward, advantage in zip(group.members, tokens, rewards, result.values, strict=True):
            batch.counts["n_empty"] += not entry.logprobs
            batch.counts["n_truncated"] += member.is_truncated
            trains = reward is not None and not (member.is_truncated and rules.mask_truncated)
            batch.rows.append(_row(group.task, member, entry, advantage, trains))
        batch.groups.append(list(range(first, len(batch.rows))))
    return batch


def _vote(member: trainer_pb2.TrainMember, tokens: environments_pb2.TrajectoryTokens) -> float | None:
    if not member.HasField("reward") or not tokens.logprobs:
        return None
    if not isfinite(member.reward):
        raise BatchUnusable(f"{_name(member)}: reward is {member.reward}; leave it out when unscorable")
    return float(member.reward)


def _parse(member: trainer_pb2.TrainMember, data: bytes, vocab_size: int) -> environments_pb2.TrajectoryTokens:
    try:
        tokens = environments_pb2.TrajectoryTokens.FromString(data)
    except DecodeError as error:
        raise BatchUnusable(f"{_name(member)}: token blob does not parse: {error}") from None
    n_spans = sum(span.n_tokens for span in tokens.spans)
    n_segments = sum(segment.n_tokens for segment in tokens.segments)
    if not n_spans == len(tokens.logprobs) == n_segments:
        raise BatchUnusable(
            f"{_name(member)}: {n_spans} generated tokens in spans, {len(tokens.logprobs)} logprobs, "
            f"{n_segments} in segments"
        )
    if not tokens.token_ids:
        raise BatchUnusable(f"{_name(member)}: no tokens at all")
    if vocab_size and max(tokens.token_ids) >= vocab_size:
        raise BatchUnusable(f"{_name(member)}: id {max(tokens.token_ids)} is outside the vocabulary of {vocab_size}")
    return tokens


def _row(
    task: str,
    member: trainer_pb2.TrainMember,
    tokens: environments_pb2.TrajectoryTokens,
    advantage: float,
    trains: bool,
) -> Row:
    n = len(tokens.token_ids)
    mask, behaviour, versions = [0] * n, [0.0] * n, [-1] * n
    logprobs = iter(tokens.logprobs)
    of_token = chain.from_iterable([segment.policy_version] * segment.n_tokens for segment in tokens.segments)
    end = 0
    for span in tokens.spans:
        if span.start < max(end, 1) or span.start + span.n_tokens > n:
            raise BatchUnusable(f"{_name(member)}: span [{span.start}, +{span.n_tokens}) overlaps or leaves {n} tokens")
        end = span.start + span.n_tokens
        for place in range(span.start, end):
            mask[place], behaviour[place], versions[place] = 1, next(logprobs), next(of_token)
    return Row(
        ids=list(tokens.token_ids),
        mask=mask if trains else [0] * n,
        behaviour=behaviour,
        advantage=advantage,
        task=task,
        lag=member.lag,
        weight=member.weight or 1.0,
        temperature=tokens.temperature or 1.0,
        versions=versions,
    )


def _name(member: trainer_pb2.TrainMember) -> str:
    return f"trajectory {member.key.trajectory_id} attempt {member.key.attempt}"
