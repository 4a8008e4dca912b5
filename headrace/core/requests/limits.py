"""Deadlines and bounds of the request table."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """All durations are in seconds.

    An orphan is a request whose caller's stream broke: its engine work ends after `orphan_abort_s`, its tokens are
    kept until `orphan_grace_s` so that the caller may come back for it.
    """

    version_wait_s: float = 60.0  # a pinned version that no worker serves or is about to serve
    worker_wait_s: float = 300.0  # no worker at all that could take the request
    orphan_abort_s: float = 0.7
    orphan_grace_s: float = 2.0
    binding_grace_s: float = 10.0  # a bound trajectory whose caller's stream broke and that no stream has named since
    load_s: float = 120.0  # from LoadWeights to its answer; a worker past it is dropped
    drain_s: float = 600.0  # finish_first: running requests past it are continued instead
    rebuild_s: float = 10.0  # longest time that a swap's report waits for first tokens after it
    max_worker_losses: int = 4  # a request that outlives so many workers is taken for what kills them
    max_refusals: int = 3  # retryable refusals of one request by engines

    def __post_init__(self) -> None:
        if not 0 < self.orphan_abort_s <= self.orphan_grace_s:
            raise ValueError("orphan_abort_s must lie in (0, orphan_grace_s]")
        spans = ("version_wait_s", "worker_wait_s", "binding_grace_s", "load_s", "drain_s", "rebuild_s")
        if min(getattr(self, name) for name in spans) <= 0:
            raise ValueError(f"{', '.join(spans)} must be > 0")
        if min(self.max_worker_losses, self.max_refusals) < 1:
            raise ValueError("max_worker_losses and max_refusals must be >= 1")
