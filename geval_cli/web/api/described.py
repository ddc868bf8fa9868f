"""How the OpenAPI document describes what goes wrong."""

from http import HTTPStatus
from typing import Any

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from geval_cli.web.problems_json import PROBLEM_TYPE

_AGAIN = {"Retry-After": {"description": "Seconds until another try.", "schema": {"type": "integer"}}}
_WORDS = {
    400: "The body is no JSON.",
    401: "The server wants its token.",
    403: "Refused: the Host or the Origin header, a path outside the folder, or a config that runs code.",
    404: "There is no such thing.",
    408: "The body took too long to arrive.",
    409: "Not possible as things stand.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "The request, or the config that it names, has problems; all of them are listed.",
    429: "Too much is under way.",
    502: "The judge answered with something that is of no use.",
    503: "The judge cannot be reached or is not set up, or the server is stopping.",
}


class RequestProblem(BaseModel):
    """One of several things that are wrong with a request, or with a config that it names."""

    model_config = ConfigDict(frozen=True, extra="allow")

    detail: str = Field(description="What is wrong.")
    pointer: str | None = Field(None, description="Where in the body, as the fragment of a JSON pointer.")
    location: str | None = Field(None, description="Where in a config: file, line and column.")
    hint: str | None = Field(None, description="What to do about it.")


class ProblemDocument(BaseModel):
    """A problem (RFC 9457)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    hint: str | None = Field(None, description="What to do about it.")
    errors: list[RequestProblem] | None = Field(None, description="Every single problem.")


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the entries of `responses` for `statuses`."""
    return {status: _described(status) for status in statuses}


def answered(record: type[Struct]) -> dict[str, Any]:
    """Return the entry of `responses` for an answer that is one of `runs.ANSWERS`."""
    schema = {"$ref": f"#/components/schemas/{record.__name__}"}
    return {"description": record.__doc__, "content": {"application/json": {"schema": schema}}}


def _described(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    found: dict[str, Any] = {
        "description": _WORDS.get(status, HTTPStatus(status).phrase),
        "content": {PROBLEM_TYPE: {"schema": schema}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS,):
        found["headers"] = _AGAIN
    return found
