"""Publishing one job's versions through the weight store, until the deadline and wherever the node is by then."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from headrace.client.weights import manifest_to_wire
from headrace.core.weights.errors import WeightsError
from headrace.core.weights.manifest import Manifest, VersionId
from headrace.service.logging import get_logger
from weightstore.publisher import Published, Publisher
from weightstore.snapshot import Snapshot

log = get_logger(__name__)

RETRY_S = 0.3
TRY_S = 20.0
_KEPT_MANIFESTS = 2

Stage = Callable[[Publisher], Awaitable[Snapshot]]


class _Moved(Exception):
    """The node is elsewhere by now."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A version that the node holds, sealed and verified; the control plane makes it current."""

    policy_version: int
    manifest: bytes
    push_s: float
    publication_stall_s: float
    bytes_moved: int

    @property
    def seconds(self) -> dict[str, float]:
        return {"push": self.push_s, "publication_stall": self.publication_stall_s}


class VersionPublisher:
    """`move_to` may come at any time, also during a push: it ends there, and goes on at the new address."""

    def __init__(self, address: str, *, bucket_bytes: int, timeout_s: float) -> None:
        self._address = address
        self._has_moved = asyncio.Event()
        self._bucket_bytes, self._timeout_s = bucket_bytes, timeout_s
        self._publisher: Publisher | None = None
        self._manifests: dict[int, Manifest] = {}

    def move_to(self, address: str) -> None:
        """Where the node is now; an empty address changes nothing."""
        if address and address != self._address:
            self._address = address
            self._has_moved.set()

    async def publish(self, version: VersionId, stage: Stage, *, epoch: int) -> Publication:
        """Bring a version to the node: a node that restarts, or is full for a moment, costs time and not the job.

        ``stage`` copies the parameters as they are; ``epoch`` is the job's now. A version that was published before is
        pushed again from its snapshot: a node that lost its bytes gets the same ones. Raises WeightsError past the
        deadline.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self._timeout_s
        while True:
            try:
                published = await self._try(version, stage, epoch, min(TRY_S, end - loop.time()))
                break
            except _Moved:
                log.info("push_moves", version=version.policy_version, address=self._address)
                continue
            except WeightsError as error:
                if not error.retryable or loop.time() + RETRY_S >= end:
                    raise
                log.warning("push_failed", version=version.policy_version, code=error.code, reason=str(error))
            await asyncio.sleep(RETRY_S)
        return _publication(published)

    def has(self, policy_version: int) -> bool:
        """Whether the version was staged here lately, so that its bytes can be had again."""
        return policy_version in self._manifests

    async def close(self) -> None:
        """Drop the connection."""
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None

    async def _try(self, version: VersionId, stage: Stage, epoch: int, timeout_s: float) -> Published:
        publisher = await self._connect()
        known = self._manifests.get(version.policy_version)
        if known is not None:
            try:
                return await self._unless_moved(publisher.republish(known, epoch=epoch, deadline_s=timeout_s))
            except LookupError:
                pass  # its snapshot made room for later ones; the bytes are the same
        snapshot = await stage(publisher)
        self._remember(snapshot.manifest)
        return await self._unless_moved(publisher.push(snapshot, epoch=epoch, deadline_s=timeout_s))

    async def _unless_moved(self, push: Coroutine[Any, Any, Published]) -> Published:
        """Raises _Moved, and gives the push up, when the node is known to be elsewhere."""
        pushing, moved = asyncio.ensure_future(push), asyncio.ensure_future(self._has_moved.wait())
        try:
            await asyncio.wait({pushing, moved}, return_when=asyncio.FIRST_COMPLETED)
            if not pushing.done():
                raise _Moved
            return pushing.result()
        finally:
            pushing.cancel()
            moved.cancel()
            await asyncio.gather(pushing, moved, return_exceptions=True)

    async def _connect(self) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher([self._address], bucket_bytes=self._bucket_bytes)
        elif self._has_moved.is_set():
            # A node that restarts has a new address and no bytes; the snapshots are what it gets them from.
            await self._publisher.move_to([self._address])
        self._has_moved.clear()
        return self._publisher

    def _remember(self, manifest: Manifest) -> None:
        self._manifests[manifest.version.policy_version] = manifest
        while len(self._manifests) > _KEPT_MANIFESTS:
            del self._manifests[next(iter(self._manifests))]


def _publication(published: Published) -> Publication:
    report = published.report
    return Publication(
        policy_version=published.manifest.version.policy_version,
        manifest=manifest_to_wire(published.manifest).SerializeToString(),
        push_s=report.push_s,
        publication_stall_s=report.publication_stall_s,
        bytes_moved=report.bytes_moved,
    )
