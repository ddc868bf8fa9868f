"""Keeps keys out of everything that people or files get to see."""

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

EXCERPT_CHARS = 2_000
"""How much of a server's answer an error carries."""

MASK = "***"

_MIN_SECRET_CHARS = 4
"""Shorter values are not masked: replacing every "x" would leave no readable message."""

_SECRET_NAME = re.compile(
    r"auth|api[-_]?key|subscription-key|token|secret|password|cookie|signature|^key$|^sig$|^code$",
    re.IGNORECASE,
)
_LOOKS_SECRET = re.compile(
    r"\b(?:sk|pk|gsk|xai|rk)-[\w*.-]{6,}|\bgsk_\w{6,}|(?<=Bearer )\S+|(?<=Basic )\S+", re.IGNORECASE
)


class Secrets:
    """The values that must not be shown. `repr` shows none of them."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[str | None] = ()) -> None:
        wanted = {value for value in values if value and len(value) >= _MIN_SECRET_CHARS}
        spellings = wanted | {quote(value, safe="") for value in wanted}
        # Longest first: a key that is part of a longer one would leave the rest of it readable.
        self._values = tuple(sorted(spellings, key=len, reverse=True))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} hidden)"

    def redact(self, text: str) -> str:
        """`text` with every known secret, and everything that looks like a key, masked."""
        for value in self._values:
            text = text.replace(value, MASK)
        return _LOOKS_SECRET.sub(MASK, text)

    def excerpt(self, text: str) -> str:
        """The redacted beginning of `text`, at most `EXCERPT_CHARS` long."""
        redacted = self.redact(text)
        if len(redacted) <= EXCERPT_CHARS:
            return redacted
        return redacted[: EXCERPT_CHARS - 1] + "…"


def is_secret_name(name: str) -> bool:
    """Whether a header or query parameter of this name usually holds a credential."""
    return _SECRET_NAME.search(name) is not None


def secret_values(headers: Mapping[str, str], url: str = "") -> list[str]:
    """The credentials in `headers` (with and without their scheme word) and in `url`."""
    values = []
    for name, value in headers.items():
        if is_secret_name(name):
            values += [value, value.rpartition(" ")[2]]
    parts = urlsplit(url)
    values += [value for name, value in parse_qsl(parts.query) if is_secret_name(name)]
    if parts.password:
        values.append(parts.password)
    return values


def public_url(url: str) -> str:
    """`url` without user name, password and secret query parameters."""
    parts = urlsplit(url)
    query = urlencode([(name, value) for name, value in parse_qsl(parts.query) if not is_secret_name(name)])
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))
