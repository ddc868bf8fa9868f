"""Shortcuts to providers and requests in tests."""

import asyncio
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from geval_cli.providers.base import Provider
from geval_cli.providers.registry import build_provider
from geval_cli.records import Message, ModelRequest, ModelResponse
from geval_cli.specs.base import ProviderSpec

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` in its own event loop, for at most five minutes."""

    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, 300)

    return asyncio.run(bounded())


def ask(text: str = "Say hi.", **request: Any) -> ModelRequest:
    """Return a request with one user message; keywords are additional fields."""
    return ModelRequest((Message("user", text),), **request)


def provider(
    provider_id: str,
    config: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    base_dir: Path = Path(),
) -> Provider:
    """Return a provider as defined in a config."""
    spec = ProviderSpec(id=provider_id, config=dict(config or {}))
    return build_provider(spec, env=env or {}, base_dir=base_dir)


async def answer(model: Provider, *requests: ModelRequest) -> list[ModelResponse]:
    """Return the answers to `requests`, one after another, and close the provider in any case."""
    try:
        return [await model.complete(request) for request in requests or (ask(),)]
    finally:
        await model.aclose()
