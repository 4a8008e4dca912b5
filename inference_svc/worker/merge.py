"""Fewer, longer chunks: tokens of an unfinished request wait a little for more of their kind."""

from __future__ import annotations

from collections.abc import Iterable

from inference_svc.engine.engine import TokenChunk


class ChunkMerger:
    """Joins consecutive chunks of one request under one version. Order within a request is kept."""

    def __init__(self) -> None:
        self._pending: dict[str, list[TokenChunk]] = {}

    def __len__(self) -> int:
        """Requests with tokens that wait."""
        return len(self._pending)

    def add(self, chunks: Iterable[TokenChunk]) -> list[TokenChunk]:
        """Take new chunks; returns those of requests that just ended, merged, which must not wait."""
        ready: list[TokenChunk] = []
        for chunk in chunks:
            parts = self._pending.setdefault(chunk.request_id, [])
            if parts and parts[-1].policy_version != chunk.policy_version:
                ready.append(join(parts))
                parts.clear()
            parts.append(chunk)
            if chunk.finish_reason is not None:
                ready.append(join(self._pending.pop(chunk.request_id)))
        return ready

    def flush(self) -> list[TokenChunk]:
        """All that waits, one chunk for each request."""
        ready = [join(parts) for parts in self._pending.values()]
        self._pending.clear()
        return ready


def join(parts: list[TokenChunk]) -> TokenChunk:
    """One chunk out of consecutive ones of the same request and version."""
    if len(parts) == 1:
        return parts[0]
    first, last = parts[0], parts[-1]
    return TokenChunk(
        request_id=first.request_id,
        offset=first.offset,
        ids=tuple(token for part in parts for token in part.ids),
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        policy_version=first.policy_version,
        weight_digest=first.weight_digest,
        finish_reason=last.finish_reason,
    )
