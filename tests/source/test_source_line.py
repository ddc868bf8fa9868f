import pytest

from geval_cli.source.problems import draw_source_line


@pytest.mark.parametrize(
    ("line", "column", "length", "shown", "caret"),
    [
        ("key: value", 6, 5, "key: value", "     ^^^^^"),
        ("\tkey", 2, 3, "    key", "    ^^^"),
        ("ab\tkey", 4, 3, "ab  key", "    ^^^"),
        ("漢字: x", 5, 1, "漢字: x", "      ^"),
        ("漢字: x", 1, 2, "漢字: x", "^^^^"),
        ("🙂 x", 3, 1, "🙂 x", "   ^"),
        ("e\u0301 x", 4, 1, "e\u0301 x", "  ^"),
        ("key:", 5, 1, "key:", "    ^"),
        ("", 1, 1, "", "^"),
        ("a\x1b[2Jb", 6, 1, "a�[2Jb", "     ^"),
        ("a\u202eb", 3, 1, "a�b", "  ^"),
    ],
)
def test_the_caret_stands_under_its_text(line: str, column: int, length: int, shown: str, caret: str) -> None:
    assert draw_source_line(line, column=column, length=length) == (shown, caret)


@pytest.mark.parametrize(
    ("line", "column", "length", "shown", "caret"),
    [
        ("apiKey: abcdef", 9, 6, "apiKey: ***", "        ^^^"),
        ("apiKey: abcdef", 11, 2, "apiKey: ***", "        ^"),
        ('{"api_key": "abc", x: 1}', 20, 1, '{"api_key": ***, x: 1}', "                 ^"),
        ("a: sk-abcdefghijkl, b: 1", 21, 1, "a: ***, b: 1", "        ^"),
    ],
)
def test_a_secret_is_masked_and_the_caret_moves_along(
    line: str, column: int, length: int, shown: str, caret: str
) -> None:
    assert draw_source_line(line, column=column, length=length) == (shown, caret)


@pytest.mark.parametrize("column", [1, 60, 101, 500, 990, 1000])
def test_a_long_line_is_cut_around_the_caret(column: int) -> None:
    line = "".join(chr(ord("a") + index % 26) for index in range(1000))
    shown, caret = draw_source_line(line, column=column, length=1)
    assert len(shown) <= 102
    assert shown[len(caret) - 1] == line[column - 1]


def test_a_caret_wider_than_the_window_ends_with_it() -> None:
    shown, caret = draw_source_line("x" * 500, column=201, length=250)
    assert len(caret) <= len(shown)
