"""The answer of any HTTP API: where the config says that it is, by a path or by code, else where most APIs have it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from msgspec.structs import replace

from geval_cli.errors import ProviderShapeError
from geval_cli.json_codec import decode_json
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.network.transport import response_error
from geval_cli.providers.wire.chat import (
    NotAnAnswer,
    error_in,
    is_error,
    parse_choices,
    refuse_other_status,
    reported_finish_reason,
    reported_logprobs,
    reports_trouble,
)
from geval_cli.providers.wire.finish_reasons import End, known_end
from geval_cli.providers.wire.placeholders import PathStep, follow_path, parse_path
from geval_cli.providers.wire.refusals import CallContext
from geval_cli.records import Choice, JsonValue


class AnswerCode(Protocol):
    """Takes the answer out of a reply by code of the config's own."""

    @property
    def digest_text(self) -> str:
        """Return the text that decides its results, for cache keys: the code itself, of a file too."""
        ...

    async def answer(self, reply: HttpResponse, body: JsonValue, context: CallContext) -> JsonValue:
        """Return the code's result for a reply, whose JSON is `body`; it may be a mapping with `output`.

        Raises:
            ProviderShapeError: the code fails, or gives nothing.
        """
        ...

    def close(self) -> None:
        """End what it runs in. Safe to call twice."""
        ...


def code_error(what: str, reply: HttpResponse, context: CallContext) -> ProviderShapeError:
    """Return the error for code that cannot take an answer out of a reply."""
    return ProviderShapeError(
        f"{context.provider_id} answered, but {what}",
        provider_id=context.provider_id,
        status=reply.status,
        body=context.secrets.excerpt(reply.text),
        hint="check it against the answer; it gets `json`, `text` and `context`",
    )


_KNOWN_ANSWERS = ("choices[0].message.content", "output", "answer", "response", "text", "content", "result")


# All of a chat completion is read where its text is looked for: whether it is whole, and the calls beside it.
_CHAT_PATH = parse_path("choices[0].message.content")


async def find_answer(
    reply: HttpResponse,
    context: CallContext,
    *,
    path: tuple[PathStep, ...] = (),
    code: AnswerCode | None = None,
    takes_all: bool = False,
) -> Choice:
    """Return the answer that is at `path` of a reply or that `code` gives, with neither where most APIs have it.

    With `takes_all` there is no looking around: without a place, all of the reply's JSON is the answer.

    Raises:
        ProviderShapeError: there is none.
    """
    if code is not None:
        made = await code.answer(reply, json_of(reply), context)
        if not isinstance(made, dict) or "output" not in made:
            return _choice(made)
        if made.get("error"):
            raise code_error(f"`transformResponse` reported an error: {made['error']}", reply, context)
        beside = context.secrets.hide_in({key: item for key, item in made.items() if key != "output"})
        logprobs = reported_logprobs(beside)
        reason = reported_finish_reason(beside)
        choice = _choice(made["output"])
        return replace(choice, finish_reason=reason, token_logprobs=logprobs, reported=beside)
    try:
        value = decode_json(reply.body)
    except ValueError as error:
        if path:
            raise response_error("an answer that is not JSON", reply, context) from error
        return Choice(reply.text)
    if isinstance(value, dict) and (path == _CHAT_PATH or not (path or takes_all)):
        answered = _chat_choice(value, reply, context)
        if answered is not None:
            return answered
    end = _end_beside(value, path, reply, context) if isinstance(value, dict) and not takes_all else None
    if path:
        found = _follow(value, path, reply, context)
    elif takes_all:
        found = value or reply.text
    else:
        found = _known_answer(value, reply)
    if found is None:
        raise response_error("an answer that is null", reply, context)
    choice = _choice(found)
    return choice if end is None else replace(choice, finish_reason=end.value)


def _chat_choice(value: Mapping[str, Any], reply: HttpResponse, context: CallContext) -> Choice | None:
    """Return the answer of a chat API; None where this is none, or has other data in the place of a text.

    Raises:
        ProviderResponseError: there is an error next to the answer, or it is none.
    """
    if reports_trouble(value):
        raise response_error("an error instead of an answer", reply, context)
    listed = value.get("choices")
    first = listed[0] if isinstance(listed, list) and listed else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(message, dict) or not isinstance(message.get("content"), str | list | None):
        return None
    _refuse_wrong(value, reply, context)
    choices, wrong = parse_choices(value)
    if not choices:
        raise response_error(context.secrets.redact(wrong), reply, context)
    return choices[0]


# Where the APIs of vendors say why an answer ended, of which a path takes the text alone.
_ENDS = tuple(
    map(
        parse_path,
        (
            "choices[0].finish_reason",
            "candidates[0].finishReason",
            "stop_reason",
            "stopReason",
            "done_reason",
            "finish_reason",
            "incomplete_details.reason",
        ),
    )
)


_ANSWERS = (parse_path("choices[0]"), parse_path("candidates[0]"))


def _refuse_wrong(part: Mapping[str, Any], reply: HttpResponse, context: CallContext) -> None:
    """Raise ProviderResponseError for a part of a vendor's reply that says of itself that it is no whole answer."""
    if error_in(part) is not None:
        raise response_error("an error next to the answer", reply, context)
    try:
        refuse_other_status(part)
    except NotAnAnswer as error:
        raise response_error(context.secrets.redact(str(error)), reply, context) from error


def _end_beside(
    value: Mapping[str, Any], path: tuple[PathStep, ...], reply: HttpResponse, context: CallContext
) -> End | None:
    """Return why the answer at a path ended; None where nothing says so in a vendor's words.

    Raises:
        ProviderResponseError: it has not ended, or there is an error beside it.
    """
    if path[:1] != ("error",) and is_error(value.get("error")):
        raise response_error("an error next to the answer", reply, context)
    reasons: list[Any] = [value.get("status")] if isinstance(value.get("output"), list) else []
    for known in _ENDS:
        with suppress(LookupError):
            reasons.append(follow_path(value, known))
    ends = [end for reason in reasons if isinstance(reason, str) and (end := known_end(reason)) is not None]
    for known in _ANSWERS:
        with suppress(LookupError):
            found = follow_path(value, known)
            if isinstance(found, dict):
                _refuse_wrong(found, reply, context)
    is_open = value.get("done") is False  # Ollama
    if is_open or not all(end.is_answer for end in ends):
        raise response_error("no whole answer", reply, context)
    return ends[-1] if ends else None


def _known_answer(value: Any, reply: HttpResponse) -> JsonValue:
    """Return the answer where most APIs have it, else all of the reply; None when they have null there."""
    if not isinstance(value, dict):
        return value
    is_null = False
    for known in _KNOWN_ANSWERS:
        try:
            found = follow_path(value, parse_path(known))
        except LookupError:
            continue
        if isinstance(found, str):
            return found
        # A null where one API has its answer may be beside the real answer of another: keep looking.
        is_null = is_null or found is None
    return None if is_null else reply.text


def json_of(reply: HttpResponse) -> Any:
    """Return the body as JSON; None when it is none."""
    try:
        return decode_json(reply.body)
    except ValueError:
        return None


def _follow(value: Any, path: tuple[PathStep, ...], reply: HttpResponse, context: CallContext) -> Any:
    try:
        return follow_path(value, path)
    except LookupError as error:
        message = f"{context.provider_id} sent JSON in which `response_path` finds nothing: {error}"
        raise ProviderShapeError(
            message,
            provider_id=context.provider_id,
            status=reply.status,
            body=context.secrets.excerpt(reply.text),
            hint="check `response_path` against the answer",
        ) from error


def _choice(value: JsonValue) -> Choice:
    if isinstance(value, str):
        return Choice(value)
    return Choice(json.dumps(value, ensure_ascii=False), is_data=value is not None)
