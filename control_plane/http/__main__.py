"""`python -m control_plane.http > openapi.json`: the OpenAPI document of this version."""

import json
import sys

from control_plane.app import build_routes


def text() -> str:
    """The document as it is checked in."""
    return json.dumps(build_routes().openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
