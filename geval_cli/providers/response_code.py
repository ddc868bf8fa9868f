"""JavaScript that takes the answer out of what an HTTP API sent: promptfoo's `transformResponse`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geval_cli.config.access import Access
from geval_cli.errors import ProviderShapeError
from geval_cli.providers.refusals import CallContext, HttpReply
from geval_cli.records import JsonValue
from geval_cli.scripting import javascript
from geval_cli.scripting.code import Code, CodeError, Language, find_code
from geval_cli.scripting.javascript import JavaScriptEngine
from geval_cli.scripting.script_errors import ScriptError

_NAMES = ("json", "text", "context")


def code_problem(written: str, base_dir: Path, access: Access) -> tuple[str, str] | None:
    """What keeps `written` from being run, with a hint; None when nothing does."""
    if not javascript.is_installed():
        return "a `transformResponse` that is code needs JavaScript", javascript.INSTALL_HINT
    try:
        code = find_code(written, base_dir, Language.JAVASCRIPT, access)
        if code.language is not Language.JAVASCRIPT:
            hint = "write it in JavaScript, or take the answer apart in a Python provider"
            return "`transformResponse` in Python is not run", hint
        javascript.check_javascript(code, _NAMES)
    except CodeError as error:
        return error.message, error.hint
    return None


class ResponseCode:
    """Runs one `transformResponse`. Belongs to the event loop of its first call."""

    def __init__(self, written: str, base_dir: Path, access: Access) -> None:
        self._written = written
        self._base_dir = base_dir
        self._access = access
        self._engine = JavaScriptEngine()

    @property
    def digest_text(self) -> str:
        """What decides its results, for cache keys: the code itself, of a file too."""
        try:
            return self._code().text
        except CodeError:
            return self._written

    async def answer(self, reply: HttpReply, body: JsonValue, context: CallContext) -> JsonValue:
        """What the code makes of a reply, whose JSON is `body`; of a mapping with `output`, that.

        Raises:
            ProviderShapeError: the code fails, or gives nothing.
        """
        about = {"response": {"data": body, "status": reply.status, "headers": _headers(reply)}}
        arguments = dict(zip(_NAMES, (body, reply.text, about), strict=True))
        self._access.require_code("`transformResponse`")
        try:
            found = await self._engine.call(self._code(), arguments)
        except (ScriptError, CodeError) as error:
            raise _failed(f"`transformResponse` failed on it: {error}", reply, context) from error
        if isinstance(found, dict) and "output" in found:
            found = found["output"]
        if found is None:
            raise _failed("`transformResponse` finds nothing in it", reply, context)
        return found

    def close(self) -> None:
        """End its threads. Safe to call twice."""
        self._engine.close()

    def _code(self) -> Code:
        return find_code(self._written, self._base_dir, Language.JAVASCRIPT, self._access)


def _headers(reply: HttpReply) -> Mapping[str, Any]:
    return dict(reply.headers)


def _failed(what: str, reply: HttpReply, context: CallContext) -> ProviderShapeError:
    return ProviderShapeError(
        f"{context.provider_id} answered, but {what}",
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
        hint="it sees `json`, `text` and `context`; compare it with the answer",
    )
