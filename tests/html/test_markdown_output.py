"""A model's Markdown may look like something, and do nothing."""

import re

import pytest

from geval_cli.extras.html.run import rendered_markdown


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("# Title", "<h1>Title</h1>"),
        ("**bold**", "<strong>bold</strong>"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "<td>2</td>"),
        (
            "|a|b|c|\n|:-|-:|:-:|\n|1|2|3|",
            '<td class="is-left">1</td>\n<td class="is-right">2</td>\n<td class="is-center">3</td>',
        ),
        ("~~gone~~", "<s>gone</s>"),
        (
            "- [x] *done*",
            '<li class="task"><span class="task-box" role="img" aria-label="done">\u2611</span> <em>done</em></li>',
        ),
        (
            "1. [ ] open",
            '<li class="task"><span class="task-box" role="img" aria-label="to do">\u2610</span> open</li>',
        ),
        ("- [link](x)[y] [x]", "<li>[link](x)[y] [x]</li>"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
        (
            "[us](https://example.com)",
            '<a href="https://example.com" rel="noopener noreferrer nofollow">us</a>',
        ),
    ],
)
def test_markdown_is_rendered(text: str, markup: str) -> None:
    assert markup in str(rendered_markdown(text))


@pytest.mark.parametrize(
    "text",
    [
        "- <script>alert(1)</script>",
        "# <img src=x onerror=alert(1)>",
        "- ![x](https://evil.example/pixel.png)",
        "- [x](javascript:alert(1))",
        "- [x](JaVaScRiPt:alert(1))",
        "- [x](&#106;avascript:alert(1))",
        "- [x](data:text/html;base64,PHNjcmlwdD4=)",
        "- [x](vbscript:x) [y](file:///etc/passwd) [z](/api/runs)",
        "- <https://ok.example> <javascript:alert(1)>",
        "- [x]: javascript:alert(1)\n\n[x]",
        '- [x](https://e.example "t" onmouseover=alert(1)")',
        "```html onload=x\n<b>\n```",
        "- \u202eevil \x1b[31m",
        "|a|\n|:-:|\n|<b onclick=x>|",
        "- [x] <b>x</b>",
    ],
)
def test_it_can_do_nothing(text: str) -> None:
    markup = str(rendered_markdown(text))
    tags = re.findall(r"<(\w+)([^>]*)>", markup)
    assert {name for name, _ in tags} <= {
        "ul",
        "ol",
        "li",
        "p",
        "h1",
        "a",
        "span",
        "pre",
        "code",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    for _, attributes in tags:
        names = set(re.findall(r'([\w-]+)="[^"]*"', attributes))
        assert names <= {"href", "rel", "class", "title", "role", "aria-label"}
    assert re.findall(r'href="(?!https?://|mailto:)', markup) == []
    assert "\x1b" not in markup
    assert "\u202e" not in markup


@pytest.mark.parametrize("text", ["plain words.", "2 * 3 = 6", "", "x" * 60_000 + "**b**"])
def test_what_is_no_markdown_or_too_long_is_left_alone(text: str) -> None:
    assert rendered_markdown(text) is None
