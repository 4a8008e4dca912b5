"""An environment service put together: what its attempts share, and its jobs."""

import asyncio
import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from env_svc.generation import ProxyStreams
from env_svc.jobs import JobTable
from env_svc.manager import Shared
from env_svc.process_host import ProcessPool
from env_svc.servicer import EnvironmentsServicer
from env_svc.settings import EnvSettings
from env_svc.uploads import BlobSink, Uploads


class EnvService:
    """Everything of one environment process but its gRPC server. An async context manager: leaving ends all work."""

    def __init__(self, settings: EnvSettings, *, worker_id: str, blobs: BlobSink) -> None:
        self._pool = ProcessPool(settings.max_processes)
        self._streams = ProxyStreams()
        self._uploads = Uploads(blobs, settings.upload_give_up_s)
        shared = Shared(
            worker_id=worker_id,
            slots=asyncio.Semaphore(settings.slots),
            processes=self._pool,
            uploads=self._uploads,
            max_observation_bytes=settings.max_observation_bytes,
        )
        self.jobs = JobTable(shared, self._streams, lockstep_grace_s=settings.lockstep_grace_s)
        self.servicer = EnvironmentsServicer(
            self.jobs, self._pool, worker_id=worker_id, slots=settings.slots, orphan_ttl_s=settings.orphan_ttl_s
        )
        self._uploading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._uploading = asyncio.create_task(self._uploads.run())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.servicer.close()
        await self.jobs.close_all()
        await self._streams.close()
        await self._pool.close()
        if self._uploading is not None:
            self._uploading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._uploading

    def stats(self) -> Mapping[str, float]:
        """Figures for the heartbeat; chunk counts are cumulative."""
        counts = self._streams.counts
        return {
            "attempts_running": self.jobs.n_running,
            "attempts_unacknowledged": self.jobs.n_unacknowledged,
            "env_processes": self._pool.n_alive,
            "chunks_kept": counts.kept,
            "chunks_dropped": counts.dropped,
            "turns_asked_again": counts.asked_again,
        }
