"""A stored token blob as per-token arrays."""

from typing import Any

from google.protobuf.message import DecodeError

from headrace.wire.environments.v1.environments_pb2 import TrajectoryTokens


class BadTokens(ValueError):
    """The blob is no TrajectoryTokens, or its parts do not fit each other."""


def per_token(data: bytes) -> dict[str, Any]:
    """Arrays of one length, index i meaning token i; logprob and version are null where no model made the token.

    Raises:
        BadTokens: with what does not fit.
    """
    try:
        tokens = TrajectoryTokens.FromString(data)
    except DecodeError as error:
        raise BadTokens(f"not a token blob: {error}") from None
    n_tokens = len(tokens.token_ids)
    generated = [i for span in tokens.spans for i in range(span.start, span.start + span.n_tokens)]
    versions = [s.policy_version for s in tokens.segments for _ in range(s.n_tokens)]
    if len(generated) != len(tokens.logprobs) or len(generated) != len(versions):
        raise BadTokens(
            f"{len(generated)} generated tokens, {len(tokens.logprobs)} logprobs, {len(versions)} tokens in segments"
        )
    if generated and not 0 <= min(generated) <= max(generated) < n_tokens:
        raise BadTokens(f"spans reach beyond {n_tokens} tokens")
    return {
        "token_ids": list(tokens.token_ids),
        "mask": _spread(n_tokens, generated, [1] * len(generated), 0),
        "logprobs": _spread(n_tokens, generated, list(tokens.logprobs), None),
        "versions": _spread(n_tokens, generated, versions, None),
        "temperature": tokens.temperature,
        "segments": [
            {
                "policy_version": part.policy_version,
                "worker_id": part.worker_id,
                "weight_digest": part.weight_digest,
                "n_tokens": part.n_tokens,
            }
            for part in tokens.segments
        ],
        "turn_rewards": [{"turn": turn.turn, "reward": turn.reward} for turn in tokens.turn_rewards],
    }


def _spread(length: int, places: list[int], values: list[Any], default: Any) -> list[Any]:
    row = [default] * length
    for place, value in zip(places, values, strict=True):
        row[place] = value
    return row
