"""Compressed bodies, as far as they were asked for."""

import zlib

from geval_cli.http_client.failures import (
    BrokenCompressionError,
    OversizedAnswerError,
    UnknownCompressionError,
)

ACCEPTED = "gzip, deflate"
"""For the `accept-encoding` header: what `unpacked` reads."""

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_METHOD = 8


def unpacked(body: bytes, encodings: str, max_bytes: int) -> bytes:
    """`body` without its content encodings (the header's value, the last one applied named last).

    Raises:
        UnknownCompressionError: one of them is neither gzip nor deflate.
        BrokenCompressionError: the bytes are not what the header says, or end too early.
        OversizedAnswerError: more than `max_bytes` come out.
    """
    for name in reversed([part.strip().lower() for part in encodings.split(",")]):
        if name in {"", "identity"} or not body:
            continue
        if name in {"gzip", "x-gzip"}:
            body = _inflated(body, _GZIP, max_bytes)
        elif name == "deflate":
            # Meant is zlib's format; some servers send the bare one.
            has_header = body[0] & 0x0F == _ZLIB_METHOD
            body = _inflated(body, _ZLIB if has_header else _RAW, max_bytes)
        else:
            raise UnknownCompressionError(name)
    return body


def _inflated(packed: bytes, window: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes
    while packed:
        inflater = zlib.decompressobj(window)
        try:
            part = inflater.decompress(packed, room + 1)
        except zlib.error as error:
            raise BrokenCompressionError(str(error)) from error
        if len(part) > room:
            raise OversizedAnswerError(f"more than {max_bytes} bytes")
        if not inflater.eof:
            raise BrokenCompressionError("it ends too early")
        parts.append(part)
        room -= len(part)
        # A gzip file may have several members, one after another.
        packed = inflater.unused_data if window == _GZIP else b""
    return b"".join(parts)
