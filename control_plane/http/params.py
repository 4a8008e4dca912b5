"""Parameter types that routes share."""

from typing import Annotated

from fastapi import Path, Query

API = "/api/v1"
MAX_LIMIT = 500
MAX_WAIT_S = 60.0
MAX_INT = 2**53 - 1

JobId = Annotated[str, Path(min_length=1, max_length=100, description="Id of the job.")]
TrajectoryId = Annotated[str, Path(min_length=1, max_length=200, description="Id of the trajectory.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="Most items of one page.")]
Cursor = Annotated[str | None, Query(max_length=2000, description="`next_cursor` of the page before.")]
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for news, at most.")]
Text = Annotated[str | None, Query(max_length=200)]
Texts = Annotated[list[str] | None, Query(max_length=32)]
Number = Annotated[int | None, Query(ge=0, le=MAX_INT)]
Real = Annotated[float | None, Query(allow_inf_nan=False)]
