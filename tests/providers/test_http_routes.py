"""Ways to a server: names, addresses, encryption, proxies."""

import asyncio
import datetime
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
import truststore
from support.calls import run
from support.odd_servers import Conversation, SocksProxy, TunnelProxy

from geval_cli.providers.network import client as http_connections
from geval_cli.providers.network.addresses import CA_VARIABLES, ClientCertificate, parse_proxy, tls_context
from geval_cli.providers.network.client import HttpClient
from geval_cli.providers.network.messages import (
    CertificateError,
    HttpCall,
    HttpFailure,
    NoConnectionError,
    NoProxyError,
    ProxyRefusalError,
    SlowConnectionError,
    TlsError,
    UnsendableRequestError,
)
from geval_cli.version import install_hint

SECRET = "hunter2000"
NAME = "models.example"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
AGREED = b"HTTP/1.1 200 Connection established\r\n"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    clear_bundles(monkeypatch)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


def clear_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CA_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def tls_of(authority: trustme.CA, *names: str, expired: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    until = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC) if expired else None
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) if expired else None
    authority.issue_cert(*(names or (NAME, "127.0.0.1")), not_after=until, not_before=begin).configure_cert(
        context
    )
    return context


class Route(NamedTuple):
    """A way to a server."""

    scheme: str
    host: str
    port: int
    proxy: str | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"


async def ask(client: HttpClient, route: Route, room: int = 100) -> bytes:
    call = HttpCall(f"{route.url}?key={SECRET}", {"authorization": SECRET})
    return (await client.exchange(call, max_bytes=room, proxy=route.proxy)).body


def talk(*routes: Route, room: int = 100, certificate: ClientCertificate | None = None) -> list[bytes]:
    """What comes back along each of `routes`, one after another."""

    async def body() -> list[bytes]:
        client = HttpClient(certificate=certificate)
        try:
            return [await ask(client, route, room) for route in routes]
        finally:
            await client.aclose()

    return run(body())


def fails(failure: type[HttpFailure], route: Route) -> str:
    """What is said when `route` leads nowhere; neither that nor what caused it shows a password or the request."""
    with pytest.raises(failure) as caught:
        talk(route)
    assert type(caught.value) is failure
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__
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
        family = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))
        with http_connections._new_socket(family) as made:
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

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
        monkeypatch.setattr(http_connections, "CONNECT_TIMEOUT_S", 0.05)
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

    def find_run(self, *_: object, **__: object) -> list[Any]:
        self.asked += 1
        self.was_asked.set()
        fails = self.asked <= self._failures
        self.may_answer.wait(60)
        if fails:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._found


class TestLookUps:
    def asking(self, client: HttpClient, count: int) -> list[asyncio.Task[bytes]]:
        return [asyncio.ensure_future(ask(client, Route("http", NAME, 80))) for _ in range(count)]

    def with_names(self, monkeypatch: pytest.MonkeyPatch, names: Names, body: Callable[..., Any]) -> None:
        async def bounded() -> None:
            client = HttpClient()
            try:
                await body(client)
            finally:
                names.may_answer.set()
                await client.aclose()

        monkeypatch.setattr(socket, "getaddrinfo", names.find_run)
        run(bounded())

    def test_many_at_once_ask_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body(client: HttpClient) -> None:
            names.may_answer.set()
            assert await asyncio.gather(*self.asking(client, 20)) == [b"ok"] * 20

        with Conversation(OK) as server:
            names = Names(server.port)
            self.with_names(monkeypatch, names, body)
        assert names.asked == 1

    @pytest.mark.parametrize("cancelled", [1, 3])
    def test_a_failure_is_not_remembered(self, monkeypatch: pytest.MonkeyPatch, cancelled: int) -> None:
        """Not even when all who asked had gone before it was known."""

        async def body(client: HttpClient) -> None:
            waiting = self.asking(client, 3)
            await asyncio.to_thread(names.was_asked.wait, 60)
            for task in waiting[:cancelled]:
                task.cancel()
            outcomes = await asyncio.gather(*waiting[:cancelled], return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * cancelled
            names.may_answer.set()
            for task in waiting[cancelled:]:
                with pytest.raises(NoConnectionError, match="Temporary failure in name resolution"):
                    await task
            [connector] = [session.connector for session in client._sessions.values()]
            await asyncio.gather(*connector._resolve_host_tasks, return_exceptions=True)
            assert await ask(client, Route("http", NAME, 80)) == b"ok"

        with Conversation(OK) as server:
            names = Names(server.port, failures=1)
            self.with_names(monkeypatch, names, body)
        assert names.asked == 2

    def test_who_waits_does_not_depend_on_who_asked_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body(client: HttpClient) -> None:
            first, second = self.asking(client, 2)
            await asyncio.to_thread(names.was_asked.wait, 60)
            first.cancel()
            names.may_answer.set()
            assert await second == b"ok"

        with Conversation(OK) as server:
            names = Names(server.port)
            self.with_names(monkeypatch, names, body)

    def test_the_time_for_a_connection_holds_for_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def body(client: HttpClient) -> None:
            with pytest.raises(SlowConnectionError):
                await ask(client, Route("http", NAME, 80))

        monkeypatch.setattr(http_connections, "CONNECT_TIMEOUT_S", 0.05)
        self.with_names(monkeypatch, Names(1), body)


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
            "it closed the connection during the TLS handshake",
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
            b"HTTP/1.1 100 Continue\r\n\r\n" + AGREED + b"\r\n",
        ],
    )
    def test_a_proxy_leads_to_the_server(self, authority: trustme.CA, agree: bytes) -> None:
        with (
            Conversation(OK, OK.replace(b"\r\n", b"\n"), tls=tls_of(authority)) as server,
            TunnelProxy(server.port, agree=agree) as proxy,
        ):
            through = f"http://me:{SECRET}@127.0.0.1:{proxy.port}"
            assert talk(*[Route("https", NAME, 443, through)] * 2) == [b"ok", b"ok"]
        assert server.connections == 1
        head = proxy.heads[0].lower()
        assert head.startswith(f"connect {NAME}:443 http/1.1\r\n")
        assert f"\r\nhost: {NAME}" in head
        assert "proxy-authorization: basic " in head
        assert "\r\nauthorization" not in head
        assert "python" not in head
        assert "proxy-authorization" not in "".join(server.heads).lower()

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
            "it closed the connection during the TLS handshake",
            "Connection reset by peer",
        }


class TestSocks:
    @pytest.mark.parametrize(
        ("scheme", "asked"),
        [
            ("socks4", "127.0.0.1"),
            ("socks4a", "localhost"),
            ("socks5", "127.0.0.1"),
            ("socks5h", "localhost"),
            ("SOCKS5H", "localhost"),
            ("socks", "127.0.0.1"),
        ],
    )
    def test_a_proxy_leads_to_the_server(self, scheme: str, asked: str) -> None:
        with Conversation(OK, OK) as server, SocksProxy(server.port) as proxy:
            route = Route("http", "localhost", 80, f"{scheme}://127.0.0.1:{proxy.port}")
            assert talk(route, route) == [b"ok", b"ok"]
        assert proxy.asked in ([asked], ["::1"] if asked[0] == "1" else [asked])
        assert server.connections == 1

    @pytest.mark.usefixtures("trusted")
    def test_with_a_password_and_encryption(self, authority: trustme.CA) -> None:
        with (
            Conversation(OK, tls=tls_of(authority)) as server,
            SocksProxy(server.port, login=f"me:{SECRET}") as proxy,
        ):
            through = f"socks5h://me:{SECRET}@127.0.0.1:{proxy.port}"
            assert talk(Route("https", NAME, 443, through)) == [b"ok"]
        assert proxy.asked == [NAME]
        assert proxy.logins == [f"me:{SECRET}"]

    @pytest.mark.usefixtures("trusted")
    def test_certificates_are_verified(self) -> None:
        with Conversation(OK, tls=tls_of(trustme.CA())) as server, SocksProxy(server.port) as proxy:
            route = Route("https", NAME, 443, f"socks5h://127.0.0.1:{proxy.port}")
            assert "issuer" in fails(CertificateError, route)
        assert server.heads == []

    @pytest.mark.parametrize("scheme", ["socks4a", "socks5h"])
    def test_a_proxy_that_refuses(self, scheme: str) -> None:
        with SocksProxy(0, refuses=True) as proxy:
            fails(ProxyRefusalError, Route("http", NAME, 80, f"{scheme}://127.0.0.1:{proxy.port}"))

    def test_a_proxy_that_knows_another_password(self) -> None:
        with SocksProxy(0, login="me:other") as proxy:
            fails(ProxyRefusalError, Route("http", NAME, 80, f"socks5h://me:{SECRET}@127.0.0.1:{proxy.port}"))

    def test_a_proxy_that_is_not_there(self) -> None:
        route = Route("http", NAME, 80, f"socks5h://me:{SECRET}@127.0.0.1:{free_port()}")
        assert fails(NoProxyError, route) == "Connection refused"

    def test_a_proxy_that_says_nothing_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_connections, "CONNECT_TIMEOUT_S", 0.05)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            route = Route("http", NAME, 80, f"socks5h://127.0.0.1:{silent.getsockname()[1]}")
            assert fails(SlowConnectionError, route) == "within 0.05 s"

    def test_what_is_missing_is_told_in_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "python_socks.async_.asyncio", None)
        said = fails(UnsendableRequestError, Route("http", NAME, 80, f"socks5://me:{SECRET}@127.0.0.1:9"))
        assert said == f"SOCKS proxies need an extra; install it {install_hint('socks')}"

    def test_what_nobody_asked_for_is_not_taken_for_the_next_answer(self) -> None:
        with Conversation(OK + OK.replace(b"ok", b"no"), OK) as server, SocksProxy(server.port) as proxy:
            route = Route("http", NAME, 80, f"socks5h://127.0.0.1:{proxy.port}")
            assert talk(route, route) == [b"ok", b"ok"]
        assert server.connections == 2


def rehash(certificate: Path) -> None:
    """Give a certificate the name by which OpenSSL finds it in a folder."""
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl is missing")
    command = ["openssl", "x509", "-hash", "-noout", "-in", str(certificate)]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    certificate.rename(certificate.with_name(f"{found}.0"))


class TestTrust:
    """Whom a client trusts is up to the variables that curl, requests and OpenSSL know, or to the system."""

    @pytest.fixture
    def folder(self, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        clear_bundles(monkeypatch)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        (tmp_path / "folder").mkdir()
        shutil.copy(tmp_path / "ca.pem", tmp_path / "folder")
        rehash(tmp_path / "folder" / "ca.pem")
        return tmp_path

    @pytest.mark.parametrize(
        "variables",
        [
            {"SSL_CERT_FILE": "ca.pem"},
            {"SSL_CERT_DIR": "folder"},
            {"REQUESTS_CA_BUNDLE": "ca.pem"},
            {"REQUESTS_CA_BUNDLE": "folder"},
            {"REQUESTS_CA_BUNDLE": "other.pem", "SSL_CERT_FILE": "ca.pem"},
            {"REQUESTS_CA_BUNDLE": "ca.pem", "SSL_CERT_FILE": "other.pem"},
            {"REQUESTS_CA_BUNDLE": "missing.pem", "SSL_CERT_FILE": "ca.pem"},
        ],
        ids=str,
    )
    def test_an_authority_that_a_variable_names(
        self,
        variables: dict[str, str],
        folder: Path,
        authority: trustme.CA,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name, file in variables.items():
            monkeypatch.setenv(name, str(folder / file))
        with Conversation(OK, tls=tls_of(authority)) as server:
            assert talk(Route("https", "127.0.0.1", server.port)) == [b"ok"]

    @pytest.mark.parametrize(
        "variables",
        [
            {},
            {"REQUESTS_CA_BUNDLE": "other.pem"},
            {"SSL_CERT_FILE": "other.pem"},
            {"SSL_CERT_DIR": "missing"},
        ],
        ids=str,
    )
    def test_any_other_is_not_trusted(
        self,
        variables: dict[str, str],
        folder: Path,
        authority: trustme.CA,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name, file in variables.items():
            monkeypatch.setenv(name, str(folder / file))
        with Conversation(OK, tls=tls_of(authority)) as server:
            fails(CertificateError, Route("https", "127.0.0.1", server.port))
        assert server.heads == []

    def test_without_a_variable_the_system_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clear_bundles(monkeypatch)
        assert isinstance(tls_context(), truststore.SSLContext)


@pytest.mark.usefixtures("trusted")
class TestClientCertificates:
    @pytest.mark.parametrize("is_one_file", [False, True])
    def test_it_is_shown_to_a_server_that_wants_to_see_it(
        self, authority: trustme.CA, tmp_path: Path, is_one_file: bool
    ) -> None:
        own = authority.issue_cert("me@models.example")
        own.private_key_pem.write_to_path(tmp_path / "me.key")
        (own.private_key_and_cert_chain_pem if is_one_file else own.cert_chain_pems[0]).write_to_path(
            tmp_path / "me.pem"
        )
        shown = ClientCertificate(str(tmp_path / "me.pem"), "" if is_one_file else str(tmp_path / "me.key"))
        context = tls_of(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
        with Conversation(OK, OK, tls=context) as server, TunnelProxy(server.port) as proxy:
            route = Route("https", "127.0.0.1", server.port)
            tunnel = Route("https", NAME, 443, f"http://127.0.0.1:{proxy.port}")
            assert talk(route, tunnel, certificate=shown) == [b"ok", b"ok"]
            with pytest.raises(HttpFailure):
                talk(route)

    def test_one_that_has_gone_meanwhile_is_told(self) -> None:
        with pytest.raises(UnsendableRequestError, match="No such file"):
            talk(Route("https", "127.0.0.1", 9), certificate=ClientCertificate("/no/such.pem"))


@pytest.mark.parametrize(
    ("url", "host", "port", "user_info"),
    [
        ("http://proxy.example:3128", "proxy.example", 3128, ""),
        ("proxy.example:3128", "proxy.example", 3128, ""),
        ("me:word@proxy.example", "proxy.example", 80, "me:word"),
        ("https://proxy.example", "proxy.example", 443, ""),
        ("socks5://me:word@proxy.example", "proxy.example", 1080, "me:word"),
        ("SOCKS5H://[::1]:9", "::1", 9, ""),
        ("socks4a://proxy.example:80", "proxy.example", 80, ""),
    ],
)
def test_addresses_of_proxies(url: str, host: str, port: int, user_info: str) -> None:
    proxy = parse_proxy(url)
    assert (proxy.host, proxy.port, proxy.user_info) == (host, port, user_info)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"socks5://me:{SECRET}@", "not valid"),
        (f"socks6://me:{SECRET}@127.0.0.1:1080", "not valid"),
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
        client = HttpClient()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            silent.setblocking(False)
            asking = asyncio.ensure_future(ask(client, STAGES[stage](silent.getsockname()[1])))
            loop = asyncio.get_running_loop()
            theirs, _ = await loop.sock_accept(silent)
            with theirs:
                assert await loop.sock_recv(theirs, 65536)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                assert await loop.sock_recv(theirs, 65536) == b""
        await client.aclose()

    run(body())
