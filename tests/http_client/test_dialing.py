"""Ways to a server: names, addresses, encryption, proxies."""

import asyncio
import datetime
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.calls import run
from support.odd_servers import Conversation, TunnelProxy

from geval_cli.http_client import dialing
from geval_cli.http_client.connection import Connection
from geval_cli.http_client.dialing import Dialer, Route, parse_proxy
from geval_cli.http_client.failures import (
    CertificateError,
    HttpFailure,
    NoConnectionError,
    NoProxyError,
    ProxyRefusalError,
    SlowConnectionError,
    TlsError,
    UnsendableRequestError,
)

SECRET = "hunter2000"
NAME = "models.example"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REQUEST = b"GET / HTTP/1.1\r\nhost: a.example\r\n\r\n"
AGREED = b"HTTP/1.1 200 Connection established\r\n"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


def tls_of(authority: trustme.CA, *names: str, expired: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    until = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC) if expired else None
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) if expired else None
    authority.issue_cert(*(names or (NAME, "127.0.0.1")), not_after=until, not_before=begin).configure_cert(
        context
    )
    return context


def talk(*routes: Route, room: int = 100) -> list[bytes]:
    """What comes back along each of `routes`, one after another."""

    async def body() -> list[bytes]:
        dialer, found = Dialer(), []
        for route in routes:
            connection = await dialer.dial(route)
            try:
                found.append((await connection.exchange(REQUEST, room)).body)
            finally:
                connection.close()
                await connection.closed
        return found

    return run(body())


def fails(failure: type[HttpFailure], route: Route) -> str:
    """What is said when `route` leads nowhere; neither that nor what caused it shows a password."""
    with pytest.raises(failure) as caught:
        talk(route)
    assert type(caught.value) is failure
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
    assert SECRET not in repr(route)
    return str(caught.value)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


class TestPlain:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_a_server_is_found(self, host: str) -> None:
        with Conversation(OK) as server:
            assert talk(Route("http", host, server.port)) == [b"ok"]

    def test_the_system_looks_after_a_silent_connection(self) -> None:
        async def body(port: int) -> int:
            connection = await Dialer().dial(Route("http", "127.0.0.1", port))
            try:
                sock = connection.transport.get_extra_info("socket")
                return int(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            finally:
                connection.close()
                await connection.closed

        with Conversation(OK) as server:
            assert run(body(server.port))

    @needs_ipv6
    def test_ipv6(self) -> None:
        with Conversation(OK, host="::1") as server:
            assert talk(Route("http", "::1", server.port)) == [b"ok"]

    def test_another_address_of_a_name_is_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with Conversation(OK) as server:
            ports = [free_port(), server.port]
            found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            assert talk(Route("http", NAME, 80)) == [b"ok"]

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("::1", marks=needs_ipv6)])
    def test_nobody_there(self, host: str) -> None:
        assert fails(NoConnectionError, Route("http", host, free_port())) == "Connection refused"

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "fe80::1%nosuchzone"])
    def test_a_name_that_leads_nowhere(self, host: str) -> None:
        assert "name" in fails(NoConnectionError, Route("http", host, 80)).lower()

    def test_a_server_that_never_accepts_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dialing, "CONNECT_TIMEOUT_S", 0.05)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            route = Route("https", "127.0.0.1", silent.getsockname()[1])
            assert fails(SlowConnectionError, route) == "within 0.05 s"


class Names:
    """The system's directory of names, in which only `NAME` stands: its answers wait for `may_answer`."""

    def __init__(self, port: int, *, failures: int = 0) -> None:
        self.asked = 0
        self.was_asked = threading.Event()
        self.may_answer = threading.Event()
        self._failures = failures
        self._found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def look_up(self, *_: object, **__: object) -> list[Any]:
        self.asked += 1
        self.was_asked.set()
        fails = self.asked <= self._failures
        self.may_answer.wait(60)
        if fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._found


class TestLookUps:
    def dialling(self, dialer: Dialer, count: int) -> list[asyncio.Task[Connection]]:
        return [asyncio.ensure_future(dialer.dial(Route("http", NAME, 80))) for _ in range(count)]

    async def end(self, *connections: Connection) -> None:
        for connection in connections:
            connection.close()
            await connection.closed

    def test_many_at_once_ask_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body(names: Names) -> None:
            names.may_answer.set()
            await self.end(*await asyncio.gather(*self.dialling(Dialer(), 20)))

        with Conversation(OK) as server:
            names = Names(server.port)
            monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
            run(body(names))
        assert names.asked == 1

    @pytest.mark.parametrize("cancelled", [1, 3])
    def test_a_failure_is_not_remembered(self, monkeypatch: pytest.MonkeyPatch, cancelled: int) -> None:
        """Not even when all who asked had gone before it was known."""

        async def body(names: Names) -> None:
            dialer = Dialer()
            waiting = self.dialling(dialer, 3)
            await asyncio.to_thread(names.was_asked.wait, 60)
            for task in waiting[:cancelled]:
                task.cancel()
            outcomes = await asyncio.gather(*waiting[:cancelled], return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * cancelled
            names.may_answer.set()
            for task in waiting[cancelled:]:
                with pytest.raises(NoConnectionError, match="Temporary failure in name resolution"):
                    await task
            for lookup in list(dialer._lookups.values()):
                await asyncio.wait([lookup.task])
            await asyncio.sleep(0)
            await self.end(await dialer.dial(Route("http", NAME, 80)))

        with Conversation(OK) as server:
            names = Names(server.port, failures=1)
            monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
            run(body(names))
        assert names.asked == 2

    def test_who_waits_does_not_depend_on_who_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body(names: Names) -> None:
            first, second = self.dialling(Dialer(), 2)
            await asyncio.to_thread(names.was_asked.wait, 60)
            first.cancel()
            names.may_answer.set()
            await self.end(await second)

        with Conversation(OK) as server:
            names = Names(server.port)
            monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
            run(body(names))

    def test_the_time_for_a_connection_holds_for_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        names = Names(1)
        monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
        monkeypatch.setattr(dialing, "CONNECT_TIMEOUT_S", 0.05)

        async def body() -> None:
            try:
                with pytest.raises(SlowConnectionError):
                    await Dialer().dial(Route("http", NAME, 80))
            finally:
                names.may_answer.set()

        run(body())


@pytest.mark.usefixtures("trusted")
class TestEncryption:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_a_certificate_of_a_known_authority(self, authority: trustme.CA, host: str) -> None:
        with Conversation(OK, tls=tls_of(authority, "localhost", "127.0.0.1")) as server:
            assert talk(Route("https", host, server.port)) == [b"ok"]

    @pytest.mark.parametrize("hangs_up", [False, True])
    def test_long_answers_and_such_that_end_with_the_connection(
        self, authority: trustme.CA, hangs_up: bool
    ) -> None:
        text = b"x" * 300_000
        length = b"" if hangs_up else b"content-length: %d\r\n" % len(text)
        payload = b"HTTP/1.1 200 OK\r\n" + length + b"\r\n" + text
        with Conversation(payload, tls=tls_of(authority), hangs_up=hangs_up) as server:
            assert talk(Route("https", "127.0.0.1", server.port), room=len(text)) == [text]

    def test_an_unknown_authority(self) -> None:
        with Conversation(OK, tls=tls_of(trustme.CA(), "127.0.0.1")) as server:
            said = fails(CertificateError, Route("https", "127.0.0.1", server.port))
        assert "issuer" in said
        assert server.heads == []

    def test_another_name(self, authority: trustme.CA) -> None:
        with Conversation(OK, tls=tls_of(authority, "other.example")) as server:
            said = fails(CertificateError, Route("https", "127.0.0.1", server.port))
        assert "not valid for '127.0.0.1'" in said

    def test_an_expired_one(self, authority: trustme.CA) -> None:
        with Conversation(OK, tls=tls_of(authority, expired=True)) as server:
            assert (
                fails(CertificateError, Route("https", "127.0.0.1", server.port)) == "certificate has expired"
            )

    def test_a_server_without_encryption(self) -> None:
        with Conversation(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
            assert "VERSION" in fails(TlsError, Route("https", "127.0.0.1", server.port))

    def test_plain_words_to_an_encrypted_server(self, authority: trustme.CA) -> None:
        with Conversation(OK, tls=tls_of(authority)) as server, pytest.raises(HttpFailure) as caught:
            talk(Route("http", "127.0.0.1", server.port))
        assert not isinstance(caught.value, TlsError)

    def test_a_server_that_hangs_up_in_the_handshake(self) -> None:
        with Conversation(hangs_up=True) as server:
            said = fails(NoConnectionError, Route("https", "127.0.0.1", server.port))
        assert said in {
            "it closed the connection while encryption was agreed upon",
            "Connection reset by peer",
        }


@pytest.mark.usefixtures("trusted")
class TestTunnels:
    @pytest.mark.parametrize(
        "agree",
        [
            AGREED + b"\r\n",
            b"HTTP/1.0 200 Connection established\r\n\r\n",
            b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
            AGREED + b"content-length: 0\r\nconnection: close\r\n\r\n",
            AGREED + b"transfer-encoding: chunked\r\n\r\n",
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" + AGREED + b"\r\n",
        ],
    )
    def test_a_proxy_leads_to_the_server(self, authority: trustme.CA, agree: bytes) -> None:
        with (
            Conversation(OK, OK.replace(b"\r\n", b"\n"), tls=tls_of(authority)) as server,
            TunnelProxy(server.port, agree=agree) as proxy,
        ):

            async def body() -> None:
                connection = await Dialer().dial(
                    Route("https", NAME, 443, f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
                )
                for _ in range(2):
                    assert (await connection.exchange(REQUEST, 100)).body == b"ok"
                    assert connection.is_open
                connection.close()
                await connection.closed

            run(body())
        assert proxy.heads[0].startswith(f"CONNECT {NAME}:443 HTTP/1.1\r\nhost: {NAME}:443\r\n")
        assert "proxy-authorization: Basic " in proxy.heads[0]
        assert "proxy-authorization" not in "".join(server.heads)

    def test_encryption_within_encryption(self, authority: trustme.CA) -> None:
        with (
            Conversation(OK, tls=tls_of(authority)) as server,
            TunnelProxy(server.port, tls=tls_of(authority)) as proxy,
        ):
            assert talk(Route("https", NAME, 443, f"https://127.0.0.1:{proxy.port}")) == [b"ok"]

    def test_the_dot_of_a_complete_name_is_in_no_certificate(self, authority: trustme.CA) -> None:
        with Conversation(OK, tls=tls_of(authority)) as server, TunnelProxy(server.port) as proxy:
            assert talk(Route("https", f"{NAME}.", 443, f"http://127.0.0.1:{proxy.port}")) == [b"ok"]

    def test_an_ipv6_target_stands_in_brackets(self, authority: trustme.CA) -> None:
        with Conversation(OK, tls=tls_of(authority, "::1")) as server, TunnelProxy(server.port) as proxy:
            assert talk(Route("https", "::1", 8443, f"127.0.0.1:{proxy.port}")) == [b"ok"]
        assert proxy.heads[0].startswith("CONNECT [::1]:8443 ")

    @pytest.mark.parametrize("status", [301, 403, 407, 502])
    @pytest.mark.parametrize("rest", [b"content-length: 9000000\r\n\r\n", b"\r\nbody"])
    def test_a_proxy_that_refuses(self, status: int, rest: bytes) -> None:
        with TunnelProxy(0, refuse=b"HTTP/1.1 %d No\r\n%s" % (status, rest)) as proxy:
            route = Route("https", NAME, 443, f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
            assert fails(ProxyRefusalError, route) == f"HTTP {status}"

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (b"SSH-2.0-x\r\n", "sent something that is not HTTP"),
            (b"HTTP/1.1 200 O", "closed the connection without an answer"),
        ],
    )
    def test_a_proxy_that_is_none(self, answer: bytes, said: str) -> None:
        with TunnelProxy(0, refuse=answer) as proxy:
            assert said in fails(NoProxyError, Route("https", NAME, 443, f"http://127.0.0.1:{proxy.port}"))

    def test_a_proxy_that_hangs_up(self) -> None:
        with Conversation(b"", hangs_up=True) as proxy:
            route = Route("https", NAME, 443, f"http://me:{SECRET}@127.0.0.1:{proxy.port}")
            assert "closed the connection" in fails(NoProxyError, route)

    def test_a_proxy_that_is_not_there(self) -> None:
        route = Route("https", NAME, 443, f"http://me:{SECRET}@127.0.0.1:{free_port()}")
        assert fails(NoProxyError, route) == "Connection refused"

    def test_a_proxy_whose_certificate_is_not_to_be_trusted(self) -> None:
        with TunnelProxy(0, tls=tls_of(trustme.CA())) as proxy:
            route = Route("https", NAME, 443, f"https://me:{SECRET}@127.0.0.1:{proxy.port}")
            assert "issuer" in fails(NoProxyError, route)

    def test_a_server_behind_a_proxy_whose_certificate_is_not_to_be_trusted(self) -> None:
        with Conversation(OK, tls=tls_of(trustme.CA())) as server, TunnelProxy(server.port) as proxy:
            said = fails(CertificateError, Route("https", NAME, 443, f"http://127.0.0.1:{proxy.port}"))
        assert "issuer" in said

    def test_a_server_behind_a_proxy_that_hangs_up(self) -> None:
        with Conversation(hangs_up=True) as server, TunnelProxy(server.port) as proxy:
            said = fails(NoConnectionError, Route("https", NAME, 443, f"http://127.0.0.1:{proxy.port}"))
        assert said in {
            "it closed the connection while encryption was agreed upon",
            "Connection reset by peer",
        }


@pytest.mark.parametrize(
    ("url", "host", "port", "user_info"),
    [
        ("http://proxy.example:3128", "proxy.example", 3128, ""),
        ("proxy.example:3128", "proxy.example", 3128, ""),
        ("me:word@proxy.example", "proxy.example", 80, "me:word"),
        ("https://proxy.example", "proxy.example", 443, ""),
    ],
)
def test_addresses_of_proxies(url: str, host: str, port: int, user_info: str) -> None:
    proxy = parse_proxy(url)
    assert (proxy.host, proxy.port, proxy.user_info) == (host, port, user_info)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"socks5://me:{SECRET}@127.0.0.1:1080", "only HTTP proxies"),
        ("SOCKS5H://127.0.0.1:1080", "only HTTP proxies"),
        (f"ftp://me:{SECRET}@127.0.0.1", "not valid"),
        (f"me:{SECRET}@", "not valid"),
        (f"http://me:{SECRET}#@127.0.0.1", "not valid"),
        ("http://", "not valid"),
    ],
)
def test_what_is_no_proxy_is_refused_without_its_password(url: str, said: str) -> None:
    assert said in fails(UnsendableRequestError, Route("https", NAME, 443, url))


STAGES: dict[str, Callable[[int], Route]] = {
    "encrypting": lambda port: Route("https", "127.0.0.1", port),
    "asking a proxy": lambda port: Route("https", NAME, 443, f"http://127.0.0.1:{port}"),
    "encrypting to a proxy": lambda port: Route("https", NAME, 443, f"https://127.0.0.1:{port}"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_gives_up_leaves_no_connection_open(stage: str) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            dialling = asyncio.ensure_future(Dialer().dial(STAGES[stage](silent.getsockname()[1])))
            loop = asyncio.get_running_loop()
            theirs, _ = await loop.sock_accept(silent)
            with theirs:
                assert await loop.sock_recv(theirs, 65536)
                dialling.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await dialling
                assert await loop.sock_recv(theirs, 65536) == b""

    run(body())
