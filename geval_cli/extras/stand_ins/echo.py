"""`echo`: answers with the text of the prompt; free, instant and deterministic."""

from geval_cli.errors import Problem
from geval_cli.providers.base import ProviderIdentity, ProviderLimits, ProviderSource
from geval_cli.providers.options import LIMIT_KEYS, check_settings, limits_of, own_settings
from geval_cli.providers.prices import FREE
from geval_cli.providers.wire.chat import last_user_text
from geval_cli.records import Choice, ModelRequest, ModelResponse, Usage


class EchoProvider:
    """Returns the last user message, with the given `finish_reason`."""

    price = FREE
    is_cacheable = False

    def __init__(
        self,
        *,
        provider_id: str = "echo",
        label: str = "echo",
        limits: ProviderLimits | None = None,
        finish_reason: str | None = "stop",
    ) -> None:
        self._finish_reason = finish_reason
        self.id = provider_id
        self.label = label
        self.identity = ProviderIdentity("echo", "", "")
        self.limits = limits or ProviderLimits()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        text = last_user_text(request.messages) if request.text is None else request.text
        choices = tuple(Choice(text, self._finish_reason) for _ in request.sample_indexes)
        return ModelResponse(choices, Usage(requests=len(choices)))

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def check(source: ProviderSource) -> list[Problem]:
    """Return the problems with the limits of an echo provider, its only settings."""
    return check_settings(source, LIMIT_KEYS)


def build(source: ProviderSource) -> EchoProvider:
    """Return the provider that `source` describes."""
    limits = limits_of(own_settings(source.spec.config, LIMIT_KEYS))
    return EchoProvider(
        provider_id=source.id,
        label=source.label,
        limits=limits,
        finish_reason=source.rules.echo_finish_reason,
    )
