import gzip
import sys
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.providers.network import client
from geval_cli.providers.network.client import accepted, unpacked
from geval_cli.providers.network.messages import (
    BrokenCompressionError,
    HttpFailure,
    OversizedAnswerError,
    UnknownCompressionError,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ROOM = 1_000_000


def raw_deflate(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(plain) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "X-GZIP": gzip.compress,
    "deflate": zlib.compress,
    " Deflate ": raw_deflate,
    "identity": bytes,
    "": bytes,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "gzip, deflate": lambda plain: zlib.compress(gzip.compress(plain, mtime=0)),
    "deflate, identity, gzip": lambda plain: gzip.compress(zlib.compress(plain)),
}


BOMBS = {"br": brotli.compress(b"0" * 50_000_000, quality=5), "zstd": zstd.compress(b"0" * 50_000_000)}


@pytest.mark.parametrize("encodings", PACKERS)
@settings(max_examples=40, deadline=None)
@given(plain=st.binary() | st.binary(min_size=1, max_size=8).map(lambda part: part * 20_000))
def test_what_was_packed_comes_out(encodings: str, plain: bytes) -> None:
    assert unpacked(PACKERS[encodings](plain), encodings, ROOM) == plain


@settings(max_examples=40, deadline=None)
@given(st.lists(st.binary(), min_size=1, max_size=5), st.integers(0, 9))
def test_members_one_after_another_and_zeros_after_the_last(plain: list[bytes], zeros: int) -> None:
    body = b"".join(map(gzip.compress, plain)) + b"\0" * zeros
    assert unpacked(body, "gzip", ROOM) == b"".join(plain)


@pytest.mark.parametrize("encodings", ["gzip", "deflate", "br", "zstd", "compress", "gzip, deflate"])
def test_an_empty_body_is_empty(encodings: str) -> None:
    assert unpacked(b"", encodings, ROOM) == b""


@settings(max_examples=40, deadline=None)
@given(st.binary(), st.sampled_from(["gzip", "deflate", "gzip, deflate", "br", "zstd", "x,", "gzip," * 9]))
def test_no_bytes_give_anything_but_bytes_or_a_failure(body: bytes, encodings: str) -> None:
    try:
        unpacked(body, encodings, 100)
    except HttpFailure:
        return


@pytest.mark.parametrize(
    ("body", "encodings"),
    [
        (b"not packed at all", "gzip"),
        (b"not packed at all", "deflate"),
        (gzip.compress(b"plain", mtime=0)[:-1], "gzip"),
        (gzip.compress(b"plain", mtime=0)[:5], "gzip"),
        (zlib.compress(b"plain")[:-1], "deflate"),
        (raw_deflate(b"plain" * 100)[:-1], "deflate"),
        (gzip.compress(b"plain", mtime=0) + b"garbage", "gzip"),
        (gzip.compress(b"plain", mtime=0) + b"\0garbage", "gzip"),
        (gzip.compress(b"plain", mtime=0)[:-8] + b"12345678", "gzip"),
        (gzip.compress(b"", mtime=0) * 2_000, "gzip"),
        (b"not packed at all", "br"),
        (b"not packed at all", "zstd"),
        (brotli.compress(b"plain")[:-1], "br"),
        (zstd.compress(b"plain")[:-1], "zstd"),
        (zstd.compress(b"plain") + b"garbage", "zstd"),
        (gzip.compress(b"plain", mtime=0), "gzip, gzip, gzip, gzip"),
    ],
)
def test_what_cannot_be_unpacked_is_broken(body: bytes, encodings: str) -> None:
    with pytest.raises(BrokenCompressionError):
        unpacked(body, encodings, ROOM)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress"])
def test_other_encodings_are_named(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "accepted", lambda: "gzip, deflate")
    with pytest.raises(UnknownCompressionError) as caught:
        unpacked(b"packed", f"gzip, {encoding.upper()}", ROOM)
    assert caught.value.encoding == encoding


def test_what_is_installed_is_asked_for() -> None:
    assert accepted() == "gzip, deflate, br, zstd"


@pytest.mark.parametrize("name", ["gzip", "deflate", " Deflate ", "br", "zstd"])
def test_the_room_is_for_what_comes_out(name: str) -> None:
    packed = PACKERS[name](b"0" * 5_000)
    assert len(unpacked(packed, name, 5_000)) == 5_000
    with pytest.raises(OversizedAnswerError):
        unpacked(packed, name, 4_999)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = gzip.compress(gzip.compress(b"\0" * 10_000_000, mtime=0))
    with pytest.raises(OversizedAnswerError):
        unpacked(bomb, "gzip, gzip", 1_000_000)


@pytest.mark.parametrize("name", ["br", "zstd"])
def test_a_bomb_of_another_kind_is_not_unpacked(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(OversizedAnswerError):
            unpacked(BOMBS[name], name, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_the_room_is_shared_by_all_members() -> None:
    with pytest.raises(OversizedAnswerError):
        unpacked(gzip.compress(b"0" * 60, mtime=0) * 2, "gzip", 100)
