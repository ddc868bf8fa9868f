"""`local:smollm2`, `local:/path/to/model.gguf`: a model in this process, called like any OpenAI-compatible server.

`local:embedding:MODEL` turns texts into vectors with the same files.
"""

import asyncio
import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from geval_cli.errors import GevalError, ModelFetchError, ProviderRequestError, ProviderUnavailableError
from geval_cli.extras.local.llama_server import (
    LlamaPool,
    LlamaServer,
    LlamaSettings,
    TokenBudget,
    start_llama_server,
)
from geval_cli.extras.local.models import (
    EXTRA_HINT,
    KNOWN_MODELS,
    LOCAL_KEYS,
    FetchControl,
    Progress,
    ensure,
    model_path,
)
from geval_cli.extras.openai_apis import EmbeddingProvider
from geval_cli.providers.base import (
    ProviderIdentity,
    ProviderLimits,
    ProviderSource,
    is_embedding,
    local_name,
)
from geval_cli.providers.options import is_count, limits_of, own_settings, wire_parameters
from geval_cli.providers.presets import Endpoint
from geval_cli.providers.prices import FREE
from geval_cli.providers.redaction import Secrets
from geval_cli.providers.wire.chat import whole_text
from geval_cli.providers.wire.endpoint_provider import EndpointProvider
from geval_cli.providers.wire.openai import OpenAICompatibleProvider
from geval_cli.records import JsonValue, Message, ModelRequest, ModelResponse, Purpose, Role

_TIMEOUT_S = 900.0
"""A long prompt takes a minute on a slow CPU, and up to four wait for one another."""

_LIBRARY_HINT = "install that library of the system, such as with `apt-get install libgomp1`"
# llama.cpp's messages for two failures that its status and code do not distinguish from others.
_CONTEXT_FULL = "Context size has been exceeded"
_TEXT_TOO_LONG = "too large to process"
_EMBEDDED_TOKENS = 2048
# Fewer than English's four: other languages have shorter tokens, and requests fail if the estimate is too low.
_BYTES_PER_TOKEN = 3
# The markup that a chat template adds to the messages.
_TEMPLATE_TOKENS = 64
# Assumed without a limit or with a high one: reserving all of it would mean one answer at a time.
_LIKELY_ANSWER_TOKENS = 1024

# Models belong to the process, not to a run: all providers of the same file share one copy in memory.
_LOADED = LlamaPool(start_llama_server)


@dataclass(frozen=True, slots=True)
class LocalSource:
    """The model of a local provider: the file at `path`, or the known model `name` if there is no path.

    With `embeds`, it turns texts into vectors instead of answering them.
    """

    id: str
    label: str
    name: str
    path: Path | None
    settings: Mapping[str, Any]
    wire: Mapping[str, Any]
    env: Mapping[str, str] = field(repr=False)
    embeds: bool = False

    @property
    def llama(self) -> LlamaSettings:
        """Return the settings to load the model with; the path of a known model is not filled in yet."""
        names = ("n_ctx", "n_parallel", "n_threads")
        given = {name: self.settings[name] for name in names if name in self.settings}
        if self.embeds:
            given = {"n_ctx": _EMBEDDED_TOKENS, "pooling": self.settings.get("pooling", "model"), **given}
        return LlamaSettings(self.path or Path(), **given)


class LocalProvider:
    """A llama.cpp model. The first request loads it in a thread, after fetching it if necessary."""

    price = FREE
    is_cacheable = True

    def __init__(
        self, source: LocalSource, *, progress: Progress | None = None, pool: LlamaPool = _LOADED
    ) -> None:
        self.id = source.id
        self.label = source.label
        # Identifies the model by content: the known SHA-256, else the file's path, size and modification time.
        path = source.path
        if path is None:
            endpoint = f"sha256:{KNOWN_MODELS[source.name].sha256}"
        else:
            try:
                stat = path.stat()
                endpoint = f"{path.resolve()}#{stat.st_size}-{stat.st_mtime_ns}"
            except OSError:
                endpoint = str(path)
        if source.embeds:
            self.identity = ProviderIdentity(
                "local-embedding", source.name, f"{endpoint}#{source.llama.pooling}", source.wire
            )
        else:
            self.identity = ProviderIdentity("local", source.name, endpoint, source.wire)
        self._source = source
        self._pool = pool
        self._control = FetchControl(progress, threading.Event())
        self._starting: asyncio.Task[LlamaSettings] | None = None
        self._inner: EndpointProvider | None = None
        self._budget: TokenBudget | None = None
        self._raters: TokenBudget | None = None

    def __repr__(self) -> str:
        return f"LocalProvider({self.id!r})"

    @property
    def limits(self) -> ProviderLimits:
        parallel = self._source.llama.n_parallel
        return limits_of(self._source.settings, timeout_s=_TIMEOUT_S, max_concurrency=parallel)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        if self._inner is None or self._budget is None or self._raters is None:
            raise ProviderRequestError(f"{self.id} is closed", provider_id=self.id)
        if self._source.embeds:
            inner = self._inner
            budget = self._budget
            try:
                async with budget.hold(
                    len(whole_text(request.messages)) // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS
                ):
                    response = await inner.complete(request)
            except ProviderUnavailableError as error:
                if _TEXT_TOO_LONG not in error.body:
                    raise
                message = (
                    f"the text is longer than the {self._source.llama.n_ctx} tokens that {self.id} accepts"
                )
                hint = "shorten it, or raise `n_ctx` if the model supports more"
                raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error
            return replace(response, model=self._source.name)
        asked = request
        is_ours = self._source.path is None
        request = shape_request(request, self._source.wire, bounds_lists=is_ours)
        is_rating = request.ratings and request.response_schema is None
        turn = self._raters.hold(1) if is_rating else nullcontext()
        try:
            async with turn, self._budget.hold(self._estimate_tokens(request)):
                response = await self._inner.complete(request)
        except ProviderUnavailableError as error:
            if _CONTEXT_FULL not in error.body:
                raise
            # Concurrent answers were longer than estimated and filled the context: retry with one answer, alone.
            async with self._budget.hold(self._budget.capacity):
                alone = replace(request, sample_indexes=request.sample_indexes[:1])
                response = await self._inner.complete(alone)
        return replace(shape_response(asked, response), model=self._source.name)

    async def aclose(self) -> None:
        starting, self._starting = self._starting, None
        if starting is None:
            return
        if self._control.cancel is not None:
            self._control.cancel.set()
        settings = None
        with suppress(GevalError):
            settings = await starting
        inner, self._inner = self._inner, None
        if inner is not None and settings is not None:
            await inner.aclose()
            del inner
            await asyncio.to_thread(self._pool.release, settings)

    def _estimate_tokens(self, request: ModelRequest) -> int:
        params = {**self._source.wire, **request.params}
        limits = [
            params[name] for name in ("max_tokens", "max_completion_tokens") if is_count(params.get(name))
        ]
        answer_tokens = min([*limits, _LIKELY_ANSWER_TOKENS]) if limits else _LIKELY_ANSWER_TOKENS
        prompt_bytes = len(whole_text(request.messages).encode("utf-8", "replace"))
        answers = min(len(request.sample_indexes), self._source.llama.n_parallel)
        return prompt_bytes // _BYTES_PER_TOKEN + _TEMPLATE_TOKENS + answers * answer_tokens

    async def _start(self) -> LlamaSettings:
        settings, server = await asyncio.to_thread(self._load)
        self._budget, self._raters = server.budget, server.raters
        path = "embeddings" if self._source.embeds else "chat/completions"
        endpoint = Endpoint(
            id=self.id,
            label=self.label,
            kind="local",
            model=self._source.name,
            url=f"{server.url}/v1/{path}",
            headers={"authorization": f"Bearer {server.key}"},
            key_header="authorization",
            secrets=Secrets([server.key]),
            limits=self.limits,
            wire=self._source.wire,
            price=FREE,
            max_choices=settings.n_parallel,
        )
        provider = EmbeddingProvider if self._source.embeds else OpenAICompatibleProvider
        self._inner = provider(endpoint)
        return settings

    def _load(self) -> tuple[LlamaSettings, LlamaServer]:
        try:
            path = self._source.path or ensure(self._source.name, env=self._source.env, control=self._control)
            settings = replace(self._source.llama, path=path.resolve())
            return settings, self._pool.acquire(settings)
        except ModelFetchError as error:
            raise ProviderRequestError(error.message, provider_id=self.id, hint=error.hint) from error
        except ImportError as error:
            message = f"{self.id} needs the package xllamacpp: {error}"
            hint = _LIBRARY_HINT if ".so" in str(error) else EXTRA_HINT
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error
        except (RuntimeError, OSError) as error:
            message = f"llama.cpp cannot load the model of {self.id}: {error}"
            hint = "is it a complete .gguf file, and is there enough memory?"
            raise ProviderRequestError(message, provider_id=self.id, hint=hint) from error


def build(source: ProviderSource) -> LocalProvider:
    """Return the provider that a checked `source` describes; the model is not loaded yet."""
    config = source.spec.config
    return LocalProvider(
        LocalSource(
            id=source.id,
            label=source.label,
            name=local_name(source.spec.id),
            path=model_path(source),
            settings=own_settings(config, LOCAL_KEYS),
            wire=wire_parameters(config, LOCAL_KEYS),
            env=source.env,
            embeds=is_embedding(source.spec.id),
        )
    )


RATING_PREFIX = "Rating:"
"""The beginning of the answer, given to the model: with SmolLM2, ratings then get over half of the probability
instead of a twentieth.
"""

LONGEST_STRING = 160
LONGEST_LIST = 3
"""Bounds where a schema sets none: a small model that repeats itself would never end a text or a list.

For a model of the user's own, only lists of steps have one: claims and verdicts must be complete.
"""


LONGEST_ANSWER = 300
"""The default token limit: a small model may repeat itself until its context is full, minutes later."""

_LIMITS = ("max_tokens", "max_completion_tokens")


def shape_request(
    request: ModelRequest, wire: Mapping[str, JsonValue], *, bounds_lists: bool = True
) -> ModelRequest:
    """Adapt `request` to llama.cpp: ratings become a grammar, and lengths that are left open get a limit.

    Args:
        request: the request as geval made it.
        wire: the parameters in the provider's config; they take precedence.
        bounds_lists: whether all lists in a judge's answer get a limit, or only those of steps.
    """
    if not any(name in params for params in (wire, request.params) for name in _LIMITS):
        request = replace(request, params={**request.params, "max_tokens": LONGEST_ANSWER})
    if request.response_schema is not None:
        # Only for judges: the schema of a prompt is the user's decision.
        is_ours = request.role is Role.JUDGE
        bounds_lists = bounds_lists or request.purpose is Purpose.STEPS
        return replace(request, response_schema=_held(request, bounds_lists)) if is_ours else request
    if request.ratings and not any("grammar" in params for params in (wire, request.params)):
        begun = (*request.messages, Message("assistant", RATING_PREFIX))
        alternatives = " | ".join(f'"{rating}"' for rating in request.ratings)
        grammar = f'root ::= " "? ({alternatives})'
        return replace(request, messages=begun, params={**request.params, "grammar": grammar})
    return request


def shape_response(request: ModelRequest, response: ModelResponse) -> ModelResponse:
    """Return `response` without the prefix that llama.cpp repeats; its reported tokens do not include it."""
    if not request.ratings or request.response_schema is not None:
        return response
    choices = tuple(
        replace(choice, text=choice.text.removeprefix(RATING_PREFIX)) for choice in response.choices
    )
    return replace(response, choices=choices)


def _held(request: ModelRequest, bounds_lists: bool) -> dict[str, Any]:
    """Return the schema with limits where it has none, and `score` restricted to the ratings if there are any."""
    schema = _bounded(request.response_schema or {}, bounds_lists)
    properties = schema.get("properties", {})
    if request.ratings and "score" in properties:
        allowed = [json.loads(rating) for rating in request.ratings]
        schema["properties"] = {**properties, "score": {"enum": allowed}}
    return schema


def _bounded(schema: Mapping[str, JsonValue], bounds_lists: bool) -> dict[str, Any]:
    bounded: dict[str, Any] = dict(schema)
    if schema.get("type") == "string" and not schema.keys() & {"enum", "const", "pattern", "format"}:
        bounded.setdefault("maxLength", LONGEST_STRING)
    if schema.get("type") == "array" and bounds_lists:
        bounded.setdefault("maxItems", LONGEST_LIST)
    if isinstance(schema.get("items"), Mapping):
        bounded["items"] = _bounded(schema["items"], bounds_lists)
    if isinstance(schema.get("properties"), Mapping):
        bounded["properties"] = {
            name: _bounded(item, bounds_lists) for name, item in schema["properties"].items()
        }
    return bounded
