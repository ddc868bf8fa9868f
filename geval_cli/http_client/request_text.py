"""A request as the bytes that go over the wire."""

import re
from collections.abc import Mapping
from functools import lru_cache

from geval_cli.http_client.failures import UnsendableRequestError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"content-length", "transfer-encoding"})
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


def request_bytes(method: str, target: str, host: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The whole request, for `target` (path and query, or the whole URL for a proxy) of `host`.

    `headers` may name another host, and nothing about the length of the body: that is ours to say. Of two spellings
    of a name the last one counts.

    Raises:
        UnsendableRequestError: the method, or the name or value of a header, would not stay on its line.
    """
    if not _is_token(method):
        raise UnsendableRequestError("the method is no word")
    lines = {}
    for name, value in headers.items():
        if not _is_token(name):
            raise UnsendableRequestError("a header's name is no word")
        if "\n" in value or "\r" in value or "\0" in value:
            raise UnsendableRequestError(f"the header {name} holds a line break")
        lowered = name.lower()
        if lowered not in _OURS:
            lines[lowered] = f"{name}: {value}"
    head = [f"{method} {target} HTTP/1.1", lines.pop("host", f"host: {host}"), *lines.values()]
    if body or method.upper() not in _BODILESS:
        head.append(f"content-length: {len(body)}")
    head.append("\r\n")
    return "\r\n".join(head).encode("utf-8", "replace") + body


@lru_cache(maxsize=256)
def _is_token(word: str) -> bool:
    return _NAME.fullmatch(word) is not None
