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
_MOST_ENCODINGS = 3
_MOST_MEMBERS = 1024
_PIECE = 64 * 1024
"""Unpacked at a time: what follows the end of a member is copied."""


def unpacked(body: bytes, encodings: str, max_bytes: int) -> bytes:
    """`body` without its content encodings (the header's value, the last one applied named last).

    Raises:
        UnknownCompressionError: one of them is neither gzip nor deflate.
        BrokenCompressionError: the bytes are not what the header says, end too early, or are packed too often.
        OversizedAnswerError: more than `max_bytes` come out.
    """
    names = [name for part in encodings.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if len(names) > _MOST_ENCODINGS:
        raise BrokenCompressionError(f"it is packed {len(names)} times")
    for name in reversed(names):
        if not body:
            break
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
    found = bytearray()
    members, position = 0, 0
    view = memoryview(packed)
    while position < len(packed):
        if members == _MOST_MEMBERS:
            raise BrokenCompressionError(f"it has more than {_MOST_MEMBERS} parts")
        members += 1
        inflater = zlib.decompressobj(window)
        while not inflater.eof:
            piece = view[position : position + _PIECE]
            if not piece:
                raise BrokenCompressionError("it ends too early")
            found += _inflated_piece(inflater, piece, max_bytes + 1 - len(found))
            if len(found) > max_bytes:
                raise OversizedAnswerError(f"more than {max_bytes} bytes")
            position += len(piece) - len(inflater.unused_data)
        # Only a gzip file may have several members, one after another, and zeros after the last.
        is_padded = packed[position : position + 1] == b"\0" and not packed[position:].strip(b"\0")
        if window != _GZIP or is_padded:
            break
    return bytes(found)


def _inflated_piece(inflater: "zlib._Decompress", piece: memoryview, most: int) -> bytes:
    try:
        return inflater.decompress(piece, most)
    except zlib.error as error:
        raise BrokenCompressionError(str(error)) from error
