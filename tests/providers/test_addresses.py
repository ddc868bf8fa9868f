import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geval_cli.providers.network.addresses import (
    basic_credentials,
    is_loopback,
    parse_address,
    public_origin,
    split_url,
)
from geval_cli.providers.network.messages import HttpFailure, InvalidAddressError
from geval_cli.providers.redaction import keyed_url, public_url

SECRET = "hunter2000"


@pytest.mark.parametrize(
    ("url", "host", "port", "host_header", "target"),
    [
        ("http://a.example", "a.example", 80, "a.example", "/"),
        ("https://a.example", "a.example", 443, "a.example", "/"),
        ("http://a.example:80/", "a.example", 80, "a.example", "/"),
        ("https://a.example:443/", "a.example", 443, "a.example", "/"),
        ("https://a.example:80/", "a.example", 80, "a.example:80", "/"),
        ("http://a.example:/x", "a.example", 80, "a.example", "/x"),
        ("HTTP://A.Example:8000/V1", "a.example", 8000, "a.example:8000", "/V1"),
        ("http://me:word@a.example/x", "a.example", 80, "a.example", "/x"),
        ("http://a.example?q=1", "a.example", 80, "a.example", "/?q=1"),
        ("http://a.example/?", "a.example", 80, "a.example", "/"),
        ("http://a.example/x#part?q", "a.example", 80, "a.example", "/x"),
        ("http://a.example./x", "a.example.", 80, "a.example.", "/x"),
        ("http://127.0.0.1:11434", "127.0.0.1", 11434, "127.0.0.1:11434", "/"),
        ("http://[::1]/x", "::1", 80, "[::1]", "/x"),
        ("http://[::1]:8000/x", "::1", 8000, "[::1]:8000", "/x"),
        ("http://[fe80::1%25eth0]:8000/", "fe80::1%eth0", 8000, "[fe80::1]:8000", "/"),
        ("http://my_model/x", "my_model", 80, "my_model", "/x"),
        ("http://bücher.example/", "xn--bcher-kva.example", 80, "xn--bcher-kva.example", "/"),
        ("http://a。example/", "a.example", 80, "a.example", "/"),
    ],
)
def test_where_a_request_goes(url: str, host: str, port: int, host_header: str, target: str) -> None:
    address = parse_address(url)
    assert (address.host, address.port, address.host_header, address.target) == (
        host,
        port,
        host_header,
        target,
    )
    assert address.is_encrypted is url.lower().startswith("https")


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("/a b", "/a%20b"),
        ("/ä?ö=ü", "/%C3%A4?%C3%B6=%C3%BC"),
        ("/already%20quoted%2Fas?it=%26is", "/already%20quoted%2Fas?it=%26is"),
        ("/100%", "/100%"),
        ("//two", "//two"),
        ("/m:generate?key=a+b&x=[1]", "/m:generate?key=a+b&x=[1]"),
        ('/"<>\\^`{|}', "/%22%3C%3E%5C%5E%60%7B%7C%7D"),
        ("/x\x00\x7f y", "/x%00%7F%20y"),
        ("/one\r\nline", "/oneline"),
    ],
)
def test_path_and_query_are_quoted_once(written: str, sent: str) -> None:
    assert parse_address(f"http://a.example{written}").target == sent


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.example/v1",
        "//a.example/v1",
        "ftp://a.example/",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://:8000/",
        "http://me@/",
        "http://a..b/",
        "http://.example/",
        "http://a b/",
        "http://a\\b/",
        "http://%61.example/",
        f"http://{'a' * 64}.example/",
        f"http://{'ü' * 64}.example/",
        "http://[::1/",
        "http://[::g]/",
        "http://a.example:0/",
        "http://a.example:65536/",
        "http://a.example:port/",
        "http://a.example/\ud800",
        "http://a.example/?\udfff",
        "http://\ud800.example/",
        f"http://me:{SECRET}@a℀b/",
        f"http://me:{SECRET}#word@a.example/",
        f"http://me:{SECRET}/word@a.example/",
    ],
)
def test_what_is_no_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidAddressError) as caught:
        parse_address(url)
    assert str(caught.value)
    assert SECRET not in public_url(url)
    assert SECRET not in repr([caught.value, caught.value.__cause__, caught.value.__context__])


@settings(max_examples=40, deadline=None)
@given(
    st.text(alphabet=st.characters(exclude_categories=())), st.sampled_from(["", "http://", "https://u:p@h/"])
)
def test_no_text_gives_anything_but_an_address_or_a_failure(text: str, prefix: str) -> None:
    for read in (split_url, public_origin, is_loopback, public_url, keyed_url):
        read(prefix + text)
        read(f"{prefix}[{text}")
    try:
        address = parse_address(prefix + text)
    except HttpFailure:
        return
    line = f"{address.host}{address.host_header}{address.target}"
    assert line.isascii()
    assert line.isprintable()
    assert " " not in line
    assert 0 < address.port <= 65535
    basic_credentials(address.user_info)


def test_credentials_are_decoded_and_shown_nowhere() -> None:
    address = parse_address(f"http://me:{SECRET}%40%3A@a.example/?key={SECRET}")
    assert address.user_info == f"me:{SECRET}@:"
    assert (
        basic_credentials(address.user_info)
        == "Basic " + base64.b64encode(address.user_info.encode()).decode()
    )
    assert SECRET not in repr(address)
