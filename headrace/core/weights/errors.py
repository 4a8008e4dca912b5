"""What can go wrong with weights: one class for each answer that a caller can act on. `code` travels on the wire."""


class WeightsError(Exception):
    """Base. `retryable`: the same call may succeed later without anything else being changed by the caller."""

    code = "weights_error"
    retryable = False


class Fenced(WeightsError):
    """The caller's job epoch is older than one that the node has seen."""

    code = "fenced"


class VersionConflict(WeightsError):
    """The version number is committed with another digest."""

    code = "version_conflict"


class NotResident(WeightsError):
    """The node does not hold the version, or not all of its bytes: it has to be pushed again."""

    code = "not_resident"


class StoreFull(WeightsError):
    """The memory cap leaves no room. Nothing was evicted; retention has to release versions first."""

    code = "store_full"

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class LayoutMismatch(WeightsError):
    """Names, shapes or dtypes differ from what the job's weights look like."""

    code = "layout_mismatch"


class BadManifest(WeightsError):
    """The manifest contradicts itself: sizes, coverage, aliases or digests."""

    code = "bad_manifest"


class BadTransfer(WeightsError):
    """Bytes that arrived, or that a node holds, are not those that the manifest names."""

    code = "bad_transfer"


class PeerLost(WeightsError):
    """The other side died, restarted or dropped the session. A new call opens a new session."""

    code = "peer_lost"
    retryable = True


class DeadlinePassed(WeightsError):
    """The caller's deadline passed; what was verified so far is kept for the next try."""

    code = "deadline_passed"
    retryable = True


class TransportDowngraded(WeightsError):
    """The connection runs over less than was asked for."""

    code = "transport_downgraded"


BY_CODE: dict[str, type[WeightsError]] = {
    kind.code: kind
    for kind in (
        WeightsError,
        Fenced,
        VersionConflict,
        NotResident,
        StoreFull,
        LayoutMismatch,
        BadManifest,
        BadTransfer,
        PeerLost,
        DeadlinePassed,
        TransportDowngraded,
    )
}
