"""The credentials of its cloud for a provider without a key; an extra finds them."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from geval_cli.errors import MissingKey, Problem
from geval_cli.plugins import extra
from geval_cli.providers.base import ProviderSource
from geval_cli.providers.network.messages import Signer
from geval_cli.providers.wire.key_command import has_key_command
from geval_cli.providers.wire.refusals import CLOUD_CREDENTIALS
from geval_cli.source.secrets import secret_values

_EXTRA = "cloud credentials"
CLOUD_LOGIN = "cloud_login"
"""The setting that asks for them beside a key, or at an address that is not the cloud's own; false forbids them."""


class CloudLogin(Struct, frozen=True):
    """The credentials of a cloud for a provider whose requests go to `url`, and which has no key."""

    source: ProviderSource
    cloud: Literal["google", "azure"]
    url: str
    settings: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Return what they are, for messages."""
        return f"{'Google Cloud' if self.cloud == 'google' else 'Azure'}'s {CLOUD_CREDENTIALS}"

    @property
    def signer(self) -> Signer | None:
        """Return what puts a token into requests; None where the provider may not have one."""
        signer: Signer | None = extra(_EXTRA).credentials_for(
            self.source, self.cloud, self.url, self.settings
        )
        return signer

    def missing(self, variable: str) -> Problem | None:
        """Return the problem of a provider whose cloud gives it no token; None where it does. It is tried.

        Args:
            variable: what else may hold its key.
        """
        lack: tuple[str, str] | None = extra(_EXTRA).lack_of(self.source, self.cloud, self.url, self.settings)
        if lack is None:
            return None
        what, hint = lack
        if self.settings.get(CLOUD_LOGIN):
            return self.source.problem(f"no credentials for {self.source.id}: {what}", hint=hint)
        message = f"no credentials for {self.source.id}: {variable} is not set, and {what}"
        found = self.source.problem(message)
        return MissingKey(message, found.location, f"{hint}; or set {variable}", variable=variable)


def cloud_login(
    source: ProviderSource, cloud: Literal["google", "azure"], url: str, settings: Mapping[str, Any]
) -> CloudLogin | None:
    """Return the credentials that a provider, for which no key is there, is called with; None for none."""
    if source.access.is_strangers or has_key_command(settings) or secret_values(settings.get("headers", {})):
        return None
    if settings.get(CLOUD_LOGIN, "api_key_env" not in settings) is False:
        return None
    return CloudLogin(source, cloud, url, settings)


def check_cloud_login(source: ProviderSource, *, is_cloud: bool) -> list[Problem]:
    """Return the problems of `cloud_login` beside other settings of the key, or at a vendor that has none."""
    config = source.spec.config
    key = next((name for name in (CLOUD_LOGIN, "cloudLogin") if config.get(name)), None)
    if key is None:
        return []
    if not is_cloud:
        hint = "leave it out: it is for azure: and vertex:"
        return [source.key_problem(f"{source.kind}: has no `{key}`", key=key, hint=hint)]
    names = ("api_key", "apiKey", "api_key_env", "apiKeyEnvar", "api_key_command", "apiKeyCommand")
    return [
        source.problem(f"`{key}` and `{name}` both supply a key: keep one", key=name)
        for name in names
        if config.get(name) is not None
    ]
