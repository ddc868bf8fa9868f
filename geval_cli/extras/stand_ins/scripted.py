"""`scripted:replies.yaml`: a provider that reads its answers from a file, for offline demos and tests."""

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from geval_cli.errors import ConfigError, Problem, ProviderRequestError
from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.providers.network.messages import HttpResponse
from geval_cli.providers.options import LIMIT_KEYS, check_settings, limits_of, own_settings
from geval_cli.providers.prices import FREE
from geval_cli.providers.wire.chat import made_call_id, tool_call, whole_text
from geval_cli.providers.wire.refusals import CallContext, refusal_error
from geval_cli.records import (
    Choice,
    JsonValue,
    Message,
    ModelRequest,
    ModelResponse,
    TokenAlternative,
    TokenLogprob,
    Usage,
)
from geval_cli.source.access import Access, OutsideError, open_regular
from geval_cli.source.source_map import Document, SourcePath
from geval_cli.source.yaml_source import read_yaml

_ENTRY_KEYS = ("match", "reply", "replies", "logprobs", "error", "latency_ms", "default", "calls")
_ERROR_KEYS = ("status", "message", "retry_after_s")
_HTTP_ERRORS = range(400, 600)


class ScriptedError(Struct, frozen=True):
    """An HTTP error returned by a scripted provider."""

    status: int
    message: str = "scripted error"
    retry_after_s: float | None = None


class ScriptEntry(Struct, frozen=True):
    """The answer to the prompts that `match` matches; "" matches all.

    Attributes:
        replies: the possible answers; the sample and repeat indexes pick one.
        logprobs: the probability (above 0, at most 1) of each token that could be where the reply has one of them.
        calls: the tool calls of the answer, in the format of the chat API.
    """

    match: str
    replies: tuple[str, ...] = ()
    logprobs: Mapping[str, float] | None = None
    error: ScriptedError | None = None
    latency_ms: float = 0.0
    calls: tuple[Mapping[str, JsonValue], ...] = ()

    def fits(self, prompt: str) -> bool:
        """Return whether `match` occurs in the prompt, as plain text or as a regular expression."""
        if self.match in prompt:
            return True
        try:
            return re.search(self.match, prompt, re.DOTALL) is not None
        except re.error:
            return False


def read_script(path: Path, access: Access, *, shown_as: str) -> tuple[ScriptEntry, ...]:
    """Return the entries of the file in order, with those that match every prompt last.

    Raises:
        ConfigError: the file cannot be read or is invalid; lists every problem.
    """
    try:
        with open_regular(path, access) as stream:
            text = stream.read().decode("utf-8-sig")
    except OutsideError as error:
        raise ConfigError([error.problem(None)]) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or error) if isinstance(error, OSError) else "it is not UTF-8 text"
        problem = Problem(f"the replies file {shown_as} cannot be read: {reason}", hint="check the path")
        raise ConfigError([problem]) from error
    return _ScriptReader(read_yaml(text, shown_as)).read()


class _ScriptReader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._problems: list[Problem] = []

    def read(self) -> tuple[ScriptEntry, ...]:
        value, place = self._document.value, self._document.place
        last: list[ScriptEntry] = []
        if isinstance(value, dict):
            for key in value.keys() - {"replies", "default"}:
                self._report(f"unknown key `{key}`", place, key, "allowed: replies, default")
            if "default" in value:
                last.append(ScriptEntry("", self._texts([value["default"]])))
            value = value.get("replies", [])
            place = place.child("replies")
        if not isinstance(value, list):
            self._report("the replies must be a list", place, None, "begin each with `- match: ...`")
            value = []
        entries = [
            entry for index, item in enumerate(value) if (entry := self._entry(item, place.child(index)))
        ]
        if self._problems:
            raise ConfigError(self._problems)
        return (
            *[item for item in entries if item.match],
            *[item for item in entries if not item.match],
            *last,
        )

    def _report(self, message: str, place: SourcePath, key: str | None, hint: str = "") -> None:
        location = place.value() if key is None else place.key(key)
        self._problems.append(Problem(message, location, hint))

    def _entry(self, item: Any, place: SourcePath) -> ScriptEntry | None:
        if not isinstance(item, dict):
            self._report("each reply must be a mapping", place, None, "write `match: ...` and `reply: ...`")
            return None
        for key in item.keys() - set(_ENTRY_KEYS):
            self._report(f"unknown key `{key}`", place, key, f"allowed: {', '.join(_ENTRY_KEYS)}")
        if not isinstance(item.get("match", ""), str):
            self._report("`match` must be a string", place, "match")
            return None
        given = [key for key in ("reply", "replies", "default") if key in item]
        if len(given) > 1:
            self._report(f"`{given[0]}` and `{given[1]}` cannot be combined", place, given[1])
        if "replies" in item:
            if isinstance(item["replies"], list) and item["replies"]:
                replies = self._texts(item["replies"])
            else:
                self._report("`replies` must be a list with at least one string", place, "replies")
                replies = ("",)
        else:
            replies = self._texts([item[given[0]]]) if given else ()
        logprobs = self._logprobs(item, replies, place)
        error = self._error(item, place)
        if not replies and logprobs:
            replies = (max(logprobs, key=logprobs.__getitem__),)
        calls = self._calls(item, place)
        if calls and not replies:
            replies = ("",)
        if not replies and "error" not in item and "calls" not in item:
            self._report(
                "the entry has no reply", place, None, "give it `reply`, `replies`, `calls` or `error`"
            )
        value = item.get("latency_ms", 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            self._report("`latency_ms` must be a number of at least 0", place, "latency_ms")
            latency = 0.0
        else:
            latency = float(value)
        return ScriptEntry(
            item.get("match", ""),
            replies,
            logprobs=logprobs,
            error=error,
            latency_ms=latency,
            calls=calls,
        )

    def _calls(self, item: Mapping[str, Any], place: SourcePath) -> tuple[Mapping[str, JsonValue], ...]:
        value = item.get("calls", [])
        if not isinstance(value, list) or not all(
            isinstance(call, dict) and isinstance(call.get("name"), str) and call.keys() <= {"name", "args"}
            for call in value
        ):
            self._report("`calls` must be a list of {name, args}", place, "calls")
            return ()
        return tuple(
            tool_call(call["name"], call.get("args"), made_call_id(number))
            for number, call in enumerate(value)
        )

    @staticmethod
    def _texts(values: list[Any]) -> tuple[str, ...]:
        return tuple(
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values
        )

    def _logprobs(
        self, item: Mapping[str, Any], replies: tuple[str, ...], place: SourcePath
    ) -> Mapping[str, float] | None:
        value = item.get("logprobs")
        if value is None:
            return None
        is_valid = (
            isinstance(value, dict)
            and bool(value)
            and all(
                isinstance(p, int | float) and not isinstance(p, bool) and 0 < p <= 1 for p in value.values()
            )
        )
        if not is_valid:
            self._report("`logprobs` must map tokens to probabilities above 0, at most 1", place, "logprobs")
            return None
        for reply in replies:
            if not any(token in reply for token in value):
                self._report(f"none of these tokens is in the reply {reply!r}", place, "logprobs")
        return {str(token): float(probability) for token, probability in value.items()}

    def _error(self, item: Mapping[str, Any], place: SourcePath) -> ScriptedError | None:
        value = item.get("error")
        if value is None:
            return None
        if not isinstance(value, dict) or not value.keys() <= set(_ERROR_KEYS):
            self._report(f"`error` must be a mapping of {', '.join(_ERROR_KEYS)}", place, "error")
            return None
        status = value.get("status", 500)
        if not isinstance(status, int) or status not in _HTTP_ERRORS:
            self._report("`status` must be an HTTP error status, 400 to 599", place.child("error"), "status")
            return None
        wait = value.get("retry_after_s")
        return ScriptedError(
            status, str(value.get("message", "scripted error")), None if wait is None else float(wait)
        )


_EXCERPT_CHARS = 200


class ScriptedProvider:
    """Answers from a script, with the first entry that matches the texts of all messages.

    An entry with several replies gives the one at (sample index + repeat index) modulo their number, so that the answer
    never depends on the order of calls.
    """

    price = FREE
    is_cacheable = False

    def __init__(
        self,
        script: tuple[ScriptEntry, ...],
        *,
        provider_id: str = "scripted",
        label: str = "scripted",
        limits: ProviderLimits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.id = provider_id
        self.label = label
        self.limits = limits or ProviderLimits()
        digest = hashlib.sha256(repr(script).encode()).hexdigest()
        self.identity = ProviderIdentity("scripted", digest, "")
        self._script = script
        self._sleep = sleep

    async def complete(self, request: ModelRequest) -> ModelResponse:
        prompt = whole_text(request.messages)
        entry = next((item for item in self._script if item.fits(prompt)), None)
        if entry is None:
            message = f"{self.id} has no reply for the prompt {prompt[:_EXCERPT_CHARS]!r}"
            hint = "add an entry whose `match` occurs in it, or a `default`"
            raise ProviderRequestError(message, provider_id=self.id, hint=hint)
        if entry.latency_ms:
            await self._sleep(entry.latency_ms / 1000)
        if entry.error is not None:
            sent = {*request.params, *(("logprobs", "top_logprobs") if request.want_logprobs else ())}
            context = CallContext(self.id, sent_parameters=sent | {"n", "response_format"})
            error = entry.error
            headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
            http_reply = HttpResponse(
                error.status, headers, json.dumps({"error": {"message": error.message}}).encode()
            )
            raise refusal_error(http_reply, context, now_s=0.0)
        return self._respond(entry, request, prompt)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""

    def _respond(self, entry: ScriptEntry, request: ModelRequest, prompt: str) -> ModelResponse:
        choices = []
        for sample in request.sample_indexes:
            text = entry.replies[(sample + request.repeat_index) % len(entry.replies)]
            wants = request.want_logprobs and entry.logprobs is not None
            logprobs = _token_logprobs(text, entry.logprobs or {}) if wants else None
            if not entry.calls:
                choices.append(Choice(text, "stop", logprobs))
                continue
            message = Message("assistant", text, {"tool_calls": list(entry.calls)})
            said = text or json.dumps(entry.calls, ensure_ascii=False)
            choices.append(Choice(said, "tool_calls", logprobs, tool_calls=entry.calls, message=message))
        # Words count as tokens: good enough for a demo, and the same on every machine.
        output_tokens = sum(len(choice.text.split()) for choice in choices)
        return ModelResponse(
            choices=tuple(choices),
            usage=Usage(len(choices), len(prompt.split()), output_tokens),
            latency_ms=entry.latency_ms,
            dropped=("logprobs",) if request.want_logprobs and entry.logprobs is None else (),
        )


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the provider's config and its replies file."""
    problems = check_settings(source, LIMIT_KEYS)
    if not source.name:
        hint = "write its path after the colon: `scripted:replies.yaml`"
        return [*problems, source.problem("the scripted provider has no replies file", hint=hint)]
    try:
        read_script(_path(source), source.access, shown_as=_shown_path(source))
    except ConfigError as error:
        for problem in error.problems:
            located = problem.location is not None
            problems.append(problem if located else source.problem(problem.message, hint=problem.hint))
    return problems


def build(source: ProviderSource) -> ScriptedProvider:
    """Return the provider that `source` describes.

    Raises:
        ConfigError: the replies file is missing or invalid.
    """
    return ScriptedProvider(
        read_script(_path(source), source.access, shown_as=_shown_path(source)),
        provider_id=source.id,
        label=source.label,
        limits=limits_of(own_settings(source.spec.config, LIMIT_KEYS)),
    )


def _path(source: ProviderSource) -> Path:
    return source.base_dir / source.name.removeprefix("file://")


def _shown_path(source: ProviderSource) -> str:
    return source.name.removeprefix("file://")


def _token_logprobs(text: str, probabilities: Mapping[str, float]) -> tuple[TokenLogprob, ...]:
    """Split `text` into tokens; the last occurrence of a given token carries all of them as alternatives."""
    start, length, chosen = max((text.rfind(token), len(token), token) for token in probabilities)
    if start < 0:
        return (TokenLogprob(text, 0.0, (TokenAlternative(text, 0.0),)),)
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    alternatives = tuple(TokenAlternative(token, math.log(value)) for token, value in ranked)
    rated = TokenLogprob(chosen, math.log(probabilities[chosen]), alternatives)
    around = [text[:start], text[start + length :]]
    before, after = (TokenLogprob(part, 0.0, (TokenAlternative(part, 0.0),)) for part in around)
    return tuple(token for token in (before, rated, after) if token.text)
