"""The clock: numbers, parents, depths, and the lag between two versions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.versions import Lineage, Version, VersionError, VersionState


def line(*versions: tuple[int, int | None, int]) -> Lineage:
    """A lineage of (number, parent, step), committed in this order."""
    lineage = Lineage()
    for number, parent, step in versions:
        lineage.commit(number, parent=parent, step=step, digest=f"d{number}")
    return lineage


def restored() -> Lineage:
    """0 1 2 3, then a trainer that stood at version 1 publishes as 4 and trains 5."""
    return line((0, None, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3), (4, 1, 1), (5, 4, 2))


def test_nothing_is_current_before_the_first_commit() -> None:
    lineage = Lineage()
    assert lineage.current is None
    assert lineage.lag(0) is None
    assert lineage.live_version_of_step(0) is None
    lineage.check()


def test_each_commit_becomes_current_one_deeper() -> None:
    lineage = line((0, None, 0), (1, 0, 1), (2, 1, 2))
    assert lineage.current == 2
    assert [lineage.depth(n) for n in (0, 1, 2)] == [0, 1, 2]
    assert lineage.ancestors(2) == [2, 1, 0]


def test_one_update_adds_exactly_one_to_the_lag() -> None:
    lineage = line((4, None, 4))
    lags = [lineage.lag(4)]
    for number in (5, 6):
        lineage.commit(number, parent=number - 1, step=number, digest=f"d{number}")
        lags.append(lineage.lag(4))
    assert lags == [0, 1, 2]


def test_skipped_numbers_do_not_count() -> None:
    assert line((0, None, 0), (3, 0, 1), (9, 3, 2)).lag(0) == 2


def test_a_commit_returns_the_rows_that_changed() -> None:
    lineage = line((0, None, 0))
    made = lineage.commit(1, parent=0, step=1, digest="d1", total_bytes=64)
    assert made == [Version(1, 0, 1, 1, "d1", 64, VersionState.COMMITTED)]


def test_the_same_commit_again_changes_nothing() -> None:
    lineage = line((0, None, 0), (1, 0, 1))
    assert lineage.commit(1, parent=0, step=1, digest="d1") == []
    assert lineage.current == 1


def test_the_same_number_with_other_bytes_is_refused() -> None:
    lineage = line((0, None, 0), (1, 0, 1))
    with pytest.raises(VersionError, match="version 1 exists with digest d1, not other"):
        lineage.commit(1, parent=0, step=1, digest="other")


def test_a_parent_must_have_been_committed() -> None:
    with pytest.raises(VersionError, match="names parent 7, which was never committed"):
        line((0, None, 0)).commit(8, parent=7, step=1, digest="d8")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_numbers_only_grow(number: int) -> None:
    lineage = line((0, None, 0), (3, 0, 1))
    if number == 0:
        with pytest.raises(VersionError, match="exists"):
            lineage.commit(0, parent=0, step=2, digest="new")
        return
    with pytest.raises(VersionError, match="never reused"):
        lineage.commit(number, parent=0, step=2, digest="new")


def test_a_refused_commit_leaves_the_lineage_as_it_was() -> None:
    lineage = line((0, None, 0), (1, 0, 1))
    before = dict(lineage.versions)
    with pytest.raises(VersionError):
        lineage.commit(1, parent=0, step=1, digest="other")
    assert lineage.versions == before
    assert lineage.current == 1


class TestRestore:
    def test_what_lies_beside_the_new_line_is_abandoned(self) -> None:
        lineage = restored()
        assert lineage.ancestors(5) == [5, 4, 1, 0]
        assert [n for n, v in lineage.versions.items() if v.state is VersionState.ABANDONED] == [2, 3]

    def test_the_restoring_commit_names_the_abandoned_rows(self) -> None:
        lineage = line((0, None, 0), (1, 0, 1), (2, 1, 2), (3, 2, 3))
        changed = lineage.commit(4, parent=1, step=1, digest="d4")
        assert [(row.policy_version, row.state.value) for row in changed] == [
            (4, "committed"), (2, "abandoned"), (3, "abandoned"),
        ]  # fmt: skip

    def test_lags_are_counted_along_the_new_line(self) -> None:
        lineage = restored()
        assert {n: lineage.lag(n) for n in range(6)} == {0: 3, 1: 2, 2: None, 3: None, 4: 1, 5: 0}

    def test_a_step_has_one_live_version(self) -> None:
        lineage = restored()
        assert [lineage.live_version_of_step(step) for step in (0, 1, 2, 3)] == [0, 4, 5, None]

    @pytest.mark.parametrize(
        ("parent", "why"), [(3, "which was abandoned"), (2, "which was abandoned"), (None, "names no parent")]
    )
    def test_nothing_is_built_beside_the_live_line(self, parent: int | None, why: str) -> None:
        lineage = restored()
        before = dict(lineage.versions)
        with pytest.raises(VersionError, match=why):
            lineage.commit(6, parent=parent, step=3, digest="d6")
        assert (lineage.versions, lineage.current) == (before, 5)
        lineage.check()

    def test_an_abandoned_version_can_not_come_back(self) -> None:
        lineage = restored()
        with pytest.raises(VersionError):
            lineage.commit(3, parent=5, step=3, digest="again")


def test_a_lineage_is_rebuilt_from_its_rows_in_any_order() -> None:
    lineage = restored()
    rebuilt = Lineage.of(reversed(list(lineage.versions.values())))
    assert rebuilt.current == 5
    assert rebuilt.versions == lineage.versions
    assert [rebuilt.lag(n) for n in range(6)] == [lineage.lag(n) for n in range(6)]


def test_an_unknown_version_is_off_the_lineage() -> None:
    assert not restored().is_live(17)
    assert restored().lag(17) is None


@pytest.mark.parametrize(
    "broken",
    [
        Version(2, 1, 5, 2, "d2"),  # a depth that its parent does not give
        Version(2, 0, 1, 2, "d2"),  # live, but not an ancestor of the current one
        Version(2, 3, 2, 2, "d2"),  # a parent that is newer
    ],
)
def test_check_finds_a_broken_line(broken: Version) -> None:
    lineage = line((0, None, 0), (1, 0, 1), (3, 1, 2))
    lineage.versions[2] = broken
    with pytest.raises(AssertionError):
        lineage.check()


@st.composite
def histories(draw: st.DrawFn) -> Lineage:
    """Commits on the newest version, now and then on an older live one."""
    lineage = line((0, None, 0))
    number = 0
    for index in range(draw(st.integers(0, 25))):
        number += draw(st.integers(1, 3))
        live = lineage.ancestors(lineage.current)
        parent = draw(st.sampled_from(live)) if draw(st.booleans()) else live[0]
        lineage.commit(number, parent=parent, step=lineage.versions[parent].step + 1, digest=f"d{index}")
        lineage.check()
    return lineage


@given(histories())
def test_lag_is_the_number_of_updates_between(lineage: Lineage) -> None:
    line_back = lineage.ancestors(lineage.current)
    for number in lineage.versions:
        expected = line_back.index(number) if number in line_back else None
        assert lineage.lag(number) == expected


@given(histories())
def test_rebuilding_changes_nothing(lineage: Lineage) -> None:
    rebuilt = Lineage.of(lineage.versions.values())
    rebuilt.check()
    assert rebuilt.current == lineage.current == max(lineage.versions)
    assert rebuilt.versions == lineage.versions


@given(histories(), st.data())
def test_abandoned_never_becomes_live_again(lineage: Lineage, data: st.DataObject) -> None:
    dead = {n for n in lineage.versions if not lineage.is_live(n)}
    parent = data.draw(st.sampled_from(lineage.ancestors(lineage.current)))
    lineage.commit(max(lineage.versions) + 1, parent=parent, step=1, digest="one more")
    assert not any(lineage.is_live(n) for n in dead)


COMMITS = st.lists(st.tuples(st.integers(0, 14), st.none() | st.integers(-1, 14), st.booleans()), max_size=25)
"""(version, parent, under its own digest), sensible or not."""


@given(COMMITS)
def test_any_commits_leave_one_line_or_are_refused_without_a_trace(commits: list[tuple[int, int | None, bool]]) -> None:
    """Against a tree of parents, in which the live line is what can be reached from the newest version."""
    lineage, parents = Lineage(), dict[int, int | None]()
    told: dict[int, VersionState] = {}
    for version, parent, is_same in commits:
        live = line_of(parents, max(parents, default=None))
        is_new = version > max(parents, default=-1) and (parent in live if parents else parent is None)
        is_repeated = version in parents and is_same
        before = (dict(lineage.versions), lineage.current)
        digest = f"d{version}" if is_same or version not in parents else "other"
        try:
            changed = lineage.commit(version, parent=parent, step=1, digest=digest)
        except VersionError:
            assert not is_new and not is_repeated and before == (lineage.versions, lineage.current)
            continue
        assert is_new or (is_repeated and changed == [])
        if is_new:
            parents[version] = parent
        # Who keeps only the rows that changed knows every state.
        told |= {row.policy_version: row.state for row in changed}
        assert told == {number: known.state for number, known in lineage.versions.items()}
        lineage.check()
        live = line_of(parents, max(parents, default=None))
        assert [lineage.lag(number) for number in range(15)] == [
            live.index(number) if number in live else None for number in range(15)
        ]


def line_of(parents: dict[int, int | None], version: int | None) -> list[int]:
    """From a version back to the first, by parents alone."""
    line = []
    while version is not None:
        line.append(version)
        version = parents[version]
    return line
