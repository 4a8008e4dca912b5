"""An error says the same on both sides of the wire."""

import grpc
import grpc.aio
import pytest

from headrace.client.weights import error_of, status_of
from headrace.core.weights.errors import BY_CODE, DeadlinePassed, PeerLost, StoreFull, WeightsError


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details)


@pytest.mark.parametrize("kind", BY_CODE.values())
@pytest.mark.parametrize("is_retryable", [False, True])
def test_every_error_survives_the_wire(kind: type[WeightsError], is_retryable: bool) -> None:
    error = kind("bucket 3: it is gone")
    error.retryable = is_retryable
    copy = error_of(failed(*status_of(error)))
    assert type(copy) is kind
    assert (str(copy), copy.retryable) == ("bucket 3: it is gone", is_retryable)


def test_every_error_but_the_base_has_a_status_of_its_kind() -> None:
    for kind in BY_CODE.values():
        if kind is not WeightsError:
            assert status_of(kind("x"))[0] not in {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN}
    assert status_of(StoreFull("x"))[1].startswith("store_full+: ")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, PeerLost),
        (grpc.StatusCode.CANCELLED, PeerLost),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlinePassed),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, WeightsError),
    ],
)
def test_statuses_that_no_node_made_have_a_meaning_too(code: grpc.StatusCode, kind: type[WeightsError]) -> None:
    error = error_of(failed(code, "Received message larger than max: 70 vs. 64"))
    assert type(error) is kind
    assert "larger than max" in str(error)
