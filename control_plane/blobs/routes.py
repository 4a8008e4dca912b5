"""REST of blobs."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from control_plane.blobs import service
from control_plane.context import Ctx
from control_plane.http.params import API
from control_plane.http.problems import ProblemError, not_found

router = APIRouter(prefix=f"{API}/blobs", tags=["blobs"])

BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="sha256 of the bytes, lower-case hex.")]


@router.get("/{digest}", response_class=Response, responses=BYTES)
async def get_blob(context: Ctx, digest: Digest) -> Response:
    """The bytes of a blob."""
    async with context.database.connect() as connection:
        try:
            found = await service.fetch(connection, [digest])
        except service.TooMuch as error:
            raise ProblemError(422, "blob_too_large", str(error)) from error
    if digest not in found:
        raise not_found("blob", digest)
    headers = {"ETag": f'"{digest}"', "Cache-Control": "private, max-age=31536000, immutable"}
    return Response(found[digest], media_type="application/octet-stream", headers=headers)
