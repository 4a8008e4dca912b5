"""Wiring of the proxy process."""

from collections.abc import Sequence

from headrace.service.app import ServiceApp, run_service
from headrace.wire.inference.v1 import inference_pb2_grpc
from inference_svc.proxy.metrics import ProxyMetrics
from inference_svc.proxy.service import ProxyService
from inference_svc.proxy.servicer import SERVICE_NAME, InferenceServicer
from inference_svc.proxy.settings import ProxySettings


def main(argv: Sequence[str] | None = None) -> None:
    """Run the LLM proxy until it is told to stop."""
    settings = ProxySettings.from_args(argv)
    run_service(lambda: serve(settings))


async def serve(settings: ProxySettings) -> None:
    """Build the parts, serve, and release everything."""
    app = ServiceApp(settings, kind="proxy")
    service = ProxyService(app.worker_id, settings)
    inference_pb2_grpc.add_InferenceServicer_to_server(InferenceServicer(service), app.server)
    app.add_service(SERVICE_NAME)
    app.on_stats = service.stats
    ProxyMetrics(service.stats)
    try:
        await app.run(service.run)
    finally:
        await service.close()
