"""The receive machine under any order of arrivals, with buckets that come corrupt."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.weights.errors import BadTransfer
from headrace.core.weights.receive import (
    BucketRejected,
    BucketVerified,
    ChunkArrived,
    FinishReceive,
    GrantChunk,
    ReceivePlan,
    ReportCorrupt,
    VerifyBucket,
)

Choose = Callable[[list[Any]], Any]


def run(plan: ReceivePlan, choose: Choose, is_bad: Callable[[int], bool]) -> list[object]:
    """Plays sender and verifier in an order that `choose` picks; every action, in order."""
    waiting: list[object] = []
    log: list[object] = []
    actions = plan.start()
    while True:
        plan.check()
        log += actions
        for action in actions:
            match action:
                case GrantChunk(bucket, offset, _):
                    waiting.append(ChunkArrived(bucket, offset))
                case VerifyBucket(bucket):
                    waiting.append(BucketRejected(bucket) if is_bad(bucket) else BucketVerified(bucket))
                case FinishReceive():
                    assert not waiting
                    return log
        event = choose(waiting)
        waiting.remove(event)
        actions = plan.handle(event)


@given(
    st.dictionaries(st.integers(0, 9), st.integers(1, 50), max_size=6),
    st.integers(1, 20),
    st.integers(1, 5),
    st.sets(st.integers(0, 9)),
    st.data(),
)
def test_every_bucket_ends_verified_in_any_order(
    buckets: dict[int, int], chunk_bytes: int, window: int, bad_once: set[int], data: st.DataObject
) -> None:
    still_bad = set(bad_once) & buckets.keys()

    def is_bad(bucket: int) -> bool:
        was_bad = bucket in still_bad
        still_bad.discard(bucket)
        return was_bad

    plan = ReceivePlan(buckets, chunk_bytes=chunk_bytes, window=window, max_tries=2)
    log = run(plan, lambda waiting: data.draw(st.sampled_from(waiting)), is_bad)
    assert plan.done == buckets.keys()
    for bucket, nbytes in buckets.items():
        tries = 2 if bucket in bad_once else 1
        granted = [action for action in log if isinstance(action, GrantChunk) and action.bucket == bucket]
        assert sum(chunk.nbytes for chunk in granted) == nbytes * tries
        assert all(0 < chunk.nbytes <= chunk_bytes for chunk in granted)
        assert log.count(ReportCorrupt(bucket)) == tries - 1
    assert log.count(FinishReceive()) == 1


def test_the_window_bounds_what_is_in_flight() -> None:
    plan = ReceivePlan({0: 100, 1: 100}, chunk_bytes=10, window=3)
    assert plan.start() == [GrantChunk(0, 0, 10), GrantChunk(0, 10, 10), GrantChunk(0, 20, 10)]
    assert plan.handle(ChunkArrived(0, 10)) == [GrantChunk(0, 30, 10)]
    assert plan.n_in_flight == 3


def test_a_corrupt_bucket_is_asked_for_again_and_then_given_up() -> None:
    plan = ReceivePlan({4: 10}, chunk_bytes=10, window=1, max_tries=2)
    plan.start()
    assert plan.handle(ChunkArrived(4, 0)) == [VerifyBucket(4)]
    assert plan.handle(BucketRejected(4)) == [ReportCorrupt(4), GrantChunk(4, 0, 10)]
    plan.handle(ChunkArrived(4, 0))
    with pytest.raises(BadTransfer, match=r"bucket 4 came with other bytes 2 times: waiting -> receiving"):
        plan.handle(BucketRejected(4))


def test_nothing_to_fetch_is_finished_at_once() -> None:
    assert ReceivePlan({}, chunk_bytes=1, window=1).start() == [FinishReceive()]


@pytest.mark.parametrize("event", [ChunkArrived(0, 5), ChunkArrived(7, 0), BucketVerified(0), BucketRejected(0)])
def test_events_that_cannot_be_are_refused_with_the_story(event: Any) -> None:
    plan = ReceivePlan({0: 10}, chunk_bytes=10, window=1)
    plan.start()
    with pytest.raises(ValueError, match="bucket"):
        plan.handle(event)


@pytest.mark.parametrize("wrong", [{"chunk_bytes": 0}, {"window": 0}, {"max_tries": 0}, {"buckets": {0: 0}}])
def test_plans_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="positive"):
        ReceivePlan(**{"buckets": {0: 1}, "chunk_bytes": 1, "window": 1, **wrong})
