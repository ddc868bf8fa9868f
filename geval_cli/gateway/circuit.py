"""The innermost layer: calls the provider, unless its key is known to be refused."""

from geval_cli.errors import ProviderAuthError
from geval_cli.gateway.call import ModelCall
from geval_cli.gateway.responses import align
from geval_cli.providers.base import Provider
from geval_cli.records import ModelResponse


class Circuit:
    """Once a provider's key is refused or its quota used up, every later call to it fails at once with that error."""

    def __init__(self) -> None:
        # By the object, not by what it leads to: two providers may ask one server with different keys.
        self._broken: dict[int, tuple[Provider, ProviderAuthError]] = {}

    def check(self, provider: Provider) -> None:
        """Nothing, as long as `provider` may be asked.

        Raises:
            ProviderAuthError: an equal of the one that stopped it.
        """
        broken = self._broken.get(id(provider))
        if broken is not None:
            first = broken[1]
            raise ProviderAuthError(
                first.message,
                provider_id=first.provider_id,
                status=first.status,
                body=first.body,
                hint=first.hint,
            )

    async def send(self, call: ModelCall) -> ModelResponse:
        """One request to the provider. The choices are aligned with the request's samples."""
        self.check(call.provider)
        try:
            response = await call.provider.complete(call.request)
        except ProviderAuthError as error:
            self._broken.setdefault(id(call.provider), (call.provider, error))
            raise
        return align(response, call.request)
