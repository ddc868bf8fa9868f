"""The OpenAPI document: what FastAPI finds, and what it cannot know."""

from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from geval_cli.web.api.described import ProblemDocument
from geval_cli.web.api.runs import ANSWERS

_REFERENCE = "#/components/schemas/{model}"
_OPEN_OPERATIONS = frozenset({"health"})


def describe_api(app: FastAPI, *, needs_token: bool, has_open_geval: bool = False) -> None:
    """Make `app` serve an OpenAPI document that includes its problem responses and the token, if there is one."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            _add_problem_schemas(found)
            _add_record_schemas(found)
            if needs_token:
                _add_token(found, _OPEN_OPERATIONS | ({"geval"} if has_open_geval else set()))
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def operations_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every operation of an OpenAPI document, with its `path` and `method`."""
    return [
        {**operation, "path": path, "method": method}
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


def _add_problem_schemas(document: dict[str, Any]) -> None:
    schema = ProblemDocument.model_json_schema(ref_template=_REFERENCE)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(schema.pop("$defs", {}))
    schemas["ProblemDocument"] = schema
    for item in document["paths"].values():
        for operation in item.values():
            # FastAPI lists its own form of 422 beside ours.
            for response in operation["responses"].values():
                if "application/problem+json" in response.get("content", {}):
                    response["content"].pop("application/json", None)


def _add_record_schemas(document: dict[str, Any]) -> None:
    template = _REFERENCE.format(model="{name}")
    _, schemas = msgspec.json.schema_components(ANSWERS, ref_template=template)
    document["components"]["schemas"].update(schemas)


def _add_token(document: dict[str, Any], open_operations: AbstractSet[str]) -> None:
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for operation in (item for path in document["paths"].values() for item in path.values()):
        if operation.get("operationId") not in open_operations:
            operation["security"] = [{"token": []}]
