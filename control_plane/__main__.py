"""`python -m control_plane`: REST, console, the gRPC Control service and the job runners in one process."""

from control_plane.process import run
from control_plane.settings import ControlSettings
from headrace.service.app import run_service
from headrace.service.logging import configure_logging


async def main() -> None:
    """Parse settings and serve."""
    settings = ControlSettings.from_args()
    configure_logging(settings.log_level, settings.log_file, service="control_plane")
    await run(settings)


if __name__ == "__main__":
    run_service(main)
