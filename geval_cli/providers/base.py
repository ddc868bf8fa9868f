"""Define the provider that the gateway calls: one request out, one answer back, errors classified."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field

from geval_cli.records import JsonValue, ModelRequest, ModelResponse


class ProviderLimits(Struct, frozen=True):
    """Hard caps for one provider; None means no cap. Times in seconds, except `delay_ms` between two requests."""

    timeout_s: float = 300.0
    max_retries: int = 4
    max_concurrency: int | None = None
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    delay_ms: float = 0.0


class ProviderIdentity(Struct, frozen=True):
    """Everything about a provider that changes its answers, and nothing else: it goes into the cache key.

    Credentials in `endpoint` and `params` are there as hashes; `params` are the wire parameters from the config.
    `variables` names those of a request's variables that go into what is sent.
    """

    kind: str
    model: str
    endpoint: str
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    variables: tuple[str, ...] = ()


class Provider(Protocol):
    """A configured model endpoint, under test or judging. Instances belong to one event loop."""

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

        False where answers are free (echo) or code may change unseen. Within a run a judge is asked once either way.
        """
        ...

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Send `request` once, without retries.

        Returns:
            At least one choice; a server that gives fewer choices than asked for is not an error here.

        Raises:
            ProviderError: one of its subclasses, by what went wrong.
        """
        ...

    async def aclose(self) -> None:
        """Release connections, processes and models. Safe to call twice."""
        ...
