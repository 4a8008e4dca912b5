"""REST of trajectories."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.http.answers import Answer
from control_plane.http.cursors import page
from control_plane.http.params import API, Cursor, JobId, Limit, Number, Real, Text, Texts, TrajectoryId
from control_plane.http.problems import not_found
from control_plane.jobs import repository as jobs
from control_plane.trajectories import repository, service
from control_plane.trajectories.repository import Filters
from control_plane.trajectories.schemas import AttemptPage, Tokens, Trajectory, Transcript

router = APIRouter(prefix=API, tags=["trajectories"])

AttemptNumber = Annotated[int | None, Query(ge=0, le=10_000, description="Default: the last with a result.")]


class TrajectoryQuery(BaseModel):
    """Filters and page of a list of attempts. `version_…` bound the start version, inclusively."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor = None
    state: Texts = None
    task: Text = None
    purpose: Literal["train", "eval"] | None = None
    group: Text = None
    step: Number = None
    version_gte: Number = None
    version_lte: Number = None
    min_reward: Real = None
    max_reward: Real = None
    truncated: bool | None = None

    def filters(self) -> Filters:
        return Filters(
            states=sorted(self.state or []),
            task=self.task,
            purpose=self.purpose,
            group_id=self.group,
            step=self.step,
            version_gte=self.version_gte,
            version_lte=self.version_lte,
            min_reward=self.min_reward,
            max_reward=self.max_reward,
            is_truncated=self.truncated,
        )


@router.get("/jobs/{job_id}/trajectories", response_model=AttemptPage)
async def list_trajectories(context: Ctx, job_id: JobId, query: Annotated[TrajectoryQuery, Query()]) -> Response:
    """Attempts of a job, newest first. `state` may be repeated."""
    filters, limit = query.filters(), query.limit
    scope = {"list": f"trajectories:{job_id}", "filters": repr(filters)}
    after = context.cursors.read(scope, query.cursor, 2) if query.cursor else None
    async with context.database.connect() as connection:
        rows = await repository.list_page(
            connection, job_id, filters, after=(after[0], after[1]) if after else None, limit=limit
        )
        if not rows and not await jobs.exists(connection, job_id):
            raise not_found("job", job_id)
    return Answer(page(rows, limit, lambda row: context.cursors.make(scope, [row["trajectory_id"], row["attempt"]])))


@router.get("/trajectories/{trajectory_id}", response_model=Trajectory)
async def get_trajectory(context: Ctx, trajectory_id: TrajectoryId) -> Response:
    """A trajectory: its attempts with versions by segment, rewards, phases and faults."""
    return Answer(await service.get(context, trajectory_id))


@router.get("/trajectories/{trajectory_id}/tokens", response_model=Tokens)
async def get_tokens(context: Ctx, trajectory_id: TrajectoryId, attempt: AttemptNumber = None) -> Response:
    """Token ids with mask, behaviour logprob and behaviour version of each."""
    return Answer(await service.tokens(context, trajectory_id, attempt))


@router.get("/trajectories/{trajectory_id}/transcript", response_model=Transcript)
async def get_transcript(context: Ctx, trajectory_id: TrajectoryId, attempt: AttemptNumber = None) -> Response:
    """Messages, answer and info, as graders see them."""
    return Answer(await service.transcript(context, trajectory_id, attempt))
