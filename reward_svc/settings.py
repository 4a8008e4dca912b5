"""Settings of a reward worker."""

from pydantic import Field

from headrace.client.rewards import QUEUE
from headrace.service.settings import ServiceSettings


class RewardSettings(ServiceSettings):
    """Settings of `python -m reward_svc worker`: takes scoring tasks from the broker and reports scores."""

    broker_url: str = Field("redis://127.0.0.1:6379/0", description="the broker; may carry a password")
    queue: str = Field(QUEUE, description="queue that scoring tasks come from")
    concurrency: int = Field(1, ge=1, description="items graded at once, each by a grader process of its own")
    visibility_timeout_s: int = Field(3600, ge=1, description="the broker hands a task out again after this long")
    report_give_up_s: float = Field(120.0, gt=0, description="how long to look for the control plane with a score")
    grader_memory_mb: int = Field(4096, ge=0, description="memory of one grader process, 0 for no limit")
