"""Connections as they break in the world: what is said of each, and that no key leaves for elsewhere."""

import base64
import gzip
import ssl
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import brotli
import pytest
import trustme
from support.calls import answer, provider, run
from support.geval_command import clean_environment, run_geval
from support.loopback import LoopbackServer, Reply, chat_reply
from support.odd_servers import RawServer, TunnelProxy, http_bytes

from geval_cli.errors import (
    ProviderError,
    ProviderRequestError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)

if sys.version_info >= (3, 14):
    from compression.zstd import compress as zstd_compress
else:
    from backports.zstd import compress as zstd_compress

GOOD = chat_reply("Hello").body
KEY = "sk-connection-0123456789"


def ask_at(base_url: str, **config: object) -> str:
    settings = {"base_url": base_url, "api_key": KEY, **config}
    [response] = run(answer(provider("openai:m", settings)))
    return response.text


def failure(base_url: str, **config: object) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask_at(base_url, **config)
    shown = "\n".join([str(caught.value), repr(caught.value), caught.value.hint, caught.value.body])
    assert KEY not in shown
    return caught.value


class TestBrokenAnswers:
    @pytest.mark.parametrize(
        ("reply", "said"),
        [
            (Reply(reset=True), "closed the connection without an answer"),
            (chat_reply("cut off", truncate=True), "closed the connection before its answer was complete"),
        ],
    )
    def test_a_broken_answer_is_not_called_unreachable(self, reply: Reply, said: str) -> None:
        with LoopbackServer(reply) as server:
            error = failure(server.base_url)
            assert isinstance(error, ProviderUnavailableError)
            assert error.message == f"{server.url} {said}"
            assert error.has_begun == ("before its answer was complete" in said)  # then it is paid for

    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            (b"this is not HTTP at all\r\n\r\n", "sent something that is not HTTP"),
            (http_bytes(b"no gzip", headers={"content-encoding": "gzip"}), "whose compression is broken"),
        ],
    )
    def test_what_is_no_answer_at_all_is_named(self, payload: bytes, said: str) -> None:
        with RawServer(payload) as server:
            error = failure(server.base_url)
        assert isinstance(error, ProviderUnavailableError)
        assert said in error.message

    def test_an_answer_that_drips_in_is_given_up_at_the_time_limit(self) -> None:
        with LoopbackServer(chat_reply("Hello", drip_s=0.01)) as server:
            error = failure(server.base_url, timeout_s=0.1)
        assert isinstance(error, ProviderTimeoutError)
        assert error.message == "openai:m sent no complete answer within 0.1 s"

    def test_an_answer_that_drips_in_in_time_is_read(self) -> None:
        with LoopbackServer(chat_reply("Hello", drip_s=0.0001)) as server:
            assert ask_at(server.base_url) == "Hello"

    def test_a_message_without_content_is_no_empty_answer(self) -> None:
        body = {"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop"}]}
        with LoopbackServer(
            Reply(body=body), Reply(body={"choices": [{"message": {"content": 5}}]})
        ) as server:
            assert "without text" in failure(server.base_url).message
            assert "without text" in failure(server.base_url).message

    def test_an_empty_answer_is_an_answer(self) -> None:
        with LoopbackServer(chat_reply(None, finish_reason="length")) as server:
            assert ask_at(server.base_url) == ""


class TestOldAndOddServers:
    @pytest.mark.parametrize("has_length", [True, False])
    def test_http_1_0(self, has_length: bool) -> None:
        with RawServer(http_bytes(GOOD, version="1.0", has_length=has_length)) as server:
            assert ask_at(server.base_url) == "Hello"

    def test_compression(self) -> None:
        plain = http_bytes(GOOD).partition(b"\r\n\r\n")[2]
        for name, packed in (("gzip", gzip.compress(plain)), ("deflate", zlib.compress(plain))):
            with RawServer(http_bytes(packed, headers={"content-encoding": name})) as server:
                assert ask_at(server.base_url) == "Hello"

    def test_compression_that_nobody_asked_for_is_named_and_not_tried_again(self) -> None:
        with RawServer(http_bytes(b"\x0b\x02packed", headers={"content-encoding": "lzma"})) as server:
            error = failure(server.base_url)
        assert isinstance(error, ProviderRequestError)
        assert error.message.endswith("compressed its answer with lzma, which was not requested")
        assert "gzip" in error.hint

    def test_no_compression_is_asked_for_that_cannot_be_read(self) -> None:
        plain = http_bytes(GOOD).partition(b"\r\n\r\n")[2]
        packers = {
            "gzip": gzip.compress,
            "deflate": zlib.compress,
            "br": brotli.compress,
            "zstd": zstd_compress,
        }
        with LoopbackServer(chat_reply("Hello")) as server:
            assert ask_at(server.base_url) == "Hello"
        for name in server.requests[0].headers["accept-encoding"].split(", "):
            with RawServer(http_bytes(packers[name](plain), headers={"content-encoding": name})) as server:
                assert ask_at(server.base_url) == "Hello"

    def test_chunked(self) -> None:
        plain = http_bytes(GOOD).partition(b"\r\n\r\n")[2]
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, plain[i : i + 1]) for i in range(len(plain))) + b"0\r\n\r\n"
        payload = http_bytes(chunks, headers={"transfer-encoding": "chunked"}, has_length=False)
        with RawServer(payload) as server:
            assert ask_at(server.base_url) == "Hello"


class TestRedirects:
    @pytest.mark.parametrize("location", ["/v2/chat/completions", "{url}/v2/chat/completions"])
    def test_the_same_request_is_sent_to_another_place_of_the_same_server(self, location: str) -> None:
        with LoopbackServer() as server:
            server.add(Reply(307, {"location": location.format(url=server.url)}), chat_reply("Hello"))
            assert ask_at(server.base_url) == "Hello"
        first, second = server.requests
        assert second.path == "/v2/chat/completions"
        assert (second.method, second.body) == (first.method, first.body)
        assert second.headers["authorization"] == f"Bearer {KEY}"

    @pytest.mark.parametrize("status", [301, 302, 303])
    def test_a_redirect_that_would_lose_the_body_is_refused(self, status: int) -> None:
        with LoopbackServer(Reply(status, {"location": "/elsewhere"})) as server:
            assert "redirects are not followed" in failure(server.base_url).hint
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        "scheme", ["http://127.0.0.1:{port}", "http://localhost:{port}", "//127.0.0.1:{port}"]
    )
    def test_no_other_host_gets_the_key(self, scheme: str) -> None:
        with LoopbackServer(respond=lambda *_: chat_reply("stolen")) as elsewhere, LoopbackServer() as server:
            port = elsewhere.url.rpartition(":")[2]
            server.add(Reply(308, {"location": scheme.format(port=port) + "/v1/x"}))
            failure(server.base_url)
        assert elsewhere.requests == []

    def test_a_circle_of_redirects_ends(self) -> None:
        with LoopbackServer(respond=lambda *_: Reply(307, {"location": "/v1/again"})) as server:
            assert isinstance(failure(server.base_url), ProviderRequestError)
        assert len(server.requests) == 4


class TestCredentialsInTheAddress:
    def basic(self, user_info: str) -> str:
        return f"Basic {base64.b64encode(user_info.encode()).decode()}"

    def with_user_info(self, server: LoopbackServer) -> str:
        return server.base_url.replace("://", "://me:p%40ss-word@")

    def test_they_are_sent_as_a_header(self) -> None:
        with LoopbackServer(chat_reply("Hello")) as server:
            model = provider(
                "openai:m", {"base_url": self.with_user_info(server)}, env={"OPENAI_API_KEY": KEY}
            )
            assert "ss-word" not in repr(model)
            run(answer(model))
        assert server.requests[0].headers["authorization"] == self.basic("me:p@ss-word")

    def test_a_key_that_the_config_names_goes_before_them(self) -> None:
        with LoopbackServer(chat_reply("Hello")) as server:
            ask_at(self.with_user_info(server))
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"

    def test_no_error_shows_them(self) -> None:
        with LoopbackServer(Reply(reset=True)) as server:
            error = failure(self.with_user_info(server))
        assert "ss-word" not in error.message + repr(error.__cause__)
        assert "@" not in error.message

    def test_a_key_with_a_line_break_is_no_bug(self) -> None:
        with LoopbackServer() as server:
            error = failure(server.base_url, headers={"x-key": "two\nlines"})
        assert isinstance(error, ProviderRequestError)
        assert server.requests == []


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure_server(authority: trustme.CA) -> Iterator[RawServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("models.example", "127.0.0.1").configure_cert(context)
    with RawServer(http_bytes(GOOD), tls=context) as server:
        yield server


def run_config(folder: Path, base_url: str, **env: str) -> tuple[int, str]:
    """The exit code and the output of a run that asks one question at `base_url`."""
    (folder / "config.yaml").write_text(
        f"""\
prompts: [hi]
providers: [{{id: "openai:m", config: {{base_url: "{base_url}", max_retries: 0}}}}]
tests: [{{assert: [{{type: contains, value: Hello}}]}}]
""",
        encoding="utf-8",
    )
    finished = run_geval("run", "config.yaml", cwd=folder, env=clean_environment(OPENAI_API_KEY=KEY, **env))
    return finished.code, " ".join((finished.stdout + finished.stderr).split())


class TestCertificates:
    def test_an_authority_of_the_users_own(
        self, tmp_path: Path, authority: trustme.CA, secure_server: RawServer
    ) -> None:
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        url = secure_server.base_url.replace("http://", "https://")
        code, text = run_config(tmp_path, url, SSL_CERT_FILE=str(tmp_path / "ca.pem"))
        assert code == 0, text

    def test_an_unknown_authority_is_refused_before_the_key_is_sent(
        self, tmp_path: Path, secure_server: RawServer
    ) -> None:
        url = secure_server.base_url.replace("http://", "https://")
        code, text = run_config(tmp_path, url, SSL_CERT_FILE="/no/such/file.pem")
        assert code == 3
        assert "could not be verified" in text
        assert "SSL_CERT_FILE is /no/such/file.pem, which is not a file" in text
        assert secure_server.heads == []


class TestProxies:
    def test_a_proxy_sees_the_host_and_its_own_password_but_not_the_key(
        self, tmp_path: Path, authority: trustme.CA, secure_server: RawServer
    ) -> None:
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        with TunnelProxy(secure_server.port) as proxy:
            code, text = run_config(
                tmp_path,
                "https://models.example/v1",
                SSL_CERT_FILE=str(tmp_path / "ca.pem"),
                HTTPS_PROXY=f"http://user:proxy-word@127.0.0.1:{proxy.port}",
            )
        assert code == 0, text
        [head] = proxy.heads
        assert head.startswith("CONNECT models.example:443 ")
        assert "proxy-authorization: basic dXNlcjpwcm94eS13b3Jk".lower() in head.lower()
        assert KEY not in head
        assert f"Bearer {KEY}" in secure_server.heads[0]

    def test_a_proxy_that_wants_a_password_says_so(self, tmp_path: Path) -> None:
        refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
        with TunnelProxy(0, refuse=refusal) as proxy:
            code, text = run_config(
                tmp_path,
                "https://models.example/v1?api_key=zq9-query",
                HTTPS_PROXY=f"http://user:proxy-word@127.0.0.1:{proxy.port}",
            )
        assert code == 3
        assert f"the proxy http://127.0.0.1:{proxy.port} requires a user name and password" in text
        assert "proxy-word" not in text
        assert "zq9-query" not in text

    def test_a_proxy_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with RawServer(b"") as gone:
            port = gone.port
        code, text = run_config(
            tmp_path, "https://models.example/v1", HTTPS_PROXY=f"http://user:proxy-word@127.0.0.1:{port}"
        )
        assert code == 3
        assert f"the proxy http://127.0.0.1:{port} cannot be reached" in text
        assert "proxy-word" not in text

    def test_no_proxy_for_the_hosts_that_want_none(self, tmp_path: Path) -> None:
        with LoopbackServer(Reply(body=GOOD)) as proxy:
            env = {"HTTP_PROXY": proxy.url, "NO_PROXY": "models.invalid"}
            code, text = run_config(tmp_path, "http://models.invalid/v1", **env)
        assert code == 3
        assert "http://models.invalid cannot be reached" in text
        assert proxy.requests == []
