"""The OpenAPI document, with what FastAPI cannot find out by itself; and `/docs`, the same as a page."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from msgspec import Struct

from geval_cli.extras.web.api.labels import LABEL_ANSWERS
from geval_cli.extras.web.api.runs import ANSWERS
from geval_cli.extras.web.html import render_page
from geval_cli.extras.web.problems_json import ProblemDocument

_REFERENCE = "#/components/schemas/{model}"
_OPEN_OPERATIONS = frozenset({"health"})


def describe_api(app: FastAPI, *, needs_token: bool, has_open_geval: bool = False) -> None:
    """Make `app` serve an OpenAPI document that includes problem responses and, if needed, the token."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
            schema = ProblemDocument.model_json_schema(ref_template=_REFERENCE)
            schemas = found.setdefault("components", {}).setdefault("schemas", {})
            schemas.update(schema.pop("$defs", {}))
            schemas["ProblemDocument"] = schema
            for item in found["paths"].values():
                for operation in item.values():
                    # FastAPI adds its own form of 422 to ours.
                    for response in operation["responses"].values():
                        if "application/problem+json" in response.get("content", {}):
                            response["content"].pop("application/json", None)
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


def _add_record_schemas(document: dict[str, Any]) -> None:
    template = _REFERENCE.format(model="{name}")
    _, schemas = msgspec.json.schema_components((*ANSWERS, *LABEL_ANSWERS), ref_template=template)
    for schema in schemas.values():
        _spell_out_arrays(schema)
    document["components"]["schemas"].update(schemas)


def _spell_out_arrays(schema: Any) -> None:
    """Rewrite arrays in place for client generators: `items` is always a schema, or absent beside `prefixItems`."""
    if isinstance(schema, dict):
        if schema.get("items") is False and schema.get("maxItems") == len(schema.get("prefixItems", ())):
            del schema["items"]
        if schema.get("type") == "array" and "prefixItems" not in schema:
            schema.setdefault("items", {})
        for part in schema.values():
            _spell_out_arrays(part)
    elif isinstance(schema, list):
        for part in schema:
            _spell_out_arrays(part)


def _add_token(document: dict[str, Any], open_operations: AbstractSet[str]) -> None:
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for operation in (item for path in document["paths"].values() for item in path.values()):
        if operation.get("operationId") not in open_operations:
            operation["security"] = [{"token": []}]


router = APIRouter()

_JSON = "application/json"


class Field(Struct, frozen=True):
    """A parameter, or a field of a JSON object."""

    name: str
    kind: str
    is_required: bool
    text: str


class Answer(Struct, frozen=True):
    """A possible response of an operation."""

    status: str
    text: str
    media_types: tuple[str, ...]


class Operation(Struct, frozen=True):
    """One method of one path."""

    anchor: str
    method: str
    path: str
    title: str
    tag: str
    text: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    example: str
    answers: tuple[Answer, ...]
    answer_fields: tuple[Field, ...]


@router.get("/docs", include_in_schema=False)
async def show_documentation(request: Request) -> HTMLResponse:
    """Return the page that documents the HTTP API."""
    document = request.app.openapi()
    operations = [_operation(item, document) for item in operations_of(document)]
    return render_page("docs.html", section="docs", operations=operations)


def _operation(item: Mapping[str, Any], document: Mapping[str, Any]) -> Operation:
    body = _resolved(_content_schema(item.get("requestBody", {})), document)
    success = next(answer for status, answer in item["responses"].items() if status.startswith("2"))
    # An example body, made from the examples of its fields; empty if there are none.
    found = {
        name: part["examples"][0] for name, part in body.get("properties", {}).items() if "examples" in part
    }
    example = json.dumps(found, indent=2, ensure_ascii=False) if found else ""
    return Operation(
        anchor=item["operationId"],
        method=item["method"].upper(),
        path=item["path"],
        title=item["summary"],
        tag=item["tags"][0],
        text=item.get("description", ""),
        parameters=tuple(_parameter(parameter, document) for parameter in item.get("parameters", [])),
        body=_fields(body, document),
        example=example,
        answers=tuple(
            Answer(status, answer.get("description", ""), tuple(answer.get("content", {})))
            for status, answer in sorted(item["responses"].items())
        ),
        answer_fields=_fields(_resolved(_content_schema(success), document), document),
    )


def _content_schema(part: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = part.get("content", {}).get(_JSON, {}).get("schema", {})
    return schema


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = document["components"]["schemas"][name] if name else schema
    return found


def _parameter(parameter: Mapping[str, Any], document: Mapping[str, Any]) -> Field:
    text = parameter.get("description") or parameter["schema"].get("description", "")
    kind = f"{parameter['in']}, {_kind(parameter['schema'], document)}"
    return Field(parameter["name"], kind, parameter.get("required", False), text)


def _fields(schema: Mapping[str, Any], document: Mapping[str, Any]) -> tuple[Field, ...]:
    required = schema.get("required", [])
    return tuple(
        Field(name, _kind(part, document), name in required, part.get("description", ""))
        for name, part in schema.get("properties", {}).items()
    )


def _kind(schema: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return a schema in a few words, such as `text, list of text or nothing`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        kinds = [_kind(part, document) for part in schema["anyOf"]]
        return ", ".join(kinds[:-1]) + f" or {kinds[-1]}"
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), document)}"
    words = {"string": "text", "null": "nothing", "object": "object", None: "any"}
    kind = schema.get("type")
    return words.get(kind, str(kind))
