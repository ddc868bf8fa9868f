"""Whole exchanges with servers and proxies of this machine, and the connections that they leave behind."""

import asyncio
import base64
import gc
import gzip
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.calls import run
from support.loopback import LoopbackServer, Reply
from support.loops import event_loop_kind
from support.odd_servers import Conversation, TunnelProxy

from geval_cli.providers.network import client as http_connections
from geval_cli.providers.network.client import HttpClient
from geval_cli.providers.network.messages import (
    CutOffAnswerError,
    HttpCall,
    HttpFailure,
    HttpResponse,
    InvalidAddressError,
    NoAnswerError,
    OversizedAnswerError,
    UnknownCompressionError,
    UnsendableRequestError,
)

SECRET = "hunter2000"
__all__ = ["event_loop_kind"]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ROOM = 1_000_000


def using(body: Callable[[HttpClient], Awaitable[Any]], headers: Mapping[str, str] | None = None) -> Any:
    """What `body` gives with a client of its own."""

    async def bounded() -> Any:
        client = HttpClient(headers)
        try:
            return await body(client)
        finally:
            await client.aclose()

    return run(bounded())


def exchanges(
    *calls: HttpCall, proxy: str | None = None, headers: Mapping[str, str] | None = None
) -> list[HttpResponse]:
    """The answers to `calls`, one after another."""

    async def body(client: HttpClient) -> list[HttpResponse]:
        return [await client.exchange(call, max_bytes=ROOM, proxy=proxy) for call in calls]

    found: list[HttpResponse] = using(body, headers)
    return found


def fails(failure: type[BaseException], call: HttpCall, proxy: str | None = None) -> str:
    with pytest.raises(failure) as caught:
        exchanges(call, proxy=proxy)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
    return str(caught.value)


def header_lines(head: str) -> list[str]:
    """The headers of a request, their names in small letters."""
    lines = [line.partition(":") for line in head.split("\r\n")[1:]]
    return [f"{name.lower()}:{value}" for name, _, value in lines]


def url_of(server: Conversation, path: str = "/x") -> str:
    return f"http://127.0.0.1:{server.port}{path}"


class TestRequests:
    def test_what_is_sent(self) -> None:
        with LoopbackServer(Reply(body="ok")) as server:
            call = HttpCall(f"{server.url}/a b?q=ä#part", {"X-Key": "k"}, b"{}")
            [answer] = exchanges(call, headers={"user-agent": "us", "accept": "*/*"})
        assert (answer.status, answer.body) == (200, b"ok")
        [request] = server.requests
        assert (request.method, request.path, request.body) == ("POST", "/a%20b?q=%C3%A4", b"{}")
        assert request.headers == {
            "host": server.url.removeprefix("http://"),
            "user-agent": "us",
            "accept": "*/*",
            "x-key": "k",
            "content-length": "2",
        }

    def test_headers_of_a_call_go_before_ours_in_any_spelling(self) -> None:
        theirs = {
            "HOST": "b.example",
            "User-Agent": "them",
            "AUTHORIZATION": "Bearer k",
            "Accept-Encoding": "br",
        }
        ours = {"user-agent": "us", "accept-encoding": "gzip"}
        with Conversation(OK) as server:
            url = url_of(server).replace("//", "//me:word@")
            exchanges(HttpCall(url, {**theirs, "Content-Length": "9"}, b"12"), headers=ours)
        assert sorted(header_lines(server.heads[0])) == [
            "accept-encoding: br",
            "authorization: Bearer k",
            "content-length: 2",
            "host: b.example",
            "user-agent: them",
        ]

    def test_credentials_of_the_address(self) -> None:
        with Conversation(OK) as server:
            exchanges(HttpCall(url_of(server).replace("//", "//me:p%40ss@")))
        assert f"authorization: Basic {base64.b64encode(b'me:p@ss').decode()}" in header_lines(
            server.heads[0]
        )
        assert "ss@" not in server.heads[0]

    @pytest.mark.parametrize(
        ("call", "failure"),
        [
            (HttpCall(f"http://me:{SECRET}@:1/"), InvalidAddressError),
            (HttpCall(f"http://me:{SECRET}#@127.0.0.1/"), InvalidAddressError),
            (HttpCall("http://127.0.0.1/", {"x-key": f"{SECRET}\r\nx: y"}), UnsendableRequestError),
            (HttpCall("http://127.0.0.1/", {f"{SECRET} ": "y"}), UnsendableRequestError),
            (HttpCall("http://127.0.0.1/", method=f"{SECRET} / HTTP/1.1\r\n"), UnsendableRequestError),
        ],
    )
    def test_what_cannot_be_sent_is_not_shown(self, call: HttpCall, failure: type[HttpFailure]) -> None:
        fails(failure, call)


class TestAnswers:
    def test_a_compressed_one(self) -> None:
        body = gzip.compress(b"plain")
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: GZip \r\ncontent-length: %d\r\n\r\n" % len(body)
        with Conversation(head + body) as server:
            assert exchanges(HttpCall(url_of(server)))[0].body == b"plain"

    def test_an_empty_one_of_a_server_that_says_it_is_compressed(self) -> None:
        with Conversation(b"HTTP/1.1 500 E\r\ncontent-encoding: br\r\ncontent-length: 0\r\n\r\n") as server:
            assert exchanges(HttpCall(url_of(server)))[0].body == b""

    @pytest.mark.parametrize(
        ("encoding", "body", "failure"),
        [
            (b"compress", b"x", UnknownCompressionError),
            (b"gzip", gzip.compress(b"0" * 2 * ROOM), OversizedAnswerError),
        ],
    )
    def test_one_that_cannot_be_unpacked(
        self, encoding: bytes, body: bytes, failure: type[HttpFailure]
    ) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n" % (
            encoding,
            len(body),
        )
        with Conversation(head + body) as server:
            fails(failure, HttpCall(url_of(server)))


class TestKeepingAlive:
    def test_one_connection_for_one_request_after_another(self) -> None:
        with Conversation(OK, OK, OK) as server:
            exchanges(*[HttpCall(url_of(server))] * 3)
        assert server.connections == 1

    @pytest.mark.parametrize(
        "first",
        [
            OK.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n"),
            OK.replace(b"HTTP/1.1", b"HTTP/1.0"),
            OK + OK,
            OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nst",
            OK + b"HTTP/1.1 100 Continue\r\n\r\n",
        ],
    )
    def test_no_second_request_where_an_answer_says_or_shows_that_it_ends(self, first: bytes) -> None:
        with Conversation(first, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong") as odd:
            answers = exchanges(*[HttpCall(url_of(odd))] * 2)
        assert [answer.body for answer in answers] == [b"ok", b"ok"]
        assert odd.connections == 2

    @pytest.mark.parametrize(
        "last_words", [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"]
    )
    def test_a_server_that_closes_an_idle_connection(self, last_words: bytes) -> None:
        """No request goes out over it, even if the event loop has had no time to see that it is closed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]

            async def body(client: HttpClient) -> None:
                loop = asyncio.get_running_loop()
                ends = []
                for _ in range(3):
                    asking = asyncio.ensure_future(
                        client.exchange(HttpCall(f"http://127.0.0.1:{port}/"), max_bytes=9)
                    )
                    end, _ = await loop.sock_accept(listener)
                    ends.append(end)
                    assert await loop.sock_recv(end, 65536)
                    await loop.sock_sendall(end, OK)
                    assert (await asking).status == 200
                    end.setblocking(True)
                    end.sendall(last_words)
                    end.shutdown(socket.SHUT_WR)
                for end in ends:
                    end.close()

            using(body)

    def test_one_that_was_idle_for_long_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_connections, "_KEEP_ALIVE_S", 0.0)
        with Conversation(OK, OK) as server:
            exchanges(*[HttpCall(url_of(server))] * 2)
        assert server.connections == 2

    def test_none_is_shared_by_servers_proxies_or_kinds(self) -> None:
        async def body(client: HttpClient) -> None:
            for url, proxy in (
                (url_of(server), None),
                (url_of(server).replace("127.0.0.1", "localhost"), None),
                (url_of(server), url_of(server)),
                (url_of(server), url_of(server).replace("//", "//me:word@")),
            ):
                await client.exchange(HttpCall(url), max_bytes=ROOM, proxy=proxy)

        with Conversation(OK, OK) as server:
            using(body)
        assert server.connections == 4

    def test_a_failed_exchange_leaves_none(self) -> None:
        async def body(client: HttpClient) -> None:
            for failure in (CutOffAnswerError, NoAnswerError):
                with pytest.raises(failure):
                    await client.exchange(HttpCall(server.url), max_bytes=ROOM)
            with pytest.raises(OversizedAnswerError):
                await client.exchange(HttpCall(server.url), max_bytes=3)
            await client.exchange(HttpCall(server.url), max_bytes=4)

        with LoopbackServer(
            Reply(body="long", truncate=True), Reply(reset=True), Reply(body="long" * 1_000_000)
        ) as server:
            server.add(Reply(body="fits"))
            using(body)
        assert server.connections == 4


class TestTimeAndCancellation:
    @pytest.mark.parametrize(
        "reply", [Reply(hang=True), Reply(body="x" * 100, drip_s=0.02)], ids=["silent", "slow"]
    )
    def test_the_time_is_for_the_whole_answer(self, reply: Reply) -> None:
        with LoopbackServer(reply) as server:
            fails(TimeoutError, HttpCall(server.url, timeout_s=0.1))

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_the_time_is_for_the_connection_too(self, scheme: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            fails(TimeoutError, HttpCall(f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.05))

    @pytest.mark.parametrize("seen", [b"", b"HTTP/1.1 200 OK\r\n", OK[:-1]])
    def test_a_cancelled_request_leaves_no_connection(
        self, seen: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def body(client: HttpClient) -> None:
            loop = asyncio.get_running_loop()
            with socket.create_server(("127.0.0.1", 0)) as listener:
                listener.setblocking(False)
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
                asking = asyncio.ensure_future(client.exchange(HttpCall(url), max_bytes=ROOM))
                end, _ = await loop.sock_accept(listener)
                with end:
                    assert await loop.sock_recv(end, 65536)
                    await loop.sock_sendall(end, seen)
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    asking.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await asking
                    assert await loop.sock_recv(end, 65536) == b""
                second = asyncio.ensure_future(client.exchange(HttpCall(url), max_bytes=ROOM))
                end, _ = await loop.sock_accept(listener)
                with end:
                    await loop.sock_recv(end, 65536)
                    await loop.sock_sendall(end, OK)
                    assert (await second).body == b"ok"

        using(body)
        gc.collect()
        assert [record for record in caplog.records if record.name == "asyncio"] == []


class TestTheEnd:
    def test_twice_and_with_a_request_under_way(self) -> None:
        async def body() -> None:
            client = HttpClient()
            server.hold()
            asking = asyncio.ensure_future(client.exchange(HttpCall(server.url), max_bytes=ROOM))
            await asyncio.to_thread(server.wait_for_requests, 1)
            await client.aclose()
            await client.aclose()
            server.release()
            assert (await asking).body == b"ok"
            assert client._sessions == {}

        before = open_files()
        with LoopbackServer(Reply(body="ok")) as server:
            run(body())
        assert open_files() == before

    def test_one_event_loop_after_another(self) -> None:
        with Conversation(OK, OK) as server:
            for _ in range(2):
                assert exchanges(HttpCall(url_of(server)))[0].body == b"ok"
        assert server.connections == 2

    def test_hundreds_of_requests_leave_nothing_open(self, caplog: pytest.LogCaptureFixture) -> None:
        async def ask(client: HttpClient, number: int) -> int:
            found = 0
            for turn in range(12):
                text = f"{number}.{turn}"
                call = HttpCall(server.url, {"x-answer": text}, b"{}", timeout_s=60)
                if turn == 5 and number % 7 == 0:
                    cut_short = asyncio.ensure_future(client.exchange(call, max_bytes=ROOM))
                    await asyncio.sleep(0)
                    cut_short.cancel()
                    continue
                answer = await client.exchange(call, max_bytes=ROOM)
                found += answer.body == text.encode()
            return found

        async def body(client: HttpClient) -> int:
            return sum(await asyncio.gather(*[ask(client, number) for number in range(50)]))

        before = open_files()
        with LoopbackServer(respond=lambda _, headers: headers["x-answer"]) as server:
            assert using(body) == 50 * 12 - 8
        gc.collect()
        assert open_files() == before
        assert [record for record in caplog.records if record.name == "asyncio"] == []


def open_files() -> int:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("this system does not list the open files of a process")
    gc.collect()
    return len(list(folder.iterdir()))


class TestProxies:
    def test_a_plain_request_names_the_whole_address(self) -> None:
        with Conversation(OK, OK) as proxy:
            through = url_of(proxy, "").replace("//", f"//me:{SECRET}@")
            exchanges(
                *[HttpCall("http://[::1]:8000/a?q=1#b"), HttpCall("http://[::1]:8000/c")], proxy=through
            )
        assert proxy.connections == 1
        first, second = proxy.heads
        assert first.startswith("POST http://[::1]:8000/a?q=1 HTTP/1.1\r\n")
        assert second.startswith("POST http://[::1]:8000/c HTTP/1.1\r\n")
        credentials = base64.b64encode(f"me:{SECRET}".encode()).decode()
        for head in (first, second):
            assert {"host: [::1]:8000", f"proxy-authorization: Basic {credentials}"} <= set(
                header_lines(head)
            )

    def test_a_server_never_sees_what_is_for_proxies(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("models.example").configure_cert(tls)
        own = {"Proxy-Authorization": f"Bearer {SECRET}", "authorization": "Bearer k"}
        with Conversation(OK, OK, tls=tls) as server, TunnelProxy(server.port) as proxy:
            through = f"http://me:{SECRET}@127.0.0.1:{proxy.port}"
            exchanges(*[HttpCall("https://models.example/x", own)] * 2, proxy=through)
        assert len(proxy.heads) == 1
        assert "Bearer" not in proxy.heads[0]
        assert len(server.heads) == 2
        assert "proxy-authorization" not in "".join(server.heads).lower()
        with Conversation(OK) as direct:
            exchanges(HttpCall(url_of(direct), own))
        assert "proxy-authorization" not in direct.heads[0].lower()

    def test_no_failure_shows_a_secret(self) -> None:
        call = HttpCall(f"https://me:{SECRET}@models.example/?key={SECRET}", {"authorization": SECRET})
        for answer in (b"", b"HTTP/1.1 407 P\r\n\r\n", b"junk\r\n", b"HTTP/1.1 200 OK\r\n\r\njunk"):
            with Conversation(answer, hangs_up=True) as proxy:
                fails(HttpFailure, call, f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
