"""The interface of a provider, the part of a config that describes one, and the kind of answer that its id implies."""

import asyncio
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from geval_cli.errors import Location, Problem, ProviderShapeError, Severity
from geval_cli.plugins import extra
from geval_cli.records import JsonValue, ModelRequest, ModelResponse
from geval_cli.source.access import TRUSTED, Access
from geval_cli.source.secrets import environment_secrets, secret_values
from geval_cli.specs.base import ProviderSpec
from geval_cli.specs.dialect import DialectRules

HINT = 'write model=(client, "gpt-4.1")'


class ClientModel(Struct, frozen=True, eq=False):
    """A model and the client to call it with: OpenAI or AsyncOpenAI, including their Azure subclasses."""

    client: Any
    model: str

    def __repr__(self) -> str:
        return f"ClientModel({type(self.client).__name__}, {self.model!r})"  # a client shows its headers


def is_async_client(client: object) -> bool:
    """Return whether a client's calls must be awaited, and its connections belong to an event loop."""
    library: Any = sys.modules["openai"]
    return isinstance(client, library.AsyncOpenAI)


TEXT = "text"
EMBEDDING = "embedding"
CLASSIFICATION = "classification"
MODERATION = "moderation"
SEARCH = "search"
"""The texts of a model that searches the web first."""

_KINDS: Mapping[str, str] = {
    "embedding": EMBEDDING,
    "embeddings": EMBEDDING,
    "text-classification": CLASSIFICATION,
    "moderation": MODERATION,
}
"""The kinds of answer, by the word between vendor and model: `openai:embedding:MODEL`."""

_WITHOUT_MODEL = frozenset({MODERATION})
_EMBEDDING_VENDORS = frozenset({"voyage"})
"""Vendors all of whose models return vectors: `voyage:MODEL`."""
_EMBEDDING_MODELS: Mapping[str, str] = {
    "cohere": "embed-",
    "mistral": "mistral-embed",
    "openai": "text-embedding-",
}
"""The prefix of the names of models that return vectors, by vendor."""
_OTHER_NAMES = frozenset({"http", "https", "exec", "python", "javascript", "file", "scripted", "function"})
"""Kinds of providers whose ids do not name a model."""

_PROGRAMS = frozenset({"exec", "python", "javascript", "file"})

_SEARCHING_VENDORS = frozenset({"perplexity"})
_SEARCHING_MODELS = ("search-preview", "search-api", ":online", "perplexity/sonar")
_SEARCHING_KEYS = frozenset({"web_search_options", "search_parameters", "web_search"})
_SEARCH_TOOLS = frozenset(
    {"googleSearch", "google_search", "googleSearchRetrieval", "google_search_retrieval"}
)


def kind_of(provider_id: str) -> str:
    """Return the kind of answer that the model named by an id gives."""
    vendor, _, rest = provider_id.partition(":")
    if vendor in _EMBEDDING_VENDORS:
        return EMBEDDING
    if vendor in _EMBEDDING_MODELS and rest.startswith(_EMBEDDING_MODELS[vendor]):
        return EMBEDDING
    mode, separator, _ = rest.partition(":")
    kind = _KINDS.get(mode, TEXT)
    is_written_out = separator or kind in _WITHOUT_MODEL
    return kind if is_written_out and vendor not in _OTHER_NAMES else TEXT


def local_name(provider_id: str) -> str:
    """Return the model or file that a `local:` id names, including `local:embedding:MODEL`."""
    name = provider_id.partition(":")[2]
    for mode in ("embedding:", "embeddings:"):
        name = name.removeprefix(mode)
    return name.removeprefix("file://")


def is_embedding(provider_id: str) -> bool:
    """Return whether an id names a model that turns texts into vectors (`openai:embedding:MODEL`)."""
    return kind_of(provider_id) == EMBEDDING


def is_program(provider: ProviderSpec) -> bool:
    """Return whether a provider is the user's own program or function."""
    return provider.id.partition(":")[0].lower() in _PROGRAMS


def takes_text(provider: ProviderSpec) -> bool:
    """Return whether a provider receives a prompt as plain text, even if the prompt is a chat."""
    return provider.id.partition(":")[0].lower() in _OTHER_NAMES | {"echo"}


def can_search(provider: ProviderSpec) -> bool:
    """Return whether a model searches the web, by default or through its config; the user's own application may."""
    vendor = provider.id.partition(":")[0]
    if vendor in _SEARCHING_VENDORS | _OTHER_NAMES or any(name in provider.id for name in _SEARCHING_MODELS):
        return True
    if not _SEARCHING_KEYS.isdisjoint(provider.config):
        return True
    tools = provider.config.get("tools")
    return isinstance(tools, list) and any(map(_is_search, tools))


def _is_search(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    return str(tool.get("type", "")).startswith("web_search") or not _SEARCH_TOOLS.isdisjoint(tool)


class ProviderLimits(Struct, frozen=True):
    """Hard caps for one provider; None means no cap. Times are in seconds, except `delay_ms` between two requests."""

    timeout_s: float = 300.0
    max_retries: int = 4
    max_concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    delay_ms: float = 0.0


class ProviderIdentity(Struct, frozen=True):
    """Everything about a provider that changes its answers, and nothing else: it is part of the cache key.

    Credentials in `endpoint` and `params` are replaced by hashes; `params` are the wire parameters from the config.
    `variables` names the variables of a request that are part of what is sent.
    """

    kind: str
    model: str
    endpoint: str
    params: Mapping[str, JsonValue] = {}  # msgspec copies it
    variables: tuple[str, ...] = ()


class Provider(Protocol):
    """A configured model endpoint, either under test or acting as a judge. Instances belong to one event loop."""

    @property
    def id(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def identity(self) -> ProviderIdentity: ...

    @property
    def limits(self) -> ProviderLimits: ...

    @property
    def is_cacheable(self) -> bool:
        """Return whether an equal request may be answered from the cache.

        False when answers are free (echo) or code may change unnoticed. Within a run, equal requests to a judge are
        sent once either way.
        """
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Send `request` once, without retries.

        Returns:
            At least one choice; fewer choices than requested are not an error here.

        Raises:
            ProviderError: the subclass says what went wrong.
        """
        ...

    async def aclose(self) -> None:
        """Release connections, processes and models. Safe to call twice."""
        ...


def is_being_cancelled() -> bool:
    """Return whether this task is being cancelled from outside; user code may also raise CancelledError itself."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class AdoptedJudge(Struct, frozen=True, eq=False):
    """A judge object that the caller supplies, used as a provider. It does its own retries, and its owner closes it."""

    judge: Any
    number: int
    is_cacheable = False

    @property
    def id(self) -> str:
        return str(self.judge.label)

    @property
    def label(self) -> str:
        return str(self.judge.label)

    @property
    def identity(self) -> ProviderIdentity:
        return ProviderIdentity("judge", self.label, str(self.number), self.judge.provider_params)

    @property
    def limits(self) -> ProviderLimits:
        return ProviderLimits(max_retries=0)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the judge's answer; its errors propagate unchanged, unless they would end a program or a task."""
        try:
            answer = self.judge.complete(request)
            response = await answer if inspect.isawaitable(answer) else answer
        except (Exception, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            raise ProviderShapeError(f"{self.id} raised {error!r}", provider_id=self.id) from error
        if answer is response:
            wrong = "is no coroutine function: write `async def complete`"
        elif not isinstance(response, ModelResponse):
            wrong = f"returned {type(response).__name__}, not a ModelResponse"
        else:
            try:
                return extra("packages").whole(response, ModelResponse)  # type: ignore[no-any-return]
            except ValueError as error:
                wrong = f"returned an invalid ModelResponse: {error}"
        raise ProviderShapeError(f"`complete` of {self.id} {wrong}", provider_id=self.id)

    async def aclose(self) -> None:
        """Do nothing: the judge's owner closes it."""


@dataclass(frozen=True, slots=True)
class ProviderSource:
    """One provider of a config. The config and `env` may contain keys, so `repr` leaves them out."""

    spec: ProviderSpec = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    base_dir: Path
    access: Access = TRUSTED

    @property
    def kind(self) -> str:
        """Return the part of the id before the first colon, in lower case: "openai" for "openai:gpt-4.1"."""
        return self.spec.id.partition(":")[0].lower()

    @property
    def name(self) -> str:
        """Return the part of the id after the first colon: a model, a path, a command."""
        return self.spec.id.partition(":")[2]

    @property
    def rules(self) -> DialectRules:
        """Return the rules of the config that names the provider."""
        return self.spec.rules

    @property
    def id(self) -> str:
        """Return the id in the form that may be shown."""
        return self.spec.public_id

    @property
    def label(self) -> str:
        return self.spec.title

    @property
    def secret_values(self) -> list[str]:
        """Return the values to hide: secrets in the id, the config and the environment, which programs can see."""
        inherited = environment_secrets(self.env)
        return [*secret_values([self.spec.id, dict(self.spec.config)]), *inherited]

    def key_problem(
        self, message: str, *, key: str, hint: str = "", severity: Severity = Severity.ERROR
    ) -> Problem:
        """Return a problem with the key of a config entry itself, not with its value."""
        return Problem(message, self.spec.place.key("config", key), hint, severity=severity)

    @property
    def place(self) -> Location | None:
        """Return where the config names the provider."""
        return self.spec.place.value("id") or self.spec.place.value()

    def problem(
        self,
        message: str,
        *,
        key: str | None = None,
        hint: str = "",
        notes: tuple[str, ...] = (),
        severity: Severity = Severity.ERROR,
    ) -> Problem:
        """Return a problem with this provider, pointing at `key` of its config, or at the provider itself if None."""
        location = self.spec.place.value("id") if key is None else self.spec.place.value("config", key)
        return Problem(message, location, hint, notes, severity)


def batch_api(provider: Provider) -> Any:
    """Return the `BatchApi` (see `extras.batches.api`) of a provider that has one as `batches`; otherwise None."""
    return getattr(provider, "batches", None)
