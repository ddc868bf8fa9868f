"""The layer of `--offline`: what the cache does not answer is not asked."""

from geval_cli.errors import OfflineError
from geval_cli.gateway.call import Handler, ModelCall
from geval_cli.records import ModelResponse

_SELF_CONTAINED = frozenset({"echo", "scripted"})
"""Kinds of providers whose answers stand in the config: nothing is asked, on this machine or elsewhere."""


class Offline:
    """A layer in the place of everything that sends. Providers that need nobody to answer go on answering."""

    def __init__(self, following: Handler) -> None:
        self._following = following

    async def __call__(self, call: ModelCall) -> ModelResponse:
        provider = call.provider
        if provider.identity.kind in _SELF_CONTAINED:
            return await self._following(call)
        if call.outlives_run:
            message = f"the cache has no answer of {provider.label} to this, and --offline sends nothing"
            hint = (
                "run it once without --offline; a config, prompt or base URL that was changed is asked again"
            )
        else:
            message = f"answers of {provider.label} are never kept in the cache, and --offline sends nothing"
            hint = "have its output in the tests (`output:`), or leave --offline out"
        raise OfflineError(message, provider_id=provider.id, hint=hint)
