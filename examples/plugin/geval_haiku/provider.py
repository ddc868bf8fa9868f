"""`haiku:NAME`: a provider that knows one poem."""

from geval_cli.errors import Problem
from geval_cli.providers.base import ProviderIdentity, ProviderSource
from geval_cli.providers.options import LIMIT_KEYS, check_settings, limits_of, own_settings
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage

POEM = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again"


class HaikuProvider:
    """Answer every prompt with the same poem. It is free, so geval caches nothing."""

    is_cacheable = False

    def __init__(self, source: ProviderSource) -> None:
        self.id, self.label = source.id, source.label
        self.identity = ProviderIdentity("haiku", source.name, "")
        self.limits = limits_of(own_settings(source.spec.config, LIMIT_KEYS))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        choices = tuple(Choice(POEM, "stop") for _ in request.sample_indexes)
        return ModelResponse(choices, Usage(requests=len(choices)))

    async def aclose(self) -> None:
        """Close nothing: there is nothing to close."""


def check(source: ProviderSource) -> list[Problem]:
    """Find mistakes in the limits, such as `max_concurrency`; there are no other settings."""
    return check_settings(source, LIMIT_KEYS)


def build(source: ProviderSource) -> HaikuProvider:
    return HaikuProvider(source)
