"""What leaves: the lines of a request, whatever method, headers and body a config names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.calls import run
from support.loopback import LoopbackServer, RecordedRequest
from support.odd_servers import Conversation

from geval_cli.providers.network.client import HttpClient
from geval_cli.providers.network.messages import HttpCall, HttpFailure, UnsendableRequestError

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def send(*calls: HttpCall) -> None:
    async def body() -> None:
        client = HttpClient()
        try:
            for call in calls:
                await client.exchange(call, max_bytes=100)
        finally:
            await client.aclose()

    run(body())


def sent(method: str = "POST", body: bytes = b"", **headers: str) -> RecordedRequest:
    with LoopbackServer(respond=lambda *_: "ok") as server:
        send(HttpCall(f"{server.url}/x", headers, body, method))
    return server.requests[0]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", "0"),
        ("PUT", b"", "0"),
        ("GET", b"", None),
        ("get", b"", None),
        ("POST", b"xyz", "3"),
        ("GET", b"xyz", "3"),
        ("POST", b"x" * 3_000_000, "3000000"),
    ],
)
def test_the_length_is_told_where_there_may_be_a_body(method: str, body: bytes, length: str | None) -> None:
    request = sent(method, body)
    assert request.headers.get("content-length") == length
    assert "transfer-encoding" not in request.headers
    assert request.body == body


def test_nothing_is_added_to_what_was_named() -> None:
    request = sent("POST", b"{}", accept="*/*")
    assert set(request.headers) == {"host", "accept", "content-length"}


def test_another_host_may_be_named() -> None:
    assert sent(HOST="b.example").headers["host"] == "b.example"


def test_lengths_and_pauses_are_ours_to_tell() -> None:
    headers = {"Content-Length": "7", "Transfer-Encoding": "chunked", "Expect": "100-continue"}
    request = sent("POST", b"ab", **headers)
    assert set(request.headers) == {"host", "content-length"}
    assert request.headers["content-length"] == "2"


def test_of_two_spellings_the_last_counts() -> None:
    with Conversation(OK) as server:
        call = HttpCall(f"http://127.0.0.1:{server.port}/", {"Authorization": "one", "authorization": "two"})
        send(call)
    lines = [line for line in server.heads[0].split("\r\n") if line.lower().startswith("auth")]
    assert [line.lower() for line in lines] == ["authorization: two"]


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "ü", "x\0", " x", "x "])
def test_a_name_that_is_no_word_is_refused(name: str) -> None:
    with pytest.raises(UnsendableRequestError, match="name is not valid"):
        send(HttpCall("http://127.0.0.1:9/", {name: "value"}))


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nx: y", "a\rx", "\n"])
def test_a_value_that_would_not_stay_on_its_line_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(UnsendableRequestError, match="the header x-key contains a line break"):
        send(HttpCall("http://127.0.0.1:9/", {"x-key": value}))


@pytest.mark.parametrize("value", ["a\0", "\x08", "\x7f", "\x1b[0m"])
def test_a_value_with_control_characters_is_refused(value: str) -> None:
    with pytest.raises(UnsendableRequestError, match="the header x-key contains a control character"):
        send(HttpCall("http://127.0.0.1:9/", {"x-key": value}))


@pytest.mark.parametrize("method", ["", "GET /", "GET\r\n", "ÄH"])
def test_a_method_that_is_no_word_is_refused(method: str) -> None:
    with pytest.raises(UnsendableRequestError):
        send(HttpCall("http://127.0.0.1:9/", method=method))


def test_nothing_adds_a_line() -> None:
    with LoopbackServer(respond=lambda *_: "ok") as server:

        @settings(max_examples=60, deadline=None)
        @given(st.dictionaries(ANY_TEXT | st.sampled_from(["a", "Host", "b"]), ANY_TEXT), st.binary())
        def try_it(headers: dict[str, str], body: bytes) -> None:
            server.requests.clear()
            try:
                send(HttpCall(f"{server.url}/", headers, body))
            except HttpFailure:
                return
            assert {name.lower() for name in headers} >= set(server.requests[0].headers) - {
                "host",
                "content-length",
            }
            assert server.requests[0].body == body

        try_it()
