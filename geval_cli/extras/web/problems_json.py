"""Errors as `application/problem+json` (RFC 9457), their schema, and the headers of every response."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from geval_cli.errors import (
    ConfigError,
    ExitCode,
    GevalError,
    JudgeError,
    Problem,
    ProviderRateLimitError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    UsageError,
)
from geval_cli.extras.web.html import error_page, refusal_page
from geval_cli.plugins import source_of_bug
from geval_cli.report.json_file import json_text

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds security and caching headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                kept = "no-cache" if scope["path"].startswith("/static/") else "no-store"
                headers.setdefault("cache-control", kept)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class RefusedError(GevalError):
    """The server refuses a request.

    Attributes:
        status: the HTTP status.
        retry_after_s: seconds to wait before retrying; None if retrying does not help.
        more: further fields of the response, for programs.
    """

    exit_code = ExitCode.USAGE

    def __init__(
        self,
        message: str,
        *,
        status: int,
        hint: str,
        retry_after_s: int | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after_s = retry_after_s
        self.more = dict(more or {})


PROBLEM_TYPE = "application/problem+json"

_ADVICE = {
    404: "see /docs and /openapi.json for the paths",
    405: "use a method from the `Allow` header",
    400: "send JSON as text in UTF-8",
}

_PAGE_ADVICE = {404: "start from the list of runs or the suites"}
"""Hints on pages, where they differ from those for programs."""

_REFUSED = frozenset({401, 403})
"""Statuses whose error page has its styles inline, since requests for style sheets may be refused too."""

_WORDS = {
    "missing": "this is required",
    "extra_forbidden": "there is no such field",
    "string_type": "this must be a string",
    "string_unicode": "this is not valid text: it contains half of a surrogate pair",
    "string_too_long": "this must have at most {max_length} characters",
    "too_short": "this must have at least {min_length} items",
    "too_long": "this must have at most {max_length} items",
    "model_attributes_type": "this must be a JSON object",
    "model_type": "this must be a JSON object",
    "dict_type": "this must be a JSON object",
    "list_type": "this must be a list",
    "tuple_type": "this must be a list",
    "bool_type": "this must be true or false",
    "bool_parsing": "this must be true or false",
    "int_type": "this must be a whole number",
    "int_parsing": "this must be a whole number",
    "int_from_float": "this must be a whole number",
    "greater_than_equal": "this must be {ge} or more",
    "less_than_equal": "this must be {le} or less",
    "float_type": "this must be a number",
    "float_parsing": "this must be a number",
    "finite_number": "this must be a finite number",
    "string_pattern_mismatch": "this must match {pattern}",
    "literal_error": "this must be {expected}",
}
"""Plain English for pydantic's errors, by error type."""

_AGAIN_S = 10
_FILLED_PATTERN = r"\S"
_EXCERPT_LENGTH = 500


def problem_response(
    status: int,
    detail: str,
    *,
    hint: str = "",
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem+json response: `detail` is one sentence, `hint` the remedy, `errors` a list of problems."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **(more or {}),
    }
    if hint:
        body["hint"] = hint
    if errors:
        body["errors"] = list(errors)
    return Response(json_text(body), status, dict(headers or {}), media_type=PROBLEM_TYPE)


def problem_answer(
    scope: Scope,
    status: int,
    detail: str,
    *,
    hint: str = "",
    errors: Sequence[Mapping[str, Any]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem as a page if a browser opens an address outside the API, else as problem+json."""
    is_read = scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/api/")
    opens_page = is_read and "text/html" in Headers(scope=scope).get("accept", "")
    if not opens_page:
        return problem_response(status, detail, hint=hint, errors=errors, headers=headers)
    reasons = "; ".join(str(error["detail"]) for error in errors)
    title = HTTPStatus(status).phrase.capitalize()
    said = f"{detail}: {reasons}" if reasons else detail
    make = refusal_page if status in _REFUSED else error_page
    page = make(status, title, said, _PAGE_ADVICE.get(status, hint))
    page.headers.update(headers or {})
    return page


def add_problem_handlers(app: FastAPI) -> None:
    """Make `app` report every error as a problem: as problem+json, or as a page to a browser."""
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(GevalError, _geval_error)
    app.add_exception_handler(Exception, _bug)


def upstream_problem(error: GevalError) -> Response:
    """Return the response for a failed judgement: 503 if the judge is not set up or may answer later, else 502."""
    if isinstance(error, ProviderRateLimitError):
        again = {"retry-after": str(math.ceil(error.retry_after_s or _AGAIN_S))}
        return problem_response(503, error.message, hint=error.hint or "try again later", headers=again)
    if isinstance(error, UsageError):
        detail = f"the judge is not ready: {error.message}"
        return problem_response(503, detail, hint=error.hint or "set it up, then restart the server")
    is_away = isinstance(error, ProviderUnavailableError | ProviderTimeoutError)
    if isinstance(error, JudgeError) and error.raw_text:
        excerpt = error.raw_text[:_EXCERPT_LENGTH]
        return problem_response(502, error.message, hint=error.hint, errors=[{"detail": excerpt}])
    return problem_response(503 if is_away else 502, error.message, hint=error.hint)


def config_errors(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Return the problems of a config for a response, each with its location."""
    return [
        {
            "detail": problem.message,
            "hint": problem.hint,
            "severity": problem.severity.value,
            "location": str(problem.location) if problem.location else None,
            "line": problem.location.line if problem.location else None,
            "column": problem.location.column if problem.location else None,
        }
        for problem in problems
    ]


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    broken = next((item for item in found if item["type"] == "json_invalid"), None)
    if broken is not None:
        detail = f"the body is not JSON: {broken['ctx']['error']} (at character {broken['loc'][-1]})"
        return problem_answer(request.scope, 400, detail, hint=_ADVICE[400])
    # One problem per place in the request. For a value of a union type, it names all allowed forms.
    places: dict[tuple[str, str], list[str]] = {}
    for item in found:
        where, *path = item["loc"]
        if where == "body":
            pointer = "".join(f"/{_escaped(str(part))}" for part in _own_path(item, error.body))
            place = "pointer", f"#{pointer}"
        else:
            place = where, str(path[0]) if path else ""
        places.setdefault(place, []).append(_in_words(item))
    errors = [{"detail": _of_all_forms(said), place: at} for (place, at), said in places.items()]
    count = f"{len(errors)} problems" if len(errors) > 1 else "1 problem"
    return problem_answer(request.scope, 422, f"{count} in the request", errors=errors)


def _own_path(item: Mapping[str, Any], body: Any) -> Iterator[str | int]:
    """Yield the keys and indexes that lead to an invalid value, without pydantic's names for the members of a union."""
    value = body
    for part in item["loc"][1:]:
        known = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
        if part in known:
            yield part
            value = value[part]
    if item["type"] == "missing" and len(item["loc"]) > 1:  # otherwise the body itself is missing
        yield item["loc"][-1]


def _of_all_forms(said: Sequence[str]) -> str:
    first, *others = dict.fromkeys(said)
    return " or ".join([first, *(words.removeprefix("this must be ") for words in others)])


def _in_words(item: Mapping[str, Any]) -> str:
    kind = item["type"]
    context = item.get("ctx", {})
    if kind == "string_pattern_mismatch" and context["pattern"] == _FILLED_PATTERN:
        return "this must not be empty"
    if kind in ("string_too_short", "too_short") and context["min_length"] == 1:
        return "this must not be empty"
    if kind in _WORDS:
        return _WORDS[kind].format_map(context)
    return str(item["msg"]).removeprefix("Value error, ")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    details = {
        400: "the body cannot be read as JSON",
        404: f"there is nothing at {request.url.path}",
        405: f"{request.method} is not possible at {request.url.path}",
    }
    detail = details.get(error.status_code, str(error.detail))
    hint = _ADVICE.get(error.status_code, "")
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["allow"] = ", ".join(allowed_methods(request.scope))
    return problem_answer(request.scope, error.status_code, detail, hint=hint, headers=headers)


async def _geval_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ConfigError):
        return problem_response(
            422, error.message, hint="see also `geval validate`", errors=config_errors(error.problems)
        )
    assert isinstance(error, GevalError)
    if isinstance(error, RefusedError):
        again = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return problem_response(error.status, error.message, hint=error.hint, headers=again, more=error.more)
    status = 404 if isinstance(error, UsageError) else 503
    return problem_response(status, error.message, hint=error.hint)


async def _bug(request: Request, error: Exception) -> Response:
    """Return a 500. This runs outside all middleware, so it adds the headers itself; the server logs the traceback."""
    hint = "report it with the traceback from the server's log"
    return problem_answer(
        request.scope, 500, f"this is a bug in {source_of_bug(error)}", hint=hint, headers=SECURITY_HEADERS
    )


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


def allowed_methods(scope: Scope) -> list[str]:
    """Return the methods that the application has at the path of `scope`, over all routes."""
    return [method for method in _METHODS if has_route({**scope, "method": method})]


def has_route(scope: Mapping[str, Any]) -> bool:
    """Return whether any route matches the method and path of `scope`."""
    return any(route.matches(dict(scope))[0] is Match.FULL for route in scope["app"].router.routes)


_AGAIN = {"Retry-After": {"description": "Seconds to wait before retrying.", "schema": {"type": "integer"}}}
_STATUS_WORDS = {
    400: "The body is not JSON.",
    401: "The server requires its token.",
    403: "Refused: the Host or the Origin header, a path outside the folder, or a config that runs code.",
    404: "Not found.",
    408: "The body took too long to arrive.",
    409: "Not possible in the current state.",
    413: "The body is too large.",
    415: "The content type is not JSON.",
    422: "The request or its config has problems; all are listed.",
    429: "Too many requests or runs are in progress.",
    502: "The judge's answer could not be used.",
    503: "The judge cannot be reached or is not set up, or the server is stopping.",
}


class RequestProblem(BaseModel):
    """One of several problems in a request, or in a config that it names."""

    model_config = ConfigDict(frozen=True, extra="allow")

    detail: str = Field(description="What is wrong.")
    pointer: str | None = Field(None, description="Where in the body, as a JSON pointer fragment.")
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
    errors: list[RequestProblem] | None = Field(None, description="All problems.")


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI `responses` entries for problems with these statuses."""
    return {status: _described(status) for status in statuses}


def answered(record: type[Struct]) -> dict[str, Any]:
    """Return the OpenAPI `responses` entry for a successful answer, one of `runs.ANSWERS` or `labels.LABEL_ANSWERS`."""
    schema = {"$ref": f"#/components/schemas/{record.__name__}"}
    return {"description": record.__doc__, "content": {"application/json": {"schema": schema}}}


def _described(status: int) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    found: dict[str, Any] = {
        "description": _STATUS_WORDS.get(status, HTTPStatus(status).phrase),
        "content": {PROBLEM_TYPE: {"schema": schema}},
    }
    if status in (HTTPStatus.TOO_MANY_REQUESTS,):
        found["headers"] = _AGAIN
    return found
