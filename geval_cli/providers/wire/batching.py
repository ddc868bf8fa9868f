"""Which providers have a batch API."""

from typing import Protocol, runtime_checkable

from geval_cli.providers.base import Provider
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.batch_api import BatchApi
from geval_cli.records import JsonValue, ModelRequest, ModelResponse


@runtime_checkable
class BatchingProvider(Protocol):
    """A provider that may have a batch API."""

    @property
    def batches(self) -> BatchApi | None: ...

    @property
    def batch_price(self) -> Price | None: ...

    def payload(self, request: ModelRequest) -> object: ...

    def batched_response(self, request: ModelRequest, status: int, body: JsonValue) -> ModelResponse: ...


def batch_api(provider: Provider) -> BatchApi | None:
    """Return the batch API of a provider; None when it has none."""
    return provider.batches if isinstance(provider, BatchingProvider) else None
