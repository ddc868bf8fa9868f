"""`haiku:NAME`: a provider that knows one poem."""

from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage

POEM = "An old silent pond\nA frog jumps into the pond\nSplash! Silence again"


class HaikuProvider:
    """Answer every prompt with the same poem. It is free, so geval caches nothing."""

    is_cacheable = False

    def __init__(self, source: ProviderSource) -> None:
        self.id, self.label = source.id, source.label
        self.identity = ProviderIdentity("haiku", source.name, "")
        self.limits = ProviderLimits()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        choices = tuple(Choice(POEM, "stop") for _ in request.sample_indexes)
        return ModelResponse(choices, Usage(requests=len(choices)))

    async def aclose(self) -> None:
        """Close nothing: there is nothing to close."""


def build(source: ProviderSource) -> HaikuProvider:
    return HaikuProvider(source)
