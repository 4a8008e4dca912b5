"""`python -m trainer_svc`: one trainer process."""

import os
import sys
from typing import Any

from headrace.service.app import ServiceApp, run_service
from headrace.wire.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from trainer_svc.servicer import TrainerServicer
from trainer_svc.settings import TrainerSettings

SERVICE_NAME = trainer_pb2.DESCRIPTOR.services_by_name["Trainer"].full_name


async def serve(settings: TrainerSettings) -> None:
    """Build the process and run it until it is told to stop."""
    app = ServiceApp(settings, kind="trainer", capabilities={"device": settings.device, "backend": settings.backend})
    service = _trainer(settings)(settings, worker_id=app.worker_id, source=app.control)
    trainer_pb2_grpc.add_TrainerServicer_to_server(TrainerServicer(service), app.server)
    app.add_service(SERVICE_NAME)
    app.on_stats = service.stats
    await app.run(service.run)


def _trainer(settings: TrainerSettings) -> Any:
    if settings.backend == "scripted":
        from trainer_svc.scripted import ScriptedTrainer

        return ScriptedTrainer
    import torch

    from trainer_svc.service import TrainerService

    torch.set_num_threads(settings.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    return TrainerService


def main() -> None:
    """Parse settings and serve."""
    settings = TrainerSettings.from_args(sys.argv[1:])
    run_service(lambda: serve(settings))


if __name__ == "__main__":
    main()
