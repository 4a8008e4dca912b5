"""Settings of a trainer process."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from headrace.service.settings import ServiceSettings


class TrainerSettings(ServiceSettings):
    """Settings of `python -m trainer_svc`: one process that trains one job at a time."""

    data_dir: Path = Field(Path(".headrace/trainer"), description="checkpoints and exports without a path of their own")
    backend: Literal["torch", "scripted"] = Field(
        "torch", description="scripted: no torch and no learning, timed by the model's config"
    )
    device: str = Field("cpu", description="torch device, such as cpu or cuda:0")
    threads: int = Field(0, ge=0, description="torch threads; 0 takes OMP_NUM_THREADS, else 1")
    push_timeout_s: float = Field(
        120.0, gt=0, description="deadline of bringing one version to the weight store, retries included"
    )
    blob_timeout_s: float = Field(60.0, gt=0, description="deadline of fetching a batch's tokens, retries included")
