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

N_NEWEST = 10_000
QUANTILE_NAMES = ("p50", "p90", "p99", "max")


@router.get("/rewards", response_model=RewardsView)
async def get_rewards(context: Ctx, job_id: JobId) -> Response:
    """What came of the job's rewards, how long they waited and took, and how busy the reward workers were."""
    async with context.database.snapshot() as connection:
        span = await repository.span(connection, job_id)
        if span is None:
            raise not_found("job", job_id)
        start, end = span[0] or span[1], span[1]
        outcomes = await repository.outcomes(connection, job_id)
        times = await repository.times(connection, job_id, N_NEWEST)
        scoring = await repository.count_scoring(connection, job_id)
        slots = await repository.slots(connection, start, end)
        others_s = await repository.busy_for_others(connection, job_id, start, end)
    busy_s = sum(row["busy_s"] for row in outcomes)
    workers = {
        **slots,
        "busy_s": busy_s,
        "busy_all_s": busy_s + others_s,
        "utilisation": _share(busy_s + others_s, slots["slot_s"]),
        "used_by_job": _share(busy_s, slots["slot_s"]),
    }
    untold = {"queue": None, "grader": None}
    rewards = [{**row, **untold, **_named(times.get(row["name"], {}))} for row in outcomes]
    return Answer({"job_id": job_id, "scoring": scoring, "rewards": rewards, "workers": workers})


def _named(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    return {
        name.removesuffix("_s"): dict(zip(QUANTILE_NAMES, quantiles, strict=True)) for name, quantiles in times.items()
    }


def _share(part: float, whole: Any) -> float | None:
    return part / whole if whole else None
