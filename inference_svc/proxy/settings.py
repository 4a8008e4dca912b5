"""Settings of the LLM proxy."""

from pydantic import Field

from headrace.service.settings import ServiceSettings


class ProxySettings(ServiceSettings):
    """The LLM proxy: the request table between environment managers and engine workers.

    What belongs to a job (routing, swaps, waits) comes with the job, not from here.
    """

    tick_s: float = Field(0.1, gt=0, le=0.25, description="time between two looks at deadlines")
    status_interval_s: float = Field(0.5, gt=0, description="time between two reports of workers to the runner")
    worker_silence_s: float = Field(15.0, gt=0, description="a connected worker that says nothing for so long is lost")
    hello_timeout_s: float = Field(10.0, gt=0, description="deadline of a worker's answer to its opening")
