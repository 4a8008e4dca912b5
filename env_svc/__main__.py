"""`python -m env_svc`: one environment process."""

import os
import sys

from env_svc.service import EnvService
from env_svc.settings import EnvSettings
from headrace.service.app import ServiceApp, run_service
from headrace.wire.environments.v1 import environments_pb2, environments_pb2_grpc

SERVICE_NAME = environments_pb2.DESCRIPTOR.services_by_name["Environments"].full_name


async def serve(settings: EnvSettings) -> None:
    """Build the process, run it until it is told to stop, and end every attempt."""
    app = ServiceApp(settings, kind="env", capabilities={"slots": str(settings.slots)})
    async with EnvService(settings, worker_id=app.worker_id, blobs=app.control) as service:
        environments_pb2_grpc.add_EnvironmentsServicer_to_server(service.servicer, app.server)
        app.add_service(SERVICE_NAME)
        app.on_stats = service.stats
        app.on_drain = service.jobs.drain
        await app.run()


def main() -> None:
    """Parse settings and serve."""
    settings = EnvSettings.from_args(sys.argv[1:])
    # Texts are short and many; a thread pool inside the tokenizer costs more than it brings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_service(lambda: serve(settings))


if __name__ == "__main__":
    main()
