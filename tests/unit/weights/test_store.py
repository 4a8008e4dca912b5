"""What a node accepts, keeps and frees."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from testkit.manifests import fake_digest, make_manifest

from headrace.core.weights import Manifest
from headrace.core.weights.errors import (
    BadManifest,
    Fenced,
    LayoutMismatch,
    NotResident,
    StoreFull,
    VersionConflict,
    WeightsError,
)
from headrace.core.weights.store import StoreState, VersionState
from headrace.core.weights.store_events import (
    BucketArrived,
    BucketDamaged,
    CommitDecided,
    ForgetVersion,
    FreeBucket,
    JobEnded,
    PublishBegan,
    PublishBroke,
    PublishFinished,
    ReaderClosed,
    ReaderOpened,
    ReceiveBucket,
    RetentionDecided,
    StoreAction,
    TimePassed,
    VersionKey,
    version_key,
)

BUCKET = 256  # bytes of one bucket of make_manifest


def store(cap_buckets: int = 100, ttl_s: float = 60.0) -> StoreState:
    return StoreState(cap_bytes=cap_buckets * BUCKET, ttl_s=ttl_s)


def begin(
    state: StoreState, manifest: Manifest, epoch: int | None = None, now_s: float = 0.0, push_id: int = 1
) -> list[StoreAction]:
    return state.handle(PublishBegan(manifest, manifest.version.epoch if epoch is None else epoch, push_id), now_s)


def push(state: StoreState, manifest: Manifest, epoch: int | None = None, now_s: float = 0.0) -> int:
    """Begin to seal; returns the number of buckets that had to come."""
    wanted = begin(state, manifest, epoch, now_s)
    for action in wanted:
        assert isinstance(action, ReceiveBucket)
        state.handle(BucketArrived(version_key(manifest), 1, action.digest), now_s)
    state.handle(PublishFinished(version_key(manifest), 1), now_s)
    state.check()
    return len(wanted)


def commit(state: StoreState, manifest: Manifest, epoch: int | None = None) -> list[StoreAction]:
    key = version_key(manifest)
    actions = state.handle(CommitDecided(key, manifest.version.epoch if epoch is None else epoch), 0.0)
    state.check()
    return actions


def live(state: StoreState) -> dict[int, VersionState]:
    return {record.key.policy_version: record.state for record in state.versions("job")}


def test_a_version_is_readable_only_when_it_is_committed() -> None:
    state = store()
    manifest = make_manifest(0)
    push(state, manifest)
    with pytest.raises(NotResident, match="sealed, not committed"):
        state.handle(ReaderOpened(version_key(manifest)), 0.0)
    with pytest.raises(NotResident):
        state.committed("job", 0)
    commit(state, manifest)
    state.handle(ReaderOpened(version_key(manifest)), 0.0)
    assert state.committed("job", 0).manifest == manifest


def test_a_version_with_a_missing_bucket_is_neither_sealed_nor_committed() -> None:
    state = store()
    manifest = make_manifest(0, seeds=(1, 2))
    begin(state, manifest)
    state.handle(BucketArrived(version_key(manifest), 1, fake_digest("b", 1)), 0.0)
    with pytest.raises(NotResident, match="1 of 2 buckets are missing"):
        state.handle(PublishFinished(version_key(manifest), 1), 0.0)
    with pytest.raises(NotResident, match="1 buckets are missing"):
        commit(state, manifest)
    assert live(state) == {0: VersionState.PUSHING}


def test_equal_buckets_move_once_over_versions_and_within_one() -> None:
    state = store()
    assert push(state, make_manifest(0, seeds=(1, 2, 2))) == 2
    assert push(state, make_manifest(1, seeds=(1, 2, 3))) == 1
    assert push(state, make_manifest(2, seeds=(3, 2, 1))) == 0
    assert state.used_bytes == 3 * BUCKET


def test_commit_is_idempotent_and_other_bytes_are_a_conflict() -> None:
    state = store()
    manifest, other = make_manifest(1, seeds=(1, 1)), make_manifest(1, seeds=(2, 2))
    push(state, manifest)
    commit(state, manifest)
    assert commit(state, manifest) == []
    assert push(state, manifest) == 0
    with pytest.raises(VersionConflict, match="committed with digest"):
        begin(state, other)
    with pytest.raises(VersionConflict):
        commit(state, other)


def test_of_two_pushes_of_one_number_the_committed_one_wins() -> None:
    state = store()
    one, two = make_manifest(1, seeds=(1, 1)), make_manifest(1, seeds=(2, 2))
    push(state, one)
    push(state, two)
    assert commit(state, two) == [ForgetVersion(version_key(one)), FreeBucket(fake_digest("b", 1))]
    with pytest.raises(VersionConflict):
        state.handle(CommitDecided(version_key(one), 1), 0.0)


def test_a_push_that_lost_while_bytes_were_moving_is_told_so() -> None:
    state = store()
    one, two = make_manifest(1, seeds=(1,)), make_manifest(1, seeds=(2,))
    begin(state, one)
    push(state, two)
    commit(state, two)
    with pytest.raises(VersionConflict, match="given up while it was pushed"):
        state.handle(BucketArrived(version_key(one), 1, fake_digest("b", 1)), 0.0)
    state.handle(PublishBroke(version_key(one), 1), 0.0)
    state.check()


def test_a_late_event_of_an_old_push_does_not_touch_the_new_one() -> None:
    state = store()
    manifest = make_manifest(1, seeds=(1,))
    begin(state, manifest, push_id=1)
    state.handle(JobEnded("job", 1), 0.0)
    begin(state, manifest, push_id=2)
    state.handle(PublishBroke(version_key(manifest), 1), 0.0)
    with pytest.raises(VersionConflict):
        state.handle(BucketArrived(version_key(manifest), 1, fake_digest("b", 1)), 0.0)
    state.handle(BucketArrived(version_key(manifest), 2, fake_digest("b", 1)), 0.0)
    state.handle(PublishFinished(version_key(manifest), 2), 0.0)
    assert live(state) == {1: VersionState.SEALED}


def test_older_epochs_are_fenced_everywhere() -> None:
    state = store()
    manifest = make_manifest(1, epoch=2)
    push(state, manifest)
    old = make_manifest(2, epoch=1)
    for event in (
        PublishBegan(old, 1, 1),
        CommitDecided(version_key(manifest), 1),
        RetentionDecided("job", 1, frozenset()),
        JobEnded("job", 1),
    ):
        with pytest.raises(Fenced, match="epoch 1 is over, the job is at 2"):
            state.handle(event, 0.0)
    with pytest.raises(Fenced, match="older 1"):
        begin(state, make_manifest(3, epoch=2), epoch=1)


def test_an_old_version_is_pushed_again_under_a_newer_epoch() -> None:
    state = store()
    push(state, make_manifest(5, epoch=7))
    old = make_manifest(3, epoch=1, seeds=(8, 9))
    assert push(state, old, epoch=7) == 2
    commit(state, old, epoch=7)
    assert state.highest_epoch("job") == 7
    assert state.committed("job", 3).key == version_key(old)


def test_retention_keeps_what_is_named_the_newest_and_what_is_read() -> None:
    state = store()
    for version in range(5):
        push(state, make_manifest(version, seeds=(version,)))
        commit(state, make_manifest(version, seeds=(version,)))
    reading = version_key(make_manifest(1, seeds=(1,)))
    state.handle(ReaderOpened(reading), 0.0)
    actions = state.handle(RetentionDecided("job", 1, frozenset({2})), 0.0)
    assert {action.key.policy_version for action in actions if isinstance(action, ForgetVersion)} == {0, 3}
    committed, retired = VersionState.COMMITTED, VersionState.RETIRED
    assert live(state) == {1: retired, 2: committed, 4: committed}
    assert state.handle(ReaderClosed(reading), 0.0) == [ForgetVersion(reading), FreeBucket(fake_digest("b", 1))]
    assert live(state) == {2: committed, 4: committed}


def test_retention_that_was_decided_before_the_newest_commit_does_not_drop_it() -> None:
    state = store()
    for version in (0, 1):
        push(state, make_manifest(version, seeds=(version,)))
        commit(state, make_manifest(version, seeds=(version,)))
    state.handle(RetentionDecided("job", 1, frozenset({0})), 0.0)
    assert set(live(state)) == {0, 1}


def test_a_retired_version_can_be_kept_again() -> None:
    state = store()
    for version in (0, 1):
        push(state, make_manifest(version, seeds=(version,)))
        commit(state, make_manifest(version, seeds=(version,)))
    key = version_key(make_manifest(0, seeds=(0,)))
    state.handle(ReaderOpened(key), 0.0)
    state.handle(RetentionDecided("job", 1, frozenset()), 0.0)
    state.handle(RetentionDecided("job", 1, frozenset({0})), 0.0)
    state.handle(ReaderClosed(key), 0.0)
    assert live(state)[0] is VersionState.COMMITTED


def test_a_full_store_refuses_before_a_byte_moves_and_evicts_nothing() -> None:
    state = store(cap_buckets=3)
    first = make_manifest(0, seeds=(1, 2))
    push(state, first)
    commit(state, first)
    with pytest.raises(StoreFull, match="needs 512 bytes, 256 of 768 are free") as full:
        begin(state, make_manifest(1, seeds=(3, 4)))
    assert full.value.retryable
    assert live(state) == {0: VersionState.COMMITTED}
    with pytest.raises(StoreFull) as never:
        begin(state, make_manifest(1, job_id="big", seeds=(3, 4, 5, 6)))
    assert not never.value.retryable


def test_room_that_was_reserved_counts_and_comes_back_when_the_push_breaks() -> None:
    state = store(cap_buckets=3)
    manifest = make_manifest(0, seeds=(1, 2))
    begin(state, manifest)
    assert state.used_bytes == 2 * BUCKET
    with pytest.raises(StoreFull):
        begin(state, make_manifest(0, job_id="other", seeds=(3, 4)))
    state.handle(BucketArrived(version_key(manifest), 1, fake_digest("b", 1)), 0.0)
    state.handle(PublishBroke(version_key(manifest), 1), 0.0)
    assert state.used_bytes == BUCKET
    assert begin(state, manifest) == [ReceiveBucket(fake_digest("b", 2), BUCKET)]


def test_uncommitted_versions_expire_when_nobody_touches_them() -> None:
    state = store(ttl_s=60)
    sealed, committed, pushing = (
        make_manifest(1, seeds=(1,)),
        make_manifest(0, seeds=(0,)),
        make_manifest(2, seeds=(2,)),
    )
    push(state, committed)
    commit(state, committed)
    push(state, sealed, now_s=10)
    begin(state, pushing, now_s=10)
    assert state.handle(TimePassed(), 69) == []
    assert state.handle(TimePassed(), 70) == [ForgetVersion(version_key(sealed)), FreeBucket(fake_digest("b", 1))]
    assert set(live(state)) == {0, 2}


def test_a_damaged_bucket_makes_its_versions_unreadable_until_they_are_pushed_again() -> None:
    state = store()
    manifest = make_manifest(0, seeds=(1, 2))
    push(state, manifest)
    commit(state, manifest)
    assert state.handle(BucketDamaged(fake_digest("b", 2)), 0.0) == [FreeBucket(fake_digest("b", 2))]
    with pytest.raises(NotResident, match="pushed again"):
        state.handle(ReaderOpened(version_key(manifest)), 0.0)
    assert push(state, manifest) == 1
    state.handle(ReaderOpened(version_key(manifest)), 0.0)


def test_a_damaged_sealed_version_is_no_longer_sealed() -> None:
    state = store()
    manifest = make_manifest(0, seeds=(1,))
    push(state, manifest)
    state.handle(BucketDamaged(fake_digest("b", 1)), 0.0)
    state.check()
    assert live(state) == {0: VersionState.PUSHING}


def test_a_job_that_ends_leaves_nothing_but_what_is_being_read() -> None:
    state = store()
    for version in (0, 1):
        push(state, make_manifest(version, seeds=(version,)))
        commit(state, make_manifest(version, seeds=(version,)))
    key = version_key(make_manifest(0, seeds=(0,)))
    state.handle(ReaderOpened(key), 0.0)
    state.handle(JobEnded("job", 1), 0.0)
    state.check()
    assert live(state) == {0: VersionState.RETIRED}
    state.handle(ReaderClosed(key), 0.0)
    assert state.used_bytes == 0
    assert state.handle(JobEnded("job", 1), 0.0) == []


def test_absent_things_are_answered_and_not_invented() -> None:
    state = store()
    absent = VersionKey("job", 99, "0" * 64)
    for event in (ReaderOpened(absent), CommitDecided(absent, 1)):
        with pytest.raises(NotResident):
            state.handle(event, 0.0)
    assert state.handle(RetentionDecided("job", 1, frozenset({3})), 0.0) == []
    assert state.handle(ReaderClosed(absent), 0.0) == []
    assert state.handle(BucketDamaged("0" * 32), 0.0) == []


def test_a_digest_cannot_stand_for_two_sizes() -> None:
    state = store()
    push(state, make_manifest(0, seeds=(1,)))
    with pytest.raises(BadManifest, match="bucket 0 has 512 bytes, the one with its digest 256"):
        begin(state, make_manifest(1, seeds=(1,), n_items=128))


def test_a_job_keeps_the_layout_of_its_first_commit() -> None:
    state = store()
    push(state, make_manifest(0))
    commit(state, make_manifest(0))
    with pytest.raises(LayoutMismatch, match="missing: w1"):
        begin(state, make_manifest(1, seeds=(0,)))
    with pytest.raises(LayoutMismatch, match=r"float32\[64\] became int32\[64\]"):
        begin(state, make_manifest(1, dtype="int32"))


class AnySequence(RuleBasedStateMachine):
    """After any sequence of events the invariants hold, and freed buckets are exactly those nobody names."""

    def __init__(self) -> None:
        super().__init__()
        self.state = store(cap_buckets=6, ttl_s=5)
        self.now_s = 0.0
        self.held: set[str] = set()
        self.publishing: list[tuple[VersionKey, int, list[str]]] = []
        self.n_pushes = 0
        self.reading: list[VersionKey] = []
        self.manifests: list[Manifest] = []

    def tell(self, event: object) -> list[StoreAction]:
        before = self.state.used_bytes
        try:
            actions = self.state.handle(event, self.now_s)  # type: ignore[arg-type]
        except WeightsError:
            assert self.state.used_bytes == before
            return []
        for action in actions:
            if isinstance(action, FreeBucket):
                self.held.remove(action.digest)
        return actions

    @rule(version=st.integers(0, 3), epoch=st.integers(0, 3), seeds=st.lists(st.integers(0, 5), min_size=2, max_size=2))
    def begin(self, version: int, epoch: int, seeds: list[int]) -> None:
        manifest = make_manifest(version, epoch=epoch, seeds=seeds)
        try:
            self.n_pushes += 1
            actions = self.state.handle(PublishBegan(manifest, epoch, self.n_pushes), self.now_s)
        except WeightsError:
            return
        self.manifests.append(manifest)
        wanted = [action.digest for action in actions if isinstance(action, ReceiveBucket)]
        self.publishing.append((version_key(manifest), self.n_pushes, wanted))

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        open_pushes = [item for item in self.publishing if item[2]]
        if open_pushes:
            key, push_id, wanted = data.draw(st.sampled_from(open_pushes))
            digest = wanted.pop()
            try:
                self.state.handle(BucketArrived(key, push_id, digest), self.now_s)
            except WeightsError:
                return
            self.held.add(digest)

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        if self.publishing:
            item = data.draw(st.sampled_from(self.publishing))
            self.publishing.remove(item)
            key, push_id, wanted = item
            self.tell(PublishBroke(key, push_id) if wanted else PublishFinished(key, push_id))

    @rule(data=st.data(), epoch=st.integers(0, 3))
    def commit(self, data: st.DataObject, epoch: int) -> None:
        if self.manifests:
            self.tell(CommitDecided(version_key(data.draw(st.sampled_from(self.manifests))), epoch))

    @rule(keep=st.frozensets(st.integers(0, 3)), epoch=st.integers(0, 3))
    def retain(self, keep: frozenset[int], epoch: int) -> None:
        self.tell(RetentionDecided("job", epoch, keep))

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        if self.manifests:
            key = version_key(data.draw(st.sampled_from(self.manifests)))
            try:
                self.state.handle(ReaderOpened(key), self.now_s)
            except WeightsError:
                return
            self.reading.append(key)

    @rule(data=st.data())
    def stop_reading(self, data: st.DataObject) -> None:
        if self.reading:
            key = data.draw(st.sampled_from(self.reading))
            assert not self.state.missing(self.state.record(key)), "a version lost bytes while it was read"
            self.reading.remove(key)
            self.tell(ReaderClosed(key))

    @rule(passed_s=st.integers(1, 6))
    def wait(self, passed_s: int) -> None:
        self.now_s += passed_s
        self.tell(TimePassed())

    @rule(epoch=st.integers(2, 3))
    def end_job(self, epoch: int) -> None:
        self.tell(JobEnded("job", epoch))

    @invariant()
    def holds(self) -> None:
        self.state.check()
        assert self.state.lacks(self.held) == []


AnySequence.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnySequence = AnySequence.TestCase
