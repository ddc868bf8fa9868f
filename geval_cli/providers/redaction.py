"""Keeps keys out of everything that people or files get to see."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode, urlsplit, urlunsplit

from geval_cli.records import JsonValue
from geval_cli.source.secrets import MASK, is_secret_parameter, mask_bare

EXCERPT_CHARS = 2_000
"""How much of a server's answer an error carries."""

_MIN_SECRET_CHARS = 4
"""Shorter values are not masked: replacing every "x" would leave no readable message."""


class Secrets:
    """The values that must not be shown. `repr` shows none of them."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[str | None] = ()) -> None:
        secrets = {value for value in values if value and len(value) >= _MIN_SECRET_CHARS}
        spellings = {spelling for value in secrets for spelling in _spellings(value)}
        # Longest first: a key that is part of a longer one would leave the rest of it readable.
        self._values = tuple(sorted(spellings, key=len, reverse=True))

    def __repr__(self) -> str:
        return f"Secrets({len(self._values)} hidden)"

    def redact(self, text: str) -> str:
        """`text` with every known secret, and everything that looks like a key, masked."""
        return mask_bare(self.hide(text))

    def hide(self, text: str) -> str:
        """`text` with every known secret masked, and nothing else: for prose, which may well speak of keys."""
        for value in self._values:
            text = text.replace(value, MASK)
        return text

    def hide_in(self, value: JsonValue) -> JsonValue:
        """JSON data with every known secret masked in its texts; what holds none is given back as it is."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.hide_in(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_in(item) for item in value]
        return value

    def excerpt(self, text: str) -> str:
        """Return the redacted beginning of `text`, at most `EXCERPT_CHARS` long."""
        redacted = self.redact(text)
        if len(redacted) <= EXCERPT_CHARS:
            return redacted
        return redacted[: EXCERPT_CHARS - 1] + "…"


def public_url(url: str) -> str:
    """`url` without user name, password and secret query parameters."""
    parts = urlsplit(url)
    query = urlencode(
        [(name, value) for name, value in parse_qsl(parts.query) if not is_secret_parameter(name)]
    )
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def keyed_url(url: str) -> str:
    """`url` for a cache key: what is secret in it is there as a hash, since another account may get other answers."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    query = parse_qsl(parts.query, keep_blank_values=True)
    keyed = urlencode([(name, keyed_value(name, value)) for name, value in query])
    netloc = f"{_hash(user)}@{host}" if at else host
    return urlunsplit((parts.scheme, netloc, parts.path, keyed, ""))


def keyed_value(name: str, value: str) -> str:
    """The value of a header or query parameter for a cache key: a hash of it where the name says that it is secret."""
    return _hash(value) if is_secret_parameter(name) else value


def _hash(value: str) -> str:
    return f"sha256:{hashlib.sha256(value.encode('utf-8', 'replace')).hexdigest()}"


def _spellings(value: str) -> Iterable[str]:
    """As it is, as URLs and JSON write it, and as Basic authentication sends the user and password of a URL."""
    # `[1:-1]`: JSON's spelling without the quotes, since the value may be a part of a longer text.
    plain = unquote(value)
    yield from (value, plain, quote(plain, safe=""), quote_plus(plain), json.dumps(value)[1:-1])
    if ":" in plain:
        yield b64encode(plain.encode()).decode()
