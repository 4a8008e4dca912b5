"""Settings of an environment process."""

from pydantic import Field

from headrace.service.settings import ServiceSettings


class EnvSettings(ServiceSettings):
    """Settings of `python -m env_svc`: environments and the coroutines that play in them."""

    slots: int = Field(256, ge=1, description="environments alive at once, over all jobs")
    max_processes: int = Field(16, ge=1, description="environment processes alive at once (isolation: process)")
    max_observation_bytes: int = Field(1_048_576, ge=1024, description="an observation above this is a named failure")
    upload_give_up_s: float = Field(900.0, gt=0, description="how long to look for the control plane with a blob")
    orphan_ttl_s: float = Field(3600.0, gt=0, description="how long a job without a runner is kept")
    lockstep_grace_s: float = Field(1.0, ge=0, description="how long a cohort waits for members not yet assigned")
