"""Compressed bodies, as far as they were asked for."""

import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from geval_cli.providers.network.failures import (
    BrokenCompressionError,
    OversizedAnswerError,
    UnknownCompressionError,
)

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_METHOD = 8
_MOST_ENCODINGS = 3
_MOST_MEMBERS = 1024
_PIECE = 64 * 1024
"""Unpacked at a time: what follows the end of a member is copied."""

_ZSTD_MODULES = ("compression.zstd", "backports.zstd")
"""Where Python 3.14 has it, and where older ones do when it is installed."""


class _Unpacker(Protocol):
    """Unpacks one member, with at most so many bytes at a time; `eof` at the member's end."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: Any, max_length: int, /) -> bytes: ...


@cache
def accepted() -> str:
    """Return the value of the `accept-encoding` header: what `unpacked` can read with what is installed."""
    names = ["gzip", "deflate"]
    if _is_installed("brotli"):
        names.append("br")
    if any(map(_is_installed, _ZSTD_MODULES)):
        names.append("zstd")
    return ", ".join(names)


def unpacked(body: bytes, encodings: str, max_bytes: int) -> bytes:
    """Return `body` without its content encodings (the header's value, the last one applied named last).

    Raises:
        UnknownCompressionError: one of them cannot be read, at least with what is installed.
        BrokenCompressionError: the bytes are not what the header says, end too early, or are packed too often.
        OversizedAnswerError: more than `max_bytes` come out.
    """
    names = [name for part in encodings.split(",") if (name := part.strip().lower()) not in {"", "identity"}]
    if len(names) > _MOST_ENCODINGS:
        raise BrokenCompressionError(f"it is packed {len(names)} times")
    for name in reversed(names):
        if not body:
            break
        # Only gzip and zstd files may have several members, one after another; gzip also zeros after the last.
        is_several = name in {"gzip", "x-gzip", "zstd"}
        body = _unpacked_members(body, _unpacker_of(name, body), max_bytes, is_several=is_several)
    return body


def _unpacker_of(name: str, body: bytes) -> Callable[[], _Unpacker]:
    if name in {"gzip", "x-gzip"}:
        return lambda: zlib.decompressobj(_GZIP)
    if name == "deflate":
        # Meant is zlib's format; some servers send the bare one.
        has_header = body[0] & 0x0F == _ZLIB_METHOD
        return lambda: zlib.decompressobj(_ZLIB if has_header else _RAW)
    if name == "br" and name in accepted():
        return _Brotli
    if name == "zstd" and name in accepted():
        module = next(filter(_is_installed, _ZSTD_MODULES))
        unpacker: Callable[[], _Unpacker] = import_module(module).ZstdDecompressor
        return unpacker
    raise UnknownCompressionError(name)


def _unpacked_members(
    packed: bytes, begin: Callable[[], _Unpacker], max_bytes: int, *, is_several: bool
) -> bytes:
    found = bytearray()
    members, position = 0, 0
    view = memoryview(packed)
    while position < len(packed):
        if members == _MOST_MEMBERS:
            raise BrokenCompressionError(f"it has more than {_MOST_MEMBERS} parts")
        members += 1
        unpacker = begin()
        while not unpacker.eof:
            piece = view[position : position + _PIECE]
            if not piece:
                raise BrokenCompressionError("it ends too early")
            found += _unpacked_piece(unpacker, piece, max_bytes + 1 - len(found))
            if len(found) > max_bytes:
                raise OversizedAnswerError(f"more than {max_bytes} bytes")
            position += len(piece) - len(unpacker.unused_data)
        is_padded = packed[position : position + 1] == b"\0" and not packed[position:].strip(b"\0")
        if not is_several or is_padded:
            break
    return bytes(found)


def _unpacked_piece(unpacker: _Unpacker, piece: memoryview, most: int) -> bytes:
    """Unpack all of `piece`, or until `most` bytes have come out."""
    try:
        return unpacker.decompress(piece, most)
    except (zlib.error, EOFError) as error:
        raise BrokenCompressionError(str(error)) from error
    except Exception as error:
        # The libraries of brotli and zstd have errors of their own, and are imported only when they are needed.
        if type(error).__module__.partition(".")[0] in {"brotli", "compression", "backports"}:
            raise BrokenCompressionError(str(error)) from error
        raise


class _Brotli:
    """Brotli's decompressor with the interface of zlib's; a body has one member."""

    unused_data = b""

    def __init__(self) -> None:
        self._inner: Any = import_module("brotli").Decompressor()

    @property
    def eof(self) -> bool:
        return bool(self._inner.is_finished())

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        return bytes(self._inner.process(bytes(data), output_buffer_limit=max_length))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False
