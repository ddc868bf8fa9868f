"""What the chat APIs have in common as providers: an endpoint, and a transport to it."""

from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.endpoint import Endpoint
from geval_cli.providers.prices import Price
from geval_cli.providers.transport import Transport


class EndpointProvider:
    """All of a provider but `complete`, which each API speaks in its own way."""

    is_cacheable = True

    def __init__(self, endpoint: Endpoint, transport: Transport | None = None) -> None:
        self._endpoint = endpoint
        self.identity: ProviderIdentity = endpoint.identity
        self._transport = transport or Transport()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._endpoint!r})"

    @property
    def id(self) -> str:
        return self._endpoint.id

    @property
    def label(self) -> str:
        return self._endpoint.label

    @property
    def limits(self) -> ProviderLimits:
        return self._endpoint.limits

    @property
    def price(self) -> Price | None:
        return self._endpoint.price

    async def aclose(self) -> None:
        await self._transport.aclose()
