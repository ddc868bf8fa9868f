"""Short ways to a provider and a request in tests."""

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
    """Run `coroutine` in an event loop of its own, at most five minutes."""

    async def bounded() -> T:
        return await asyncio.wait_for(coroutine, 300)

    return asyncio.run(bounded())


def ask(text: str = "Say hi.", **request: Any) -> ModelRequest:
    """A request of one user message; keywords are further fields."""
    return ModelRequest((Message("user", text),), **request)


def provider(
    provider_id: str,
    config: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    base_dir: Path = Path(),
) -> Provider:
    """A provider as a config would name it."""
    spec = ProviderSpec(id=provider_id, config=dict(config or {}))
    return build_provider(spec, env=env or {}, base_dir=base_dir)


async def answer(model: Provider, *requests: ModelRequest) -> list[ModelResponse]:
    """The answers to `requests`, one after another; the provider is closed afterwards, whatever happens."""
    try:
        return [await model.complete(request) for request in requests or (ask(),)]
    finally:
        await model.aclose()
