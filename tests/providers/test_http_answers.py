"""What a server may send, and what it may not: answers read from a socket whose other end a test plays itself."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.calls import run
from support.loops import event_loop_kind

from geval_cli.providers.network.client import HttpClient
from geval_cli.providers.network.messages import (
    CutOffAnswerError,
    HttpCall,
    HttpFailure,
    HttpResponse,
    NoAnswerError,
    NotHttpError,
    OversizedAnswerError,
)

__all__ = ["event_loop_kind"]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LATER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nlater"
ROOM = 1_000_000


class Server:
    """Listens on this machine; a test accepts each connection itself, and sends what it wants to."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._ends: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/"

    @property
    def connections(self) -> int:
        return len(self._ends)

    @property
    def is_talking(self) -> bool:
        return bool(self._ends) and self._ends[-1].fileno() >= 0

    async def accept(self) -> None:
        end, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        end.setblocking(False)
        self._ends.append(end)

    async def send(self, *pieces: bytes) -> None:
        """Each of them is read before the next one is sent, unless the connection is closed before."""
        with suppress(ConnectionError):
            for piece in pieces:
                await asyncio.get_running_loop().sock_sendall(self._ends[-1], piece)
                await settle()

    async def flood(self, piece: bytes) -> None:
        for _ in range(20):
            await asyncio.get_running_loop().sock_sendall(self._ends[-1], piece)
            await settle()

    async def receive(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._ends[-1], 1_000_000)

    async def hang_up(self) -> None:
        self.close()
        await settle()

    def close(self) -> None:
        for end in self._ends:
            end.close()


async def settle() -> None:
    """Let the event loop look at its sockets, and do what follows from that."""
    for _ in range(4):
        await asyncio.sleep(0)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[HttpClient, Server]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        client, server = HttpClient(), Server(listener)
        try:
            yield client, server
        finally:
            await client.aclose()
            server.close()


async def next_request(server: Server, asking: "asyncio.Task[HttpResponse]") -> bytes:
    """The head of the request, which comes over a new connection or over the last one."""
    connecting = asyncio.ensure_future(server.accept())
    reading = [connecting]
    if server.is_talking:
        reading.append(asyncio.ensure_future(server.receive()))
    try:
        while True:
            await asyncio.wait([*reading, asking], return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                return await server.receive()
            if reading[-1].done() and reading[-1].result():
                return reading[-1].result()
            if asking.done():
                return b""
            await asyncio.sleep(0)
    finally:
        for task in reading:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task


async def answer_to(
    client: HttpClient,
    server: Server,
    *pieces: bytes,
    hangs_up: bool = False,
    room: int = ROOM,
    body: bytes = b"",
) -> HttpResponse:
    asking = asyncio.ensure_future(client.exchange(HttpCall(server.url, body=body), max_bytes=room))
    assert (await next_request(server, asking)).startswith(b"POST / HTTP/1.1\r\n")
    await server.send(*pieces)
    if hangs_up:
        await server.hang_up()
    return await asyncio.wait_for(asking, 60)


def read(*pieces: bytes, hangs_up: bool = False, room: int = ROOM) -> tuple[HttpResponse, bool]:
    """The answer that `pieces` are, whatever time it took, and whether the connection is used again."""

    async def body() -> tuple[HttpResponse, bool]:
        async with connected() as (client, server):
            answer = await answer_to(client, server, *pieces, hangs_up=hangs_up, room=room)
            assert (await answer_to(client, server, LATER)).body == b"later"
            return replace(answer, latency_ms=0.0), server.connections == 1

    return run(body())


ANSWERS: list[tuple[str, bytes, int, bytes, bool]] = [
    ("with a length", OK, 200, b"ok", True),
    ("without a word for the status", OK.replace(b" OK", b""), 200, b"ok", True),
    ("that ends the connection", OK.replace(b"OK\r\n", b"OK\r\nConnection: Close\r\n"), 200, b"ok", False),
    ("of HTTP/1.0", OK.replace(b"1.1", b"1.0"), 200, b"ok", False),
    (
        "of HTTP/1.0 that keeps the connection",
        OK.replace(b"1.1 200 OK\r\n", b"1.0 200 OK\r\nconnection: keep-alive\r\n"),
        200,
        b"ok",
        True,
    ),
    ("without content", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b"", True),
    ("without content, of a length", b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", 204, b"", True),
    ("that nothing has changed", b"HTTP/1.1 304 N\r\ncontent-length: 9\r\n\r\n", 304, b"", True),
    ("of length 0", b"HTTP/1.1 500 E\r\ncontent-length: 0\r\n\r\n", 500, b"", True),
    ("after 100 Continue", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok", True),
    (
        "after early hints",
        b"HTTP/1.1 103 E\r\nlink: </a>\r\ncontent-length: 7\r\n\r\n" * 3 + OK,
        200,
        b"ok",
        True,
    ),
    ("in chunks", CHUNKED + b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n", 200, b"ok", True),
    ("in chunks with more to say", CHUNKED + b'2;a=b;c="d"\r\nok\r\n0\r\nx-sum: 1\r\n\r\n', 200, b"ok", True),
    (
        "in chunks, as the last coding",
        CHUNKED.replace(b"chunked", b"x, Chunked ") + b"0\r\n\r\n",
        200,
        b"",
        True,
    ),
    ("in no chunks", CHUNKED + b"0\r\n\r\n", 200, b"", True),
    ("with lines that end in line feeds", OK.replace(b"\r\n", b"\n"), 200, b"ok", True),
    ("after empty lines", b"\r\n\r\n" + OK, 200, b"ok", True),
    ("with a space before a colon", OK.replace(b"length:", b"length :"), 200, b"ok", True),
    (
        "that offers another protocol",
        OK.replace(b"OK\r\n", b"OK\r\nupgrade: h2c\r\nconnection: upgrade, keep-alive\r\n"),
        200,
        b"ok",
        True,
    ),
]


@pytest.mark.parametrize(
    ("payload", "status", "body", "stays"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS]
)
def test_an_answer(payload: bytes, status: int, body: bytes, stays: bool) -> None:
    answer, is_usable = read(payload)
    assert (answer.status, answer.body) == (status, body)
    assert is_usable is stays


@pytest.mark.parametrize("payload", [row[1] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_an_answer_byte_by_byte(payload: bytes) -> None:
    assert read(*[payload[i : i + 1] for i in range(len(payload))]) == read(payload)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([row[1] for row in ANSWERS]), st.lists(st.integers(1, 60), max_size=8))
def test_an_answer_in_pieces(payload: bytes, lengths: Sequence[int]) -> None:
    pieces, position = [], 0
    for length in lengths:
        pieces.append(payload[position : position + length])
        position += length
    assert read(*filter(None, [*pieces, payload[position:]])) == read(payload)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\n", b"until the end"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, x\r\n\r\n", b"0\r\n\r\n"),
    ],
)
def test_a_body_that_ends_with_the_connection(head: bytes, body: bytes) -> None:
    answer, is_usable = read(head + body[:5], *filter(None, [body[5:]]), hangs_up=True)
    assert answer.body == body
    assert not is_usable


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"X-Name: one\r\n", {"x-name": "one"}),
        (b"x: one\r\nX: two\r\nx: three\r\n", {"x": "one, two, three"}),
        (b"x:\r\ny:   \r\nz: 1  \r\n", {"x": "", "y": "", "z": "1"}),
        (b"x: one\r\n  two\r\n\tthree\r\n", {"x": "one  two\tthree"}),
        (b"x: \xc3\xbc\r\n", {"x": "ü"}),
        (b"x: \xfc\r\n", {"x": "\ufffd"}),
        (b"x: a\x01b:c\r\n", {"x": "a\x01b:c"}),
    ],
)
def test_headers(lines: bytes, expected: dict[str, str]) -> None:
    answer, _ = read(OK.replace(b"OK\r\n", b"OK\r\n" + lines))
    assert answer.headers == {**expected, "content-length": "2"}


def test_trailers_change_no_header() -> None:
    answer, _ = read(CHUNKED.replace(b"OK\r\n", b"OK\r\nx: 1\r\n") + b"0\r\nx: 2\r\ny: 3\r\n\r\n")
    assert answer.headers == {"x": "1", "transfer-encoding": "chunked"}


@pytest.mark.parametrize(
    "payload",
    [
        b"220 mail.example ESMTP\r\n",
        b"<html>\r\n",
        b"HTTP/1.1 OK 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        OK.replace(b": 2", b": -2"),
        OK.replace(b": 2", b": 2a"),
        OK.replace(b": 2", b": "),
        OK.replace(b": 2", b": 99999999999999999999999"),
        OK.replace(b": 2", b": 2\r\ncontent-length: 3"),
        OK.replace(b": 2", b": 2\r\ntransfer-encoding: chunked"),
        OK.replace(b": 2", b": 2\r\nx\xff: 1"),
        CHUNKED + b"2\r\nokay\r\n0\r\n\r\n",
        CHUNKED + b"two\r\nok\r\n",
        CHUNKED + b"fffffffffffffffff\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n\x81\x00",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 2_000,
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000,
    ],
    ids=lambda payload: repr(payload[:70]),
)
def test_what_is_no_http(payload: bytes) -> None:
    with pytest.raises(NotHttpError):
        read(payload)


@pytest.mark.parametrize(
    ("payload", "failure"),
    [
        (b"", NoAnswerError),
        (b"H", NoAnswerError),
        (b"HTTP/1.1 100 Continue\r\n\r\n", NoAnswerError),
        (b"HTTP/1.1 200 OK\r\nx: y\r\n", NoAnswerError),
        (OK[:-1], CutOffAnswerError),
        (OK.replace(b"length:", b"length :")[:-1], CutOffAnswerError),
        (CHUNKED + b"2\r\nok\r\n", CutOffAnswerError),
        (CHUNKED + b"2\r\nok\r\n0\r\n", CutOffAnswerError),
    ],
)
def test_what_ends_too_early(payload: bytes, failure: type[HttpFailure]) -> None:
    with pytest.raises(failure):
        read(*filter(None, [payload]), hangs_up=True)


@pytest.mark.parametrize(
    ("payload", "hangs_up"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789", False),
        (CHUNKED + b"5\r\n12345\r\n4\r\n6789\r\n0\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n\r\n123456789", True),
    ],
)
def test_the_room_is_for_the_body(payload: bytes, hangs_up: bool) -> None:
    assert read(payload, hangs_up=hangs_up, room=9)[0].body == b"123456789"
    with pytest.raises(OversizedAnswerError):
        read(payload, hangs_up=hangs_up, room=8)


def test_a_body_in_chunks_of_one_byte_is_no_endless_framing() -> None:
    answer, _ = read(CHUNKED + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")
    assert answer.body == b"x" * 100_000


def is_used_after(*steps: bytes) -> bool:
    """Whether the connection is used for the next request, whose answer is its own, once all `steps` have come."""

    async def body() -> bool:
        async with connected() as (client, server):
            first, *others = steps
            assert (await answer_to(client, server, first)).body == b"ok"
            await server.send(*others)
            assert (await answer_to(client, server, LATER)).body == b"later"
            return server.connections == 1

    return run(body())


@pytest.mark.parametrize(
    "stray",
    [
        OK,
        b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nbegun",
        CHUNKED,
        CHUNKED + b"5\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 204 Probe\r\n\r\n",
        b"HTTP/1.1 101 S\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 408 T\r\n\r\n",
    ],
)
def test_what_nobody_asked_for_is_not_taken_for_the_next_answer(stray: bytes) -> None:
    assert is_used_after(OK)
    assert not is_used_after(OK + stray)
    assert not is_used_after(OK, stray)
    assert not is_used_after(CHUNKED + b"2\r\nok\r\n0\r\n\r\n" + stray)


@pytest.mark.parametrize("stray", [b"H", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"])
def test_a_part_of_a_head_that_nobody_asked_for_is_no_part_of_the_next_answer(stray: bytes) -> None:
    is_used_after(OK + stray)
    is_used_after(OK, stray)


@pytest.mark.parametrize("stray", [b"garbage", b"\0", b"HTTP/1.1 OK 200\r\n\r\n"])
def test_an_answer_that_is_followed_by_what_is_no_http_is_none(stray: bytes) -> None:
    with pytest.raises(NotHttpError):
        read(OK + stray)
    assert not is_used_after(OK, stray)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_what_the_event_loop_has_not_seen_yet_counts_too(hangs_up: bool) -> None:
    async def body() -> None:
        async with connected() as (client, server):
            await answer_to(client, server, OK)
            end = server._ends[-1]
            if not hangs_up:
                end.send(OK)
            end.shutdown(socket.SHUT_WR)
            assert (await answer_to(client, server, LATER)).body == b"later"
            assert server.connections == 2

    run(body())


def test_one_request_after_another() -> None:
    async def body() -> list[bytes]:
        async with connected() as (client, server):
            found = [(await answer_to(client, server, row[1])).body for row in ANSWERS if row[4]]
            assert server.connections == 1
            return found

    assert run(body()) == [row[3] for row in ANSWERS if row[4]]


def test_an_answer_before_the_request_is_out_ends_the_connection() -> None:
    async def body() -> None:
        async with connected() as (client, server):
            early = OK.replace(b"200", b"413")
            assert (await answer_to(client, server, early, body=b"x" * 20_000_000)).status == 413
            with suppress(ConnectionError):
                while await server.receive():  # what was under way, until the client hangs up
                    pass
            assert (await answer_to(client, server, LATER)).body == b"later"
            assert server.connections == 2

    run(body())


def test_a_flood_on_an_idle_connection_is_never_the_next_answer() -> None:
    async def body() -> None:
        async with connected() as (client, server):
            await answer_to(client, server, OK)
            with suppress(ConnectionError):
                await server.flood(OK * 1000)
            assert (await answer_to(client, server, LATER)).body == b"later"
            assert server.connections == 2

    run(body())
