"""Rows of the machine to rows of the database and back, value by value."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from testkit.jobs import at_step, make_policy

from control_plane.runner import rows
from headrace.core.job.rows import Attempt, Group, GroupState, Key, SegmentRow, StepState
from headrace.core.ledger import AttemptState

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
WHEN = st.integers(0, 4_000_000_000_000_000).map(lambda microseconds: microseconds / 1_000_000)
MAYBE_WHEN = st.none() | WHEN
NUMBER = st.integers(0, 10_000)
SCORE = st.floats(allow_nan=False, allow_infinity=False)
NAMED = st.dictionaries(TEXT, SCORE, max_size=3)

attempts = st.builds(
    Attempt,
    key=st.builds(Key, TEXT.filter(bool), st.integers(1, 9)),
    group_id=TEXT, purpose=st.sampled_from(["train", "eval"]), task=TEXT, sibling=NUMBER,
    kind=st.sampled_from(["first", "redundant", "refill"]), mode=st.sampled_from(["sampled", "greedy"]),
    issued_at=WHEN, state=st.sampled_from(list(AttemptState)), reason=TEXT,
    start_version=st.none() | NUMBER, finish_version=st.none() | NUMBER, sample_version=st.none() | NUMBER,
    step=st.none() | NUMBER, env_worker_id=TEXT, reward=st.none() | SCORE, reward_components=NAMED, weight=SCORE,
    pending_rewards=st.builds(set), reward_try=st.just(0), reward_deadline=st.none(),
    token_blob=TEXT, grading_blob=TEXT, n_tokens=NUMBER, n_generated_tokens=NUMBER, n_turns=NUMBER,
    discarded_tokens=NUMBER, invalid_actions=NUMBER, finish_reason=TEXT, is_truncated=st.booleans(),
    segments=st.just(()), phases=NAMED,
    fault=st.dictionaries(TEXT, TEXT, max_size=3), started_at=MAYBE_WHEN, finished_at=MAYBE_WHEN, closed_at=MAYBE_WHEN,
)  # fmt: skip

groups = st.builds(
    Group,
    id=TEXT, ordinal=NUMBER, purpose=st.sampled_from(["train", "eval"]), task=TEXT, env_seed=st.integers(0, 2**63 - 1),
    admitted_version=NUMBER, created_at=WHEN, parent_group=TEXT, requeues=NUMBER, cohort=TEXT,
    state=st.sampled_from(list(GroupState)), reason=TEXT, ready_order=st.none() | NUMBER, step=st.none() | NUMBER,
    ready_at=MAYBE_WHEN, closed_at=MAYBE_WHEN, members=st.builds(dict),
)  # fmt: skip


def same_moment(one: float | None, two: float | None) -> bool:
    """A database keeps microseconds."""
    return one == two or (one is not None and two is not None and abs(one - two) < 2e-6)


def same(one: Any, two: Any, moments: set[str]) -> None:
    for name in one.__slots__:
        left, right = getattr(one, name), getattr(two, name)
        assert same_moment(left, right) if name in moments else left == right, (name, left, right)


@given(attempts)
def test_attempts(attempt: Attempt) -> None:
    row = rows.attempt_to_row("job_1", attempt)
    assert row["job_id"] == "job_1"
    same(rows.attempt_from_row(row), attempt, {"issued_at", "started_at", "finished_at", "closed_at"})  # type: ignore[arg-type]


@given(groups)
def test_groups(group: Group) -> None:
    row = rows.group_to_row("job_1", group)
    same(rows.group_from_row(row), group, {"created_at", "ready_at", "closed_at"})  # type: ignore[arg-type]


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_text_can_be_stored(reason: str, detail: str) -> None:
    """What environments and graders say may hold NUL or half a surrogate pair; PostgreSQL takes neither."""
    attempt = Attempt(Key("trj_1", 1), "grp_1", "train", "lake", 0, "first", "sampled", 0.0)
    attempt.reason, attempt.fault = reason, {"detail": detail}
    row = rows.attempt_to_row("job_1", attempt)
    for text in (row["reason"] or "", row["fault"]["detail"]):
        assert "\x00" not in text
        text.encode()


def test_moments_are_utc() -> None:
    assert rows.at(0.0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert rows.at(None) is None
    assert rows.seconds(rows.at(12.5)) == 12.5
    assert rows.seconds(None) is None


def test_segments_are_numbered_from_zero() -> None:
    attempt = Attempt(Key("trj_1", 2), "grp_1", "train", "lake", 0, "first", "sampled", 0.0)
    attempt.segments = (SegmentRow(3, "w", "d3", 5), SegmentRow(4, "w", "d4", 1))
    found = rows.segment_rows("job_1", attempt)
    assert [(row["position"], row["policy_version"], row["n_tokens"]) for row in found] == [(0, 3, 5), (1, 4, 1)]
    assert [rows.segment_from_row(row) for row in found] == list(attempt.segments)  # type: ignore[arg-type]
    assert {(row["trajectory_id"], row["attempt"], row["job_id"]) for row in found} == {("trj_1", 2, "job_1")}


class TestSteps:
    def test_a_step_is_rebuilt_with_its_lags(self) -> None:
        job = at_step(3, groups=1, max_steps=9, policy=make_policy(alpha=1))
        for step in job.state.steps.values():
            members = {g.group_id: [job.rows[m.key] for m in g.members] for g in step.groups}
            row = rows.step_to_row("job_1", step)
            assert rows.step_from_row(row, members, job.state.lineage) == step  # type: ignore[arg-type]

    def test_a_sampled_step_keeps_the_number_that_it_is_to_publish(self) -> None:
        job = at_step(1, groups=1, max_steps=9, policy=make_policy(alpha=0))
        job.finish_all()
        job.lose_trainer(restored_at=1)
        step = job.state.steps[2]
        row = rows.step_to_row("job_1", step)
        assert (row["state"], row["published_version"]) == ("sampled", step.publish_version) == ("sampled", 3)
        members = {g.group_id: [job.rows[m.key] for m in g.members] for g in step.groups}
        again = rows.step_from_row(row, members, job.state.lineage)  # type: ignore[arg-type]
        assert (again.publish_version, again.published_version, again.state) == (3, None, StepState.SAMPLED)

    def test_members_come_in_the_order_of_siblings_whatever_the_database_gives(self) -> None:
        job = at_step(1, groups=1, group_size=4, max_steps=9, policy=make_policy(alpha=0))
        step = job.state.steps[1]
        members = {g.group_id: [job.rows[m.key] for m in reversed(g.members)] for g in step.groups}
        again = rows.step_from_row(rows.step_to_row("job_1", step), members, job.state.lineage)  # type: ignore[arg-type]
        assert again.groups == step.groups
