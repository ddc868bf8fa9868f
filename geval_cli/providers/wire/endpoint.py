"""A resolved model endpoint: where to send, with which credentials, limits and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geval_cli.errors import Location
from geval_cli.providers.base import ProviderIdentity, ProviderLimits
from geval_cli.providers.network.addresses import ClientCertificate
from geval_cli.providers.network.messages import Signer
from geval_cli.providers.prices import Price
from geval_cli.providers.redaction import Secrets, keyed_url, keyed_value
from geval_cli.providers.wire.token_usage import TokenUsage
from geval_cli.records import Usage


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Everything that a provider over HTTP needs.

    Attributes:
        url: the full address that requests are sent to.
        headers: sent with each request; they hold the key.
        key_header: the one of them that holds geval's own key, in lower case; empty without one.
        key_source: where the key came from, in words for an error message; empty without a key.
        wire: parameters of each request, from the config.
        places: where the config has them, as far as it is in a file; `place` is that of the provider itself.
        price: None when unknown.
        certificate: what is shown to a server that wants to know who asks.
        signer: puts a key into each request that is not known before; None without one.
        batch: the name of the batch API that it has; empty for none.
        batch_deployment: what answers batches at Azure, where nothing answers both.
        batch_price: what answers of a batch cost; None when unknown.
        max_choices: how many choices one request may ask for; None: as many as are wanted.
    """

    id: str
    label: str
    kind: str
    model: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    key_header: str = ""
    secrets: Secrets = field(default_factory=Secrets)
    key_source: str = ""
    limits: ProviderLimits = field(default_factory=ProviderLimits)
    wire: Mapping[str, Any] = field(default_factory=dict, repr=False)
    places: Mapping[str, Location] = field(default_factory=dict, repr=False)
    place: Location | None = None
    price: Price | None = None
    max_choices: int | None = None
    certificate: ClientCertificate | None = None
    signer: Signer | None = None
    batch: str = ""
    batch_deployment: str = ""
    batch_price: Price | None = None

    @property
    def identity(self) -> ProviderIdentity:
        """For the cache key. Headers count, but for the key: some servers choose the model or the user by them."""
        lower = {name.lower(): value for name, value in self.headers.items()}
        headers = {name: keyed_value(name, value) for name, value in lower.items() if name != self.key_header}
        params = {**self.wire, "headers": headers} if headers else self.wire
        return ProviderIdentity(self.kind, self.model, keyed_url(self.url), params)

    def prepare(self) -> None:
        """Do what takes long before a request is sent, not while answers wait to be read."""
        if self.price is not None:
            self.price.prepare()

    def usage(self, tokens: TokenUsage | None, *, requests: int, is_batched: bool = False) -> Usage:
        """Return the tokens and the cost of a call; `cost_usd` is None when the price or the tokens are unknown."""
        price = self.batch_price if is_batched else self.price
        cost = None if price is None else price.cost_usd(tokens)
        counted = tokens or TokenUsage()
        return Usage(
            requests,
            counted.input_tokens,
            counted.output_tokens,
            cost_usd=cost,
            batched_requests=requests * is_batched,
        )
