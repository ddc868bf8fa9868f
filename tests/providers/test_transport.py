import asyncio
from typing import Any

import pytest
from support.calls import answer, provider, run
from support.loopback import LoopbackServer, Reply

from geval_cli.errors import ProviderError, ProviderRequestError, ProviderShapeError
from geval_cli.providers.network import transport
from geval_cli.providers.network.addresses import is_exempt, is_loopback, proxy_for
from geval_cli.providers.network.messages import HttpCall
from geval_cli.providers.network.transport import Transport
from geval_cli.providers.redaction import Secrets, public_url
from geval_cli.providers.wire.refusals import CallContext

CONTEXT = CallContext("p")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_proxies_of_the_environment_are_used_but_not_for_this_machine(no_proxies: pytest.MonkeyPatch) -> None:
    no_proxies.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    no_proxies.setenv("NO_PROXY", "internal.example")
    assert proxy_for("https://api.openai.com/v1") == "http://proxy.example:3128"
    assert proxy_for("http://api.openai.com/v1") is None
    assert proxy_for("https://internal.example/v1") is None
    assert proxy_for("https://127.0.0.1:8000/v1") is None


@pytest.mark.parametrize(
    ("variables", "url", "proxy"),
    [
        ({"https_proxy": "http://a:1"}, "https://models.example/", "http://a:1"),
        ({"HTTPS_PROXY": "http://a:1"}, "https://models.example/", "http://a:1"),
        ({"https_proxy": "http://a:1", "HTTPS_PROXY": "http://b:1"}, "https://models.example/", "http://a:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "http://b:1"}, "https://models.example/", None),
        ({"HTTP_PROXY": "http://a:1"}, "https://models.example/", None),
        ({"HTTP_PROXY": "http://a:1"}, "http://models.example/", "http://a:1"),
        ({"HTTP_PROXY": "http://a:1", "REQUEST_METHOD": "GET"}, "http://models.example/", None),
        ({"ALL_PROXY": "socks5h://a:1"}, "https://models.example/", "socks5h://a:1"),
        ({"all_proxy": "http://a:1"}, "http://models.example/", "http://a:1"),
        ({"ALL_PROXY": "http://a:1", "HTTPS_PROXY": "http://b:1"}, "https://models.example/", "http://b:1"),
        ({"ALL_PROXY": "http://a:1", "NO_PROXY": "*"}, "https://models.example/", None),
        (
            {"ALL_PROXY": "http://a:1", "no_proxy": "example", "NO_PROXY": "x"},
            "https://models.example/",
            None,
        ),
        ({"ALL_PROXY": "http://a:1"}, "http://localhost:8000/", None),
    ],
)
def test_which_variable_names_the_proxy(
    no_proxies: pytest.MonkeyPatch, variables: dict[str, str], url: str, proxy: str | None
) -> None:
    for name, value in variables.items():
        no_proxies.setenv(name, value)
    assert proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("entry", "host", "port", "is_named"),
    [
        ("*", "a.example", 443, True),
        ("example", "a.example", 443, True),
        (".example", "a.example", 443, True),
        ("*.example", "a.example", 443, True),
        (".example", "example", 443, True),
        ("A.Example", "a.EXAMPLE", 443, True),
        ("a.example.", "a.example.", 443, True),
        ("ample", "a.example", 443, False),
        ("b.a.example", "a.example", 443, False),
        ("a.example:443", "a.example", 443, True),
        ("a.example:8080", "a.example", 443, False),
        ("10.0.0.0/8", "10.9.8.7", 80, True),
        ("10.0.0.0/8", "11.9.8.7", 80, False),
        ("10.1.2.3/8", "10.9.8.7", 80, True),
        ("10.0.0.0/8", "10.example", 80, False),
        ("10.0.0.1", "10.0.0.1", 80, True),
        ("10.0.0.1:80", "10.0.0.1", 80, True),
        ("10.0.0.1:81", "10.0.0.1", 80, False),
        ("0.0.1", "10.0.0.1", 80, False),
        ("fd00::/8", "fd12::1", 80, True),
        ("fd00::/8", "fe80::1", 80, False),
        ("2001:db8::1", "2001:db8:0::1", 80, True),
        ("[2001:db8::1]", "2001:db8::1", 80, True),
        ("[2001:db8::1]:81", "2001:db8::1", 80, False),
        ("fe80::/10", "fe80::1%eth0", 80, True),
        ("fd00::/8", "10.0.0.1", 80, False),
        ("other, a.example", "a.example", 80, True),
        ("other a.example", "a.example", 80, True),
        ("", "a.example", 80, False),
        (",. ,", "a.example", 80, False),
        ("10.0.0.0/99", "10.0.0.1", 80, False),
        ("[", "a.example", 80, False),
    ],
)
def test_what_no_proxy_names(entry: str, host: str, port: int, is_named: bool) -> None:
    assert is_exempt(host, port, entry) is is_named


def test_requests_go_through_the_proxy(no_proxies: pytest.MonkeyPatch) -> None:
    async def body() -> bytes:
        client = Transport()
        try:
            return (await client.send(HttpCall("http://models.invalid/v1/x"), CONTEXT)).body
        finally:
            await client.aclose()

    with LoopbackServer(Reply(body="through the proxy")) as proxy:
        no_proxies.setenv("HTTP_PROXY", proxy.url)
        assert run(body()) == b"through the proxy"
    assert proxy.requests[0].path == "http://models.invalid/v1/x"


def test_the_environment_is_read_once_for_each_host(no_proxies: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        client = Transport()
        try:
            await client.send(HttpCall("http://models.invalid/v1/x"), CONTEXT)
            no_proxies.delenv("HTTP_PROXY")
            await client.send(HttpCall("http://models.invalid/v1/y"), CONTEXT)
        finally:
            await client.aclose()

    with LoopbackServer(respond=lambda *_: "through the proxy") as proxy:
        no_proxies.setenv("HTTP_PROXY", proxy.url)
        run(body())
    assert len(proxy.requests) == 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:1/v1", True),
        ("http://127.8.9.1", True),
        ("http://[::1]:8000/", True),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_loopback_addresses_are_known(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


@pytest.mark.parametrize("gzipped", [False, True])
def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, gzipped: bool) -> None:
    async def body(url: str) -> None:
        client = Transport()
        try:
            await client.send(HttpCall(url), CONTEXT)
        finally:
            await client.aclose()

    monkeypatch.setattr(transport, "MAX_BODY_BYTES", 1024 * 1024)
    with (
        LoopbackServer(Reply(body=b"0" * 3_000_000, gzipped=gzipped)) as server,
        pytest.raises(ProviderShapeError, match="more than 1 MiB") as caught,
    ):
        run(body(server.url))
    assert not caught.value.is_retryable


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://user:hunter2000@:99999999/", "not a valid URL: its host or port is not valid"),
        ("http://user:hunter2000#x@a.example/", "not a valid URL: its host or port is not valid"),
        ("http://user:hunter2000/x@a.example/", "not a valid URL: its host or port is not valid"),
        (
            "a.example/v1?api_key=hunter2000",
            "not a valid URL (a.example/v1): it does not begin with http",
        ),
        (
            "http://[::1/?api_key=hunter2000",
            "not a valid URL (http://[::1/): its host or port is not valid",
        ),
        ("http://a..b/", "not a valid URL (http://a..b/): it has no host"),
        ("http://a.example/\ud800", "not a valid URL"),
        ("http://a.example/?q=\ud800", "not a valid URL"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, said: str) -> None:
    async def body() -> None:
        client = Transport()
        try:
            await client.send(HttpCall(url), CONTEXT)
        finally:
            await client.aclose()

    with pytest.raises(ProviderRequestError) as caught:
        run(body())
    assert caught.value.message.startswith(said)
    assert "hunter2000" not in str(caught.value)


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("me:hunter2000@127.0.0.1:9", "the proxy http://127.0.0.1:9 cannot be reached"),
        ("socks5h://me:hunter2000@127.0.0.1:9", "the proxy socks5h://127.0.0.1:9 cannot be reached"),
        ("ftp://me:hunter2000@127.0.0.1:9", "the proxy's address is not valid"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_is_wrong_with_a_proxy_is_told_without_its_password(
    no_proxies: pytest.MonkeyPatch, scheme: str, proxy: str, said: str
) -> None:
    async def body() -> None:
        client = Transport()
        try:
            await client.send(HttpCall(f"{scheme}://models.invalid/v1/x"), CONTEXT)
        finally:
            await client.aclose()

    no_proxies.setenv(f"{scheme}_proxy", proxy)
    with pytest.raises(ProviderError) as caught:
        run(body())
    assert said in caught.value.message
    assert "hunter2000" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_many_requests_share_few_connections_once_they_are_open() -> None:
    async def body(url: str) -> None:
        client = Transport()
        try:
            for _ in range(3):
                await asyncio.gather(*[client.send(HttpCall(url), CONTEXT) for _ in range(20)])
        finally:
            await client.aclose()

    with LoopbackServer(respond=lambda *_: "ok") as server:
        run(body(server.url))
    assert len(server.requests) == 60
    assert server.connections <= 20


def test_secrets_are_masked_in_every_spelling() -> None:
    secrets = Secrets(["pa/ss+word", "longer-pa/ss+word", None, "x"])
    text = "pa/ss+word, longer-pa/ss+word, pa%2Fss%2Bword, x, sk-abcdef123456, Bearer abc.def"
    assert secrets.redact(text) == "***, ***, ***, x, ***, Bearer ***"
    assert "pa/ss" not in repr(secrets)
    assert Secrets(["me:pa%2Fss"]).redact("Basic? bWU6cGEvc3M= of me:pa/ss") == "Basic? *** of ***"


def test_a_public_address_has_no_secrets() -> None:
    assert public_url("https://u:pw@x.example/p?api_key=ghi&v=1#f") == "https://x.example/p?v=1"


def test_a_mistake_in_the_answers_that_a_test_scripts_fails_the_test() -> None:
    def respond(body: Any, headers: Any) -> Reply:
        raise KeyError("no such answer")

    with (
        pytest.raises(AssertionError, match="the server of this test failed"),
        LoopbackServer(respond=respond) as server,
        pytest.raises(ProviderRequestError, match="no such answer"),
    ):
        run(answer(provider("openai:m", {"base_url": server.base_url})))
