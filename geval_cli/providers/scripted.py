"""`scripted:replies.yaml`: a provider whose answers stand in a file, for offline demos and tests."""

import asyncio
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from geval_cli.errors import ConfigError, Problem, ProviderRequestError
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.conversation import whole_text
from geval_cli.providers.options import LIMIT_KEYS, check_settings, limits_of, own_settings
from geval_cli.providers.prices import FREE
from geval_cli.providers.refusals import CallContext, HttpReply, refusal_error
from geval_cli.providers.script_file import ScriptedError, ScriptEntry, read_script
from geval_cli.providers.source import ProviderSource
from geval_cli.records import (
    Choice,
    ModelRequest,
    ModelResponse,
    TokenAlternative,
    TokenLogprob,
    Usage,
)

_EXCERPT_CHARS = 200


class ScriptedProvider:
    """Answers from a script: the first entry that fits the prompt (all messages' texts) says what comes back.

    An entry with several replies gives the one whose number is sample index + repeat index, going round, so that
    the answer never depends on the order of calls.
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
            raise refusal_error(_http_reply(entry.error), context, now_s=0.0)
        return self._respond(entry, request, prompt)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _respond(self, entry: ScriptEntry, request: ModelRequest, prompt: str) -> ModelResponse:
        choices = []
        for sample in request.sample_indexes:
            text = entry.replies[(sample + request.repeat_index) % len(entry.replies)]
            wants = request.want_logprobs and entry.logprobs is not None
            choices.append(
                Choice(text, "stop", _token_logprobs(text, entry.logprobs or {}) if wants else None)
            )
        # Tokens are counted as words: good enough for a demo, and the same on every machine.
        output_tokens = sum(len(choice.text.split()) for choice in choices)
        return ModelResponse(
            choices=tuple(choices),
            usage=Usage(len(choices), len(prompt.split()), output_tokens),
            latency_ms=entry.latency_ms,
            dropped=("logprobs",) if request.want_logprobs and entry.logprobs is None else (),
        )


def check(source: ProviderSource) -> list[Problem]:
    """What is wrong with the provider's config and with its file of replies."""
    problems = check_settings(source, LIMIT_KEYS)
    if not source.name:
        hint = "write its path after the colon: `scripted:replies.yaml`"
        return [*problems, source.problem("the scripted provider names no file of replies", hint=hint)]
    try:
        read_script(_path(source), source.access, shown_as=_shown_path(source))
    except ConfigError as error:
        for problem in error.problems:
            located = problem.location is not None
            problems.append(problem if located else source.problem(problem.message, hint=problem.hint))
    return problems


def build(source: ProviderSource) -> ScriptedProvider:
    """The provider that `source` describes.

    Raises:
        ConfigError: the file of replies is missing or broken.
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


def _http_reply(error: ScriptedError) -> HttpReply:
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    return HttpReply(error.status, headers, json.dumps({"error": {"message": error.message}}).encode())


def _token_logprobs(text: str, probabilities: Mapping[str, float]) -> tuple[TokenLogprob, ...]:
    """`text` as tokens, the last place where one of the given tokens stands carrying all of them as alternatives."""
    start, length, chosen = max((text.rfind(token), len(token), token) for token in probabilities)
    if start < 0:
        return (TokenLogprob(text, 0.0, (TokenAlternative(text, 0.0),)),)
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    alternatives = tuple(TokenAlternative(token, math.log(value)) for token, value in ranked)
    rated = TokenLogprob(chosen, math.log(probabilities[chosen]), alternatives)
    around = [text[:start], text[start + length :]]
    before, after = (TokenLogprob(part, 0.0, (TokenAlternative(part, 0.0),)) for part in around)
    return tuple(token for token in (before, rated, after) if token.text)
