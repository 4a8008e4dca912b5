"""Settings of an inference worker."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.service.settings import ServiceSettings


class WorkerSettings(ServiceSettings):
    """One inference engine behind the Engine service."""

    engine: Literal["hf", "scripted"] = Field(
        "hf", description="hf: transformers; scripted: no model, timed by formula"
    )
    max_running: int = Field(64, ge=1, description="requests in one engine step; the rest wait")
    kv_tokens: int = Field(32768, ge=256, description="tokens that the key-value cache holds")
    page_size: int = Field(16, ge=4, description="tokens in a cache page; prefixes are shared by whole pages")
    max_batch_tokens: int = Field(512, ge=1, description="tokens computed in one engine step")
    max_len: int = Field(0, ge=0, description="longest sequence in tokens; 0 for the model's own window")
    max_resident: int = Field(3, ge=2, description="weight versions kept in host memory")
    chunk_linger_s: float = Field(0.02, ge=0, description="how long tokens of an unfinished request may be gathered")
    stats_interval_s: float = Field(0.5, gt=0, description="time between two reports of engine statistics")
    scripted_t0_s: float = Field(0.002, ge=0, description="scripted: seconds of an empty step")
    scripted_per_running_s: float = Field(0.0, ge=0, description="scripted: seconds added by each running request")
    scripted_per_kv_token_s: float = Field(0.0, ge=0, description="scripted: seconds added by each cached token")
    scripted_seed: int = Field(0, ge=0, description="scripted: seed of the logits")
    scripted_vocab_size: int = Field(64, ge=2, description="scripted: vocabulary where the manifest has no config")
