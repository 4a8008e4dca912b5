"""What this server can do, for clients and people."""

from dataclasses import asdict
from typing import Any, get_args

import headrace
from control_plane.http.params import MAX_LIMIT, MAX_WAIT_S
from control_plane.settings import ControlSettings
from control_plane.workers.repository import KINDS
from headrace.client.jobspec.blocks import AlgorithmBlock, CorrectionBlock, InferenceBlock
from headrace.core.async_policy import PRESETS


def capabilities(settings: ControlSettings) -> dict[str, Any]:
    """Names and limits; nothing here changes while the process runs."""
    return {
        "version": headrace.__version__,
        "schemas": ["headrace/v1"],
        "algorithms": _choices(AlgorithmBlock, "type"),
        "loss_reductions": _choices(AlgorithmBlock, "loss_reduction"),
        "corrections": _choices(CorrectionBlock, "type"),
        "engines": _choices(InferenceBlock, "engine"),
        "presets": {name: asdict(policy) for name, policy in PRESETS.items()},
        "worker_kinds": list(KINDS),
        "limits": {
            "max_body_bytes": settings.max_body_bytes,
            "max_page": MAX_LIMIT,
            "max_wait_s": MAX_WAIT_S,
            "heartbeat_interval_s": settings.heartbeat_interval_s,
            "lapse_after_s": settings.lapse_after_s,
        },
    }


def _choices(block: Any, field: str) -> list[str]:
    return list(get_args(block.model_fields[field].annotation))
