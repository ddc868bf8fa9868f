"""An HTTP API whose answer is extracted by the config's own JavaScript (`transformResponse`)."""

from pathlib import Path

from geval_cli.errors import Problem
from geval_cli.extras.http_provider import provider as http
from geval_cli.extras.http_provider.placeholders import RESPONSE_KEYS, is_path
from geval_cli.extras.http_provider.provider import AnswerCode, HttpProvider, code_error
from geval_cli.extras.programs.scripting import javascript
from geval_cli.extras.programs.scripting.code import Code, CodeError, Language, find_code
from geval_cli.extras.programs.scripting.javascript import JavaScriptEngine
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.records import JsonValue
from geval_cli.source.access import Access
from geval_cli.source.command import ScriptError


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems of the config and of the code in it."""
    problems = http.check(source)
    for key in RESPONSE_KEYS:
        written = source.spec.config.get(key)
        if not isinstance(written, str) or not written or is_path(written):
            continue
        problem = _code_problem(written, source.base_dir, source.access)
        if problem is not None:
            message, hint = problem
            hint = hint or "write a path such as `choices[0].message.content`, or JavaScript over `json`"
            message = f"`{key}` is neither a path nor valid code: {message}"
            problems.append(source.problem(message, key=key, hint=hint))
    return problems


def check_ready(source: ProviderSource) -> list[Problem]:
    """Return the problems that prevent requests from being signed, if the config signs them."""
    return http.check_ready(source)


def build(source: ProviderSource) -> HttpProvider:
    """Return the provider that a checked `source` describes."""
    written = next(
        item for key in RESPONSE_KEYS if (item := source.spec.config.get(key)) and not is_path(item)
    )
    return http.build(source, ResponseCode(written, source.base_dir, source.access))


_NAMES = ("json", "text", "context")


def _code_problem(written: str, base_dir: Path, access: Access) -> tuple[str, str] | None:
    """Return why `written` cannot run, and a hint; None if it can."""
    if not javascript.is_installed():
        return "code in `transformResponse` must be JavaScript", javascript.INSTALL_HINT
    try:
        code = find_code(written, base_dir, Language.JAVASCRIPT, access)
        if code.language is not Language.JAVASCRIPT:
            hint = "write it in JavaScript, or parse the answer in a Python provider"
            return "`transformResponse` cannot be Python", hint
        javascript.check_javascript(code, _NAMES)
    except CodeError as error:
        return error.message, error.hint
    return None


class ResponseCode(AnswerCode):
    """JavaScript that replaces `response_path`. Belongs to the event loop of its first call."""

    def __init__(self, written: str, base_dir: Path, access: Access) -> None:
        self._written = written
        self._base_dir = base_dir
        self._access = access
        self._engine = JavaScriptEngine()

    @property
    def digest_text(self) -> str:
        try:
            return self._code().text
        except CodeError:
            return self._written

    async def answer(self, reply: HttpResponse, body: JsonValue, context: CallContext) -> JsonValue:
        about = {"response": {"data": body, "status": reply.status, "headers": dict(reply.headers)}}
        arguments = dict(zip(_NAMES, (body, reply.text, about), strict=True))
        self._access.require_code("`transformResponse`")
        try:
            found = await self._engine.call(self._code(), arguments)
        except (ScriptError, CodeError) as error:
            raise code_error(f"`transformResponse` failed on it: {error}", reply, context) from error
        if found is None or (isinstance(found, dict) and found.get("output", "") is None):
            raise code_error("`transformResponse` finds nothing in it", reply, context)
        return found

    def close(self) -> None:
        self._engine.close()

    def _code(self) -> Code:
        return find_code(self._written, self._base_dir, Language.JAVASCRIPT, self._access)
