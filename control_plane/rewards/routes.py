"""REST of rewards."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.params import API, JobId
from control_plane.http.problems import not_found
from control_plane.rewards import repository
from control_plane.rewards.schemas import RewardsView

router = APIRouter(prefix=API + "/jobs/{job_id}", tags=["rewards"])

QUANTILE_NAMES = ("p50", "p90", "p99", "max")


@router.get("/rewards", response_model=RewardsView)
async def get_rewards(context: Ctx, job_id: JobId) -> Response:
    """What came of the job's rewards, how long they waited and took, and how busy the reward workers were."""
    async with context.database.snapshot() as connection:
        span = await repository.span(connection, job_id)
        if span is None:
            raise not_found("job", job_id)
        start, end = span
        outcomes = await repository.outcomes(connection, job_id)
        scoring = await repository.count_scoring(connection, job_id)
        capacity = await repository.capacity(connection, start or end, end)
    busy_s = sum(row["busy_s"] for row in outcomes)
    return Answer(
        {
            "job_id": job_id,
            "scoring": scoring,
            "rewards": [_outcome(row) for row in outcomes],
            "workers": {
                "slots": capacity["slots"],
                "slot_s": capacity["slot_s"],
                "busy_s": busy_s,
                "busy_all_s": capacity["busy_s"],
                "utilisation": _share(capacity["busy_s"], capacity["slot_s"]),
                "used_by_job": _share(busy_s, capacity["slot_s"]),
            },
        }
    )


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: value for name, value in row.items() if name not in ("queue_s", "grader_s")}
    return {**counts, "queue": _named(row["queue_s"]), "grader": _named(row["grader_s"])}


def _named(quantiles: Sequence[float]) -> dict[str, float]:
    return dict(zip(QUANTILE_NAMES, quantiles, strict=True))


def _share(part: float, whole: Any) -> float | None:
    return part / whole if whole else None
