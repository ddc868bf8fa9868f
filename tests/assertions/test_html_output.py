import pytest
from support.verdicts import judged, passes


@pytest.mark.parametrize(
    ("kind", "output", "expected"),
    [
        ("is-html", "<p>Hello</p>", True),
        ("is-html", "<!DOCTYPE html><html><body>text</body></html>", True),
        ("is-html", "<ul><li>a<li>b</ul>\n<br>\n<img src='x'/>", True),
        ("is-html", "<my-card>日本</my-card>", True),
        ("is-html", "<!-- note --><div>a</div>", True),
        ("is-html", "Hello <b>x</b>", False),
        ("is-html", "<p>a</p> trailing", False),
        ("is-html", "plain", False),
        ("is-html", "a < b", False),
        ("is-html", "<foo>x</foo>", False),
        ("is-html", "<?xml version='1.0'?><a/>", False),
        ("is-html", "", False),
        ("is-html", None, False),
        ("contains-html", "Sure: <b>x</b>", True),
        ("contains-html", "<foo>x</foo>", True),
        ("contains-html", "line<br>break", True),
        ("contains-html", "a < b > c &amp; d", False),
        ("contains-html", "", False),
    ],
)
def test_verdicts(kind: str, output: object, expected: bool) -> None:
    assert passes(kind, output) is expected


def test_the_reason_shows_the_text_outside_of_elements() -> None:
    reason = judged("is-html", "Here you go: <p>x</p>").reason
    assert reason == 'the output has text outside any element: "Here you go:"'
