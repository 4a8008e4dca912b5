"""`python -m reward_svc worker`: one reward worker."""

import signal
import sys
import warnings
from types import FrameType

from celery.exceptions import SecurityWarning

from headrace.service.logging import configure_logging
from headrace.service.metrics import serve_metrics
from reward_svc.control_thread import ControlThread
from reward_svc.scoring import Scorer
from reward_svc.settings import RewardSettings
from reward_svc.tally import Tally
from reward_svc.tasks import make_app

USAGE = "usage: python -m reward_svc worker [--broker-url URL] [--control-address HOST:PORT] …"


def work(settings: RewardSettings) -> None:
    """Take tasks until SIGTERM, which lets the batch in hand finish."""
    # Celery's own handlers come later; a signal before them must end the process just as well.
    signal.signal(signal.SIGTERM, _leave)
    # It warns root about pickled messages; this worker reads JSON alone.
    warnings.simplefilter("ignore", SecurityWarning)
    tally = Tally()
    control = ControlThread(settings, tally)
    scorer = Scorer(control, tally, grader_memory_mb=settings.grader_memory_mb)
    app = make_app(settings, scorer, tally)
    metrics = serve_metrics(settings.host, settings.metrics_port)
    control.start(metrics.address if metrics else "")
    configure_logging(settings.log_level, settings.log_file, service="reward", worker_id=control.worker_id)
    try:
        # Threads, not forks: grading has processes of its own, and gRPC does not survive a fork.
        options = [
            f"--concurrency={settings.concurrency}",
            f"--queues={settings.queue}",
            f"--hostname={control.worker_id}",
        ]
        quiet = ["--pool=threads", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        app.worker_main(["--quiet", "worker", *quiet, *options, f"--loglevel={settings.log_level}"])
    finally:
        scorer.close()
        control.stop()
        if metrics is not None:
            metrics.close()


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def main() -> None:
    """Parse settings and work."""
    if sys.argv[1:2] != ["worker"]:
        sys.stderr.write(f"{USAGE}\n")
        raise SystemExit(2)
    work(RewardSettings.from_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
