"""The one clock: policy versions of a job, their lineage and their lag.

    0 ── 1 ── 2 ── 3        a trainer restored from version 1 publishes its state as 4:
         └── 4 ── 5         4 has parent 1 and depth 2; 2 and 3 are abandoned, tokens made under them are off lineage

Lag is a difference of depths, so it counts updates between two policies and not numbers that were skipped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum


class VersionState(StrEnum):
    COMMITTED = "committed"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class Version:
    """One published state of the policy. `depth` is its number of ancestors; `step` the training step that made it."""

    policy_version: int
    parent: int | None
    depth: int
    step: int
    manifest_digest: str
    total_bytes: int = 0
    state: VersionState = VersionState.COMMITTED


class VersionError(ValueError):
    """A commit that breaks the clock: a number reused with other bytes, or a parent off the live line."""


@dataclass(slots=True)
class Lineage:
    """Committed versions and which of them lie on the way to the current one (n)."""

    versions: dict[int, Version] = field(default_factory=dict)
    current: int | None = None

    @classmethod
    def of(cls, versions: Iterable[Version]) -> "Lineage":
        """Rebuilds the lineage from its rows; the current version is the newest that is not abandoned."""
        known = {version.policy_version: version for version in versions}
        live = [number for number, version in known.items() if version.state is VersionState.COMMITTED]
        return cls(known, max(live, default=None))

    def commit(
        self, version: int, *, parent: int | None, step: int, digest: str, total_bytes: int = 0
    ) -> list[Version]:
        """Makes `version` current and returns every row that changed (the new one and those now abandoned).

        Committing the same version with the same digest again changes nothing. Raises VersionError otherwise.
        """
        known = self.versions.get(version)
        if known is not None:
            if known.manifest_digest != digest:
                raise VersionError(f"version {version} exists with digest {known.manifest_digest}, not {digest}")
            return []
        self._check_parent(version, parent)
        if self.versions and version <= max(self.versions):
            raise VersionError(f"version {version} is not newer than {max(self.versions)}: numbers are never reused")
        depth = 0 if parent is None else self.versions[parent].depth + 1
        made = Version(version, parent, depth, step, digest, total_bytes)
        self.versions[version] = made
        self.current = version
        return [made, *self._abandon_side_branches()]

    def _check_parent(self, version: int, parent: int | None) -> None:
        if parent is None:
            if self.versions:
                raise VersionError(f"version {version} names no parent, but {self.current} is current")
        elif parent not in self.versions:
            raise VersionError(f"version {version} names parent {parent}, which was never committed")
        elif not self.is_live(parent):
            raise VersionError(f"version {version} names parent {parent}, which was abandoned")

    def _abandon_side_branches(self) -> list[Version]:
        live = set(self.ancestors(self.current))
        changed = []
        for number, version in self.versions.items():
            if version.state is VersionState.COMMITTED and number not in live:
                changed.append(replace(version, state=VersionState.ABANDONED))
        self.versions.update({version.policy_version: version for version in changed})
        return changed

    def ancestors(self, version: int | None) -> list[int]:
        """`version` and its ancestors, newest first."""
        line = []
        while version is not None:
            line.append(version)
            version = self.versions[version].parent
        return line

    def is_live(self, version: int) -> bool:
        """Whether `version` is current or an ancestor of it."""
        known = self.versions.get(version)
        return known is not None and known.state is VersionState.COMMITTED

    def depth(self, version: int) -> int:
        return self.versions[version].depth

    def lag(self, start_version: int) -> int | None:
        """L = depth(n) - depth(v0), in updates; None where v0 is not an ancestor of n (off lineage)."""
        if self.current is None or not self.is_live(start_version):
            return None
        return self.depth(self.current) - self.depth(start_version)

    def live_version_of_step(self, step: int) -> int | None:
        """The version that step `step` published on the live lineage."""
        found = [v.policy_version for v in self.versions.values() if v.step == step and self.is_live(v.policy_version)]
        return max(found, default=None)

    def check(self) -> None:
        """Raises AssertionError where depths, parents or the current version disagree."""
        for version in self.versions.values():
            if version.parent is not None:
                assert version.parent < version.policy_version, version
                assert version.depth == self.versions[version.parent].depth + 1, version
        if self.current is not None:
            live = {n for n, v in self.versions.items() if v.state is VersionState.COMMITTED}
            assert live == set(self.ancestors(self.current)), (live, self.current)
