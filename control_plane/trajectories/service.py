"""One trajectory, put together from its rows and blobs."""

from typing import Any

import orjson

from control_plane.blobs import service as blobs
from control_plane.context import Context
from control_plane.http.problems import ProblemError, not_found
from control_plane.trajectories import repository
from control_plane.trajectories.tokens import BadTokens, per_token


async def get(context: Context, trajectory_id: str) -> dict[str, Any]:
    """The trajectory with all attempts. Raises 404."""
    async with context.database.connect() as connection:
        rows = await repository.attempts_of(connection, trajectory_id)
    if not rows:
        raise not_found("trajectory", trajectory_id)
    for row in rows:
        row["staleness"] = staleness(row)
    first = rows[0]
    return {
        "trajectory_id": trajectory_id,
        "job_id": first["job_id"],
        "group_id": first["group_id"],
        "attempts": rows,
    }


def staleness(row: dict[str, Any]) -> dict[str, int | None]:
    """s_gen = M_f - v0, residence = M_t - M_f, s_train = M_t - v0."""
    start, finish, sample = row["start_version"], row["finish_version"], row["sample_version"]
    return {
        "s_gen": _difference(finish, start),
        "residence": _difference(sample, finish),
        "s_train": _difference(sample, start),
    }


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else later - earlier


async def tokens(context: Context, trajectory_id: str, attempt: int | None) -> dict[str, Any]:
    """Per-token arrays of an attempt; without a number, of the last one that has any. Raises 404."""
    row, data = await _blob(context, trajectory_id, attempt, "token_blob")
    try:
        arrays = per_token(data)
    except BadTokens as error:
        raise ProblemError(500, "stored_tokens_broken", f"attempt {row['attempt']}: {error}") from error
    return {"trajectory_id": trajectory_id, "attempt": row["attempt"], **arrays}


async def transcript(context: Context, trajectory_id: str, attempt: int | None) -> dict[str, Any]:
    """What graders got to see of an attempt. Raises 404."""
    row, data = await _blob(context, trajectory_id, attempt, "grading_blob")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProblemError(500, "stored_transcript_broken", f"attempt {row['attempt']}: {error}") from error
    document = document if isinstance(document, dict) else {"value": document}
    return {"trajectory_id": trajectory_id, "attempt": row["attempt"], "document": document}


async def _blob(context: Context, trajectory_id: str, attempt: int | None, column: str) -> tuple[dict[str, Any], bytes]:
    async with context.database.connect() as connection:
        rows = await repository.attempts_of(connection, trajectory_id)
        if not rows:
            raise not_found("trajectory", trajectory_id)
        chosen = [row for row in rows if attempt in (None, row["attempt"])]
        if not chosen:
            raise not_found("attempt", f"{trajectory_id}/{attempt}")
        with_blob = [row for row in chosen if row[column]]
        found = await blobs.fetch(connection, [with_blob[-1][column]]) if with_blob else {}
    if not found:
        raise ProblemError(
            404,
            f"{column}_not_stored",
            "nothing is stored of it: the attempt has not finished, or ended without a result",
        )
    return with_blob[-1], next(iter(found.values()))
