"""The Celery application and its one task.

Messages are acknowledged late, one is held at a time, and there is no result backend: scores go to the control plane
over gRPC. The runner owns deadlines, so a message that is lost with its worker costs a re-send, nothing else.
"""

from typing import Any

from celery import Celery
from celery.app.task import Task

from headrace.client.rewards import DEAD_LETTER_QUEUE, TASK, decode_batch
from headrace.service.logging import get_logger
from reward_svc.scoring import Scorer
from reward_svc.settings import RewardSettings
from reward_svc.tally import Tally

log = get_logger(__name__)


def make_app(settings: RewardSettings, scorer: Scorer, tally: Tally) -> Celery:
    """The application, with `reward_svc.tasks.score` bound to ``scorer``."""
    app = Celery("reward_svc", broker=settings.broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=settings.queue,
        task_acks_late=True,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={"visibility_timeout": settings.visibility_timeout_s},
        accept_content=["json"],
    )

    def score(task: "Task[Any, Any]", batch_json: str) -> None:
        try:
            batch = decode_batch(batch_json)
        except ValueError as error:
            log.error("dead_letter", reason=str(error), queue=DEAD_LETTER_QUEUE)
            tally.dead_letter()
            _bury(app, batch_json)
            return
        scorer.score(batch)

    app.task(score, name=TASK, bind=True)
    return app


def _bury(app: Celery, message: str) -> None:
    with app.connection_for_write() as connection, connection.SimpleQueue(DEAD_LETTER_QUEUE) as queue:
        queue.put(message)
