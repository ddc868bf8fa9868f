import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.http_client.failures import HttpFailure, UnsendableRequestError
from geval_cli.http_client.request_text import request_bytes

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()))


def lines_of(*args: object, **headers: str) -> list[str]:
    method, body = (*args, "POST", b"")[:2] if args else ("POST", b"")
    request = request_bytes(str(method), "/x", "a.example", headers, body)  # type: ignore[arg-type]
    head, _, rest = request.partition(b"\r\n\r\n")
    assert rest == body
    return head.decode().split("\r\n")


def test_a_whole_request() -> None:
    request = request_bytes("POST", "/v1?q=1", "a.example:8000", {"accept": "*/*", "X-Key": "ü"}, b"{}")
    assert request == (
        b"POST /v1?q=1 HTTP/1.1\r\nhost: a.example:8000\r\naccept: */*\r\nX-Key: \xc3\xbc\r\n"
        b"content-length: 2\r\n\r\n{}"
    )


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [
        ("POST", b"", "content-length: 0"),
        ("PUT", b"", "content-length: 0"),
        ("GET", b"", None),
        ("get", b"", None),
        ("DELETE", b"", None),
        ("GET", b"xyz", "content-length: 3"),
    ],
)
def test_the_length_is_told_where_there_may_be_a_body(method: str, body: bytes, length: str | None) -> None:
    told = [line for line in lines_of(method, body) if line.startswith("content-length")]
    assert told == ([length] if length else [])


def test_another_host_may_be_named_and_stands_first() -> None:
    assert lines_of(accept="*/*", HOST="b.example")[:2] == ["POST /x HTTP/1.1", "HOST: b.example"]


def test_lengths_are_ours_to_tell() -> None:
    lines = lines_of("POST", b"ab", **{"Content-Length": "7", "Transfer-Encoding": "chunked"})
    assert lines[2:] == ["content-length: 2"]


def test_of_two_spellings_the_last_counts() -> None:
    lines = lines_of(**{"Authorization": "one", "authorization": "two"})
    assert [line for line in lines if line.lower().startswith("auth")] == ["authorization: two"]


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "ü", "x\0", " x", "x "])
def test_a_name_that_is_no_word_is_refused(name: str) -> None:
    with pytest.raises(UnsendableRequestError, match="name is no word"):
        request_bytes("POST", "/", "a.example", {name: "value"}, b"")


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nx: y", "a\rx", "a\0", "\n"])
def test_a_value_that_would_not_stay_on_its_line_is_refused_and_not_shown(value: str) -> None:
    with pytest.raises(UnsendableRequestError, match="the header x-key holds a line break"):
        request_bytes("POST", "/", "a.example", {"x-key": value}, b"")


@pytest.mark.parametrize("method", ["", "GET /", "GET\r\n", "ÄH"])
def test_a_method_that_is_no_word_is_refused(method: str) -> None:
    with pytest.raises(UnsendableRequestError):
        request_bytes(method, "/", "a.example", {}, b"")


@settings(max_examples=40, deadline=None)
@given(ANY_TEXT, st.dictionaries(ANY_TEXT | st.sampled_from(["a", "Host", "b"]), ANY_TEXT), st.binary())
def test_nothing_adds_a_line(method: str, headers: dict[str, str], body: bytes) -> None:
    try:
        request = request_bytes(method, "/", "a.example", headers, body)
    except HttpFailure:
        return
    head, _, rest = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert rest == body
    assert len(lines) <= 3 + len(headers)
    assert all(b"\n" not in line and b"\r" not in line and b"\0" not in line for line in lines)
    assert all(b":" in line for line in lines[1:])
