"""Wiring of the worker process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from headrace.service.app import ServiceApp, run_service
from headrace.wire.engine.v1 import engine_pb2_grpc
from inference_svc.worker.build import build_engine
from inference_svc.worker.options import EngineOptions
from inference_svc.worker.service import WorkerIdentity, WorkerService
from inference_svc.worker.servicer import SERVICE_NAME, EngineServicer
from inference_svc.worker.settings import WorkerSettings
from inference_svc.worker.shelf import WeightShelf


def main(argv: Sequence[str] | None = None) -> None:
    """Run one inference worker until it is told to stop or its engine dies."""
    settings = WorkerSettings.from_args(argv)
    # Before torch is imported: more than one thread makes a small model slower and starves the neighbours.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The generation thread and the event loop share one interpreter: at the default of 5 ms a step of a small model
    # and the frames around it wait for each other about as long as they work.
    sys.setswitchinterval(0.0005)
    if settings.engine == "hf":
        import inference_svc.engine.hf  # noqa: F401 -- seconds long, so not in the middle of the first load
    run_service(lambda: serve(settings))


async def serve(settings: WorkerSettings) -> None:
    """Build the parts, serve, and release everything."""
    from weightstore import Puller

    app = ServiceApp(settings, kind="inference", capabilities={"engine": settings.engine})
    identity = WorkerIdentity(
        worker_id=app.worker_id,
        engine=settings.engine,
        build=build_engine,
        defaults=EngineOptions.from_settings(settings),
        chunk_linger_s=settings.chunk_linger_s,
    )
    service = WorkerService(identity, WeightShelf(Puller(), settings.max_resident))
    servicer = EngineServicer(service, stats_interval_s=settings.stats_interval_s)
    engine_pb2_grpc.add_EngineServicer_to_server(servicer, app.server)
    app.add_service(SERVICE_NAME)
    app.on_drain = servicer.close
    app.on_stats = lambda: _heartbeat(service)
    try:
        await app.run(service.run)
    finally:
        await service.close()


def _heartbeat(service: WorkerService) -> Mapping[str, float]:
    """The gauges that the control plane shows; -1 for no version."""
    stats = service.stats()
    return {
        "running": stats.running,
        "waiting": stats.waiting,
        "kv_tokens_used": stats.kv_tokens_used,
        "kv_tokens_total": stats.kv_tokens_total,
        "busy_s": stats.busy_s,
        "generated_tokens": stats.generated_tokens,
        "policy_version": -1 if stats.policy_version is None else stats.policy_version,
    }
