"""REST of groups."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from control_plane.context import Ctx
from control_plane.groups import repository
from control_plane.groups.repository import Filters
from control_plane.groups.schemas import GroupPage, GroupState
from control_plane.http.answers import Answer
from control_plane.http.cursors import page
from control_plane.http.params import API, Cursor, JobId, Limit, Number, Text
from control_plane.http.problems import not_found
from control_plane.jobs import repository as jobs

router = APIRouter(prefix=API, tags=["groups"])


class GroupQuery(BaseModel):
    """Filters and page of a list of groups."""

    model_config = ConfigDict(extra="forbid")

    limit: Limit = 50
    cursor: Cursor = None
    state: Annotated[list[GroupState] | None, Field(max_length=8)] = None
    task: Text = None
    purpose: Literal["train", "eval"] | None = None
    step: Number = None

    def filters(self) -> Filters:
        return Filters(states=sorted(self.state or []), task=self.task, purpose=self.purpose, step=self.step)


@router.get("/jobs/{job_id}/groups", response_model=GroupPage)
async def list_groups(context: Ctx, job_id: JobId, query: Annotated[GroupQuery, Query()]) -> Response:
    """Groups of a job, newest admission first. `state` may be repeated."""
    filters, limit = query.filters(), query.limit
    scope = {"list": f"groups:{job_id}", "filters": repr(filters)}
    before = context.cursors.read(scope, query.cursor, 1)[0] if query.cursor else None
    async with context.database.connect() as connection:
        rows = await repository.list_page(connection, job_id, filters, before_ordinal=before, limit=limit)
        if not rows and not await jobs.exists(connection, job_id):
            raise not_found("job", job_id)
    rows = [{**row, "env_seed": str(row["env_seed"])} for row in rows]
    return Answer(page(rows, limit, lambda row: context.cursors.make(scope, [row["ordinal"]])))
