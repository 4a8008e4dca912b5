"""A weight store of one process's memory: strict, scripted, and counting what is taken and given back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.core.weights.errors import WeightsError
from headrace.core.weights.manifest import Manifest, VersionId
from weightstore.memory import BufferPool
from weightstore.snapshot import Content, take_snapshot


@dataclass(frozen=True)
class PulledReport:
    """What a pull cost."""

    pull_s: float = 0.25
    verify_s: float = 0.05
    bytes_moved: int = 123
    transport: str = "memory"


@dataclass(eq=False)
class StagedInMemory:
    """One version; its views must not be touched after release."""

    manifest: Manifest
    arrays: Mapping[str, np.ndarray]
    small_files: Mapping[str, bytes]
    report: PulledReport = field(default_factory=PulledReport)
    is_released: bool = False

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def policy_version(self) -> int:
        return self.manifest.version.policy_version

    def tensors(self) -> dict[str, np.ndarray]:
        assert not self.is_released, "tensors() of a released version"
        return dict(self.arrays)

    def files(self) -> dict[str, bytes]:
        assert not self.is_released, "files() of a released version"
        return dict(self.small_files)

    def release(self) -> None:
        assert not self.is_released, "released twice"
        self.is_released = True


class MemorySource:
    """Versions that were put here can be pulled; a pull can be held up by ``gate`` or made to fail once."""

    def __init__(self) -> None:
        self._content: dict[str, Content] = {}
        self._failures: dict[int, WeightsError] = {}
        self.gate: asyncio.Event | None = None
        self.pulled: list[tuple[int, str]] = []
        self.staged: list[StagedInMemory] = []
        self.is_closed = False

    def put(
        self,
        policy_version: int,
        tensors: Mapping[str, np.ndarray],
        config: Mapping[str, Any],
        *,
        job_id: str = "job_1",
    ) -> Manifest:
        """Make a version available; returns its manifest."""
        content = Content(tensors, files={"config.json": json.dumps(config).encode()})
        version = VersionId(job_id, policy_version, epoch=1)
        manifest = take_snapshot(version, content, bucket_bytes=1 << 20, pool=BufferPool()).manifest
        self._content[manifest.digest] = content
        return manifest

    def fail_once(self, policy_version: int, error: WeightsError) -> None:
        """The next pull of a version raises ``error``."""
        self._failures[policy_version] = error

    async def pull(self, manifest: Manifest, node_address: str, *, deadline_s: float = 30.0) -> StagedInMemory:
        assert not self.is_closed, "a pull after close"
        assert deadline_s > 0, "a pull without a deadline"
        policy_version = manifest.version.policy_version
        self.pulled.append((policy_version, node_address))
        if self.gate is not None:
            await asyncio.wait_for(self.gate.wait(), deadline_s)
        if policy_version in self._failures:
            raise self._failures.pop(policy_version)
        content = self._content[manifest.digest]
        staged = StagedInMemory(manifest, content.tensors, content.files)
        self.staged.append(staged)
        return staged

    async def close(self) -> None:
        self.is_closed = True

    @property
    def unreleased(self) -> list[int]:
        """Versions whose memory was not given back."""
        return [staged.policy_version for staged in self.staged if not staged.is_released]
