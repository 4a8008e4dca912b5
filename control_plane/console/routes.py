"""The console's files. Everything on the page comes from the public API and is set as text, never as markup."""

from functools import cache
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache"}


@cache
def _read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@router.get("/")
async def index() -> Response:
    """The page."""
    return _file("index.html")


Name = Literal[
    "console.js",
    "job.js",
    "success.js",
    "time.js",
    "stock.js",
    "fleet.js",
    "trajectory.js",
    "charts.js",
    "dom.js",
    "console.css",
    "icon.svg",
]


@router.get("/console/{name}")
async def static(name: Name) -> Response:
    """A file of the page."""
    return _file(name)


def _file(name: str) -> Response:
    return Response(_read(name), media_type=TYPES[name.rpartition(".")[2]], headers=HEADERS)
