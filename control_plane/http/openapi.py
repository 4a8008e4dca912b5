"""The OpenAPI document: what FastAPI derives, with the job spec's own schema and problems for every error."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from control_plane.http.problems import CONTENT_TYPE, ProblemDetails
from headrace.client.jobspec import JobSpec

REF = "#/components/schemas/{model}"
_GENERATED = ("HTTPValidationError", "ValidationError")


def document(app: FastAPI) -> dict[str, Any]:
    """The document, made once per application."""
    if app.openapi_schema is None:
        made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schemas = made["components"]["schemas"]
        for model in (JobSpec, ProblemDetails):
            own = model.model_json_schema(by_alias=True, ref_template=REF)
            schemas.update(own.pop("$defs", {}))
            schemas[model.__name__] = own
        for name in _GENERATED:
            schemas.pop(name, None)
        for path in made["paths"].values():
            for operation in path.values():
                _use_problems(operation)
        made["components"]["schemas"] = dict(sorted(schemas.items()))
        app.openapi_schema = made
    return app.openapi_schema


def _use_problems(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    answers.pop("422", None)
    content = {CONTENT_TYPE: {"schema": {"$ref": REF.format(model=ProblemDetails.__name__)}}}
    answers["4XX"] = {"description": "The request is refused.", "content": content}
    answers["5XX"] = {"description": "The server cannot answer now; see `retryable`.", "content": content}
