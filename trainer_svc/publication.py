"""Publishing versions through the weight store: stage in the torch thread, push from the event loop."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.client.weights import manifest_to_wire
from headrace.core.weights.manifest import Manifest, VersionId
from trainer_svc.training import Training
from weightstore.publisher import Published, Publisher

_KEPT_MANIFESTS = 2


@dataclass(frozen=True, slots=True)
class Publication:
    """A version that every node holds, sealed and verified; the control plane makes it current."""

    policy_version: int
    manifest: bytes
    push_s: float
    publication_stall_s: float
    bytes_moved: int
    transport: str


class VersionPublisher:
    """Publishes one job's versions to the node at an address; the connection outlives versions and address changes."""

    def __init__(self, bucket_bytes: int, timeout_s: float) -> None:
        self._bucket_bytes, self._timeout_s = bucket_bytes, timeout_s
        self._publisher: Publisher | None = None
        self._address = ""
        self._manifests: dict[int, Manifest] = {}

    async def publish(
        self, training: Training, version: VersionId, address: str, run: Callable[..., Awaitable[object]]
    ) -> Publication:
        """Bring the parameters as they are to the node. ``run`` runs a blocking call in the torch thread.

        A version that was published before is pushed again from its snapshot: a node that lost its bytes gets the same
        ones. Raises WeightsError.
        """
        publisher = await self._connect(address)
        known = self._manifests.get(version.policy_version)
        published = await self._again(publisher, known, version.epoch) if known is not None else None
        if published is None:
            snapshot = await run(self._stage, publisher, training, version)
            published = await publisher.push(snapshot, epoch=version.epoch, deadline_s=self._timeout_s)  # type: ignore[arg-type]
        self._remember(published.manifest)
        return _publication(published)

    async def close(self) -> None:
        """Drop the connection."""
        if self._publisher is not None:
            await self._publisher.close()
            self._publisher = None

    async def _again(self, publisher: Publisher, manifest: Manifest, epoch: int) -> Published | None:
        try:
            return await publisher.republish(manifest, epoch=epoch, deadline_s=self._timeout_s)
        except LookupError:
            return None

    @staticmethod
    def _stage(publisher: Publisher, training: Training, version: VersionId) -> object:
        parameters = training.parameters()
        return publisher.stage(
            version,
            parameters.tensors,
            dtypes=parameters.dtypes,
            aliases=parameters.aliases,
            files=training.files,
        )

    async def _connect(self, address: str) -> Publisher:
        if self._publisher is None:
            self._publisher = Publisher([address], bucket_bytes=self._bucket_bytes)
            self._address = address
        elif address and address != self._address:
            # A node that restarts has a new address and no bytes; the snapshots are what it gets them from.
            await self._publisher.move_to([address])
            self._address = address
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
        transport=report.transport,
    )
