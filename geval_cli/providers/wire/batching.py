"""Which providers have a batch API."""

from collections.abc import Mapping
from typing import Protocol

from geval_cli.providers.base import Provider
from geval_cli.providers.preset_table import KIND_ALIASES, PRESETS
from geval_cli.providers.prices import Price
from geval_cli.providers.wire.batch_api import BatchApi
from geval_cli.records import JsonValue, ModelRequest, ModelResponse


class BatchingProvider(Protocol):
    """A provider that may have a batch API."""

    @property
    def batches(self) -> BatchApi | None: ...

    @property
    def batch_price(self) -> Price | None: ...

    def payload(self, request: ModelRequest) -> object: ...

    def batched_response(self, request: ModelRequest, status: int, body: JsonValue) -> ModelResponse: ...


_WITHOUT = {
    "azure": "set `batch_deployment` in its config to a Global Batch deployment of the same model",
    "bedrock": "set `batch_s3` and `batch_role_arn` in its config, and use AWS credentials",
    "vertex": "Vertex AI reads batches only from Cloud Storage or BigQuery; use google: or anthropic: instead",
}


def could_have_batches(provider_id: str) -> bool:
    """Return whether a provider's vendor has batches, which the provider as it is configured cannot use."""
    kind = provider_id.partition(":")[0]
    return KIND_ALIASES.get(kind, kind) in _WITHOUT


def way_to_batches(provider_id: str, config: Mapping[str, JsonValue] | None = None) -> str:
    """Return what to do to have batches, for a provider that has none."""
    kind, _, name = provider_id.partition(":")
    kind = KIND_ALIASES.get(kind, kind)
    if (config or {}).get("batch") is False:
        return "remove `batch: false` from its config"
    if kind in _WITHOUT:
        return _WITHOUT[kind]
    preset = PRESETS.get(kind)
    if preset is not None and preset.batch and name.startswith("responses:"):
        return f"write `{kind}:{name.removeprefix('responses:')}`: its batches take chat requests only"
    return (
        "use openai:, anthropic:, google:, mistral:, together: or groq:, "
        "or set `batch: openai` for a server that has OpenAI's batch API"
    )


def batch_api(provider: Provider) -> BatchApi | None:
    """Return the batch API of a provider; None when it has none."""
    found: BatchApi | None = getattr(provider, "batches", None)  # by name: it is called for every request
    return found
