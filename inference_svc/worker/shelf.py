"""Weight versions in this worker's host memory: fetched in the background, verified, dropped by number."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from headrace.core.weights.errors import VersionConflict
from inference_svc.worker.messages import Prefetch


class Report(Protocol):
    """What a pull cost."""

    @property
    def pull_s(self) -> float: ...

    @property
    def verify_s(self) -> float: ...

    @property
    def bytes_moved(self) -> int: ...

    @property
    def transport(self) -> str: ...


class Staged(Protocol):
    """One verified version in staging memory; views into it die with release()."""

    @property
    def manifest(self) -> Any: ...

    @property
    def digest(self) -> str: ...

    @property
    def report(self) -> Report: ...

    def tensors(self) -> Mapping[str, Any]: ...

    def files(self) -> Mapping[str, bytes]: ...

    def release(self) -> None: ...


class WeightSource(Protocol):
    """Where versions come from: ``weightstore.Puller``."""

    async def pull(self, manifest: Any, node_address: str, *, deadline_s: float = ...) -> Staged: ...

    async def close(self) -> None: ...


class WeightShelf:
    """At most ``max_resident`` versions; the oldest that is not pinned goes first. One pull per version at a time."""

    def __init__(self, source: WeightSource, max_resident: int) -> None:
        self._source = source
        self._max_resident = max_resident
        self._staged: dict[int, Staged] = {}
        self._pulls: dict[int, asyncio.Task[Staged]] = {}
        self._pinned: set[int] = set()

    @property
    def resident(self) -> tuple[int, ...]:
        """Version numbers in host memory, ascending."""
        return tuple(sorted(self._staged))

    async def fetch(self, wanted: Prefetch) -> Staged:
        """The version, pulled now unless it is here or on its way. Raises WeightsError."""
        staged = self._staged.get(wanted.policy_version)
        if staged is not None:
            if staged.digest != wanted.manifest.digest:
                raise VersionConflict(
                    f"version {wanted.policy_version} is here with digest {staged.digest}, not {wanted.manifest.digest}"
                )
            return staged
        pull = self._pulls.get(wanted.policy_version)
        if pull is None:
            self._make_room()
            pull = asyncio.create_task(self._pull(wanted))
            self._pulls[wanted.policy_version] = pull
        return await asyncio.shield(pull)

    async def _pull(self, wanted: Prefetch) -> Staged:
        try:
            staged = await self._source.pull(wanted.manifest, wanted.node_address, deadline_s=wanted.deadline_s)
            self._staged[wanted.policy_version] = staged
            return staged
        finally:
            self._pulls.pop(wanted.policy_version, None)

    def _make_room(self) -> None:
        while len(self._staged) + len(self._pulls) >= self._max_resident:
            spare = [version for version in self.resident if version not in self._pinned]
            if not spare:
                return
            self.drop(spare[0])

    async def get(self, policy_version: int) -> Staged | None:
        """A resident version, or one whose pull is running, once it is here. None if neither. Raises WeightsError."""
        pull = self._pulls.get(policy_version)
        if pull is not None:
            return await asyncio.shield(pull)
        return self._staged.get(policy_version)

    def pin(self, *policy_versions: int) -> None:
        """Exactly these stay resident, whatever is dropped: the version served, and one being copied from."""
        self._pinned = set(policy_versions)

    def drop(self, policy_version: int) -> None:
        """Release a version's memory; unknown and pinned ones are left alone."""
        if policy_version in self._staged and policy_version not in self._pinned:
            self._staged.pop(policy_version).release()

    async def clear(self) -> None:
        """Stop all pulls and release everything."""
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        self.pin()
        for policy_version in self.resident:
            self.drop(policy_version)

    async def close(self) -> None:
        """Release everything, the source too."""
        await self.clear()
        await self._source.close()
