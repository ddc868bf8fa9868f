"""A request and a response over HTTP, whoever carries them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from msgspec import Struct


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One request. Its `headers`, and often its `url`, hold credentials, so `repr` leaves them out.

    A user name and password in the URL are sent as Basic authentication, unless `headers` hold an Authorization.
    `timeout_s` is for all of it, from the connection to the last byte of the answer.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    method: str = "POST"
    timeout_s: float = 300.0


class HttpResponse(Struct, frozen=True):
    """A complete response. Header names are lower case, repeated ones joined with commas; the body is unpacked.

    `latency_ms` runs from the call to the last byte.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: float = 0.0

    @property
    def is_success(self) -> bool:
        return HTTPStatus.OK <= self.status < HTTPStatus.MULTIPLE_CHOICES

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")
