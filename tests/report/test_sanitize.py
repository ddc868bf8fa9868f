import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [text] 漢字 🙂", "plain [text] 漢字 🙂"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\x00\x07\x08\x7f", "a\\x00\\x07\\x08\\x7f"),
        ("\u202eabc\u2066", "\\u202eabc\\u2066"),
        ("zero\u200bwidth\u200d\ufeff", "zero\\u200bwidth\\u200d\\ufeff"),
        ("\U000e0041 tag", "\\U000e0041 tag"),
        ("hangul \u3164 filler", "hangul \\u3164 filler"),
        ("lone \ud800 half", "lone \\ud800 half"),
        ("line\u2028end", "line\\u2028end"),
        ("no\u00a0break\u3000wide", "no break wide"),
        ("heart ❤\ufe0f", "heart ❤"),
        ("smuggled\ufe0f\ufe01\ufe02", "smuggled\\ufe01\\ufe02"),
    ],
)
def test_what_a_terminal_would_act_on_or_hide_is_written_out(text: str, shown: str) -> None:
    assert sanitize(text) == shown


@given(st.text())
def test_inert_text_is_printable(text: str) -> None:
    assert sanitize(text).isprintable()


def test_lines_are_kept_and_tabs_widened() -> None:
    assert sanitized_lines("a\r\n\tb\rc\n") == ["a", "    b\\x0dc", ""]


@given(st.text(max_size=300), st.integers(1, 60))
def test_one_line_fits_its_width(text: str, width: int) -> None:
    assert cell_len(one_line(text, width)) <= width


def test_one_line_says_when_it_was_cut() -> None:
    assert one_line("one  two\nthree", 8) == "one two…"
    assert one_line("one  two\nthree", 13) == "one two three"


def test_one_line_looks_only_at_the_start_of_a_huge_text() -> None:
    assert one_line(" " * 1_000_000 + "late", 10) == "…"


def test_clipped_lines_say_how_much_is_missing() -> None:
    assert clipped_lines("a\nb\nc\nd\n", line_count=2, character_count=100) == [
        "a",
        "b",
        "... 4 more characters",
    ]
    assert clipped_lines("abcdef", line_count=2, character_count=4) == ["abcd", "... 2 more characters"]
    assert clipped_lines("abc\n", line_count=2, character_count=4) == ["abc"]
    assert clipped_lines(" \n ", line_count=2, character_count=4) == []


def test_values_become_text() -> None:
    assert [value_text("é"), value_text({"é": [1, None]}), value_text(True)] == [
        "é",
        '{"é": [1, null]}',
        "true",
    ]


@pytest.mark.parametrize("text", ["می\u200cخواهم", "👨\u200d👩\u200d👧"])  # noqa: RUF001
def test_joiners_that_are_spelling_are_kept(text: str) -> None:
    assert sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\u200db", "a\\u200db"), ("é\u200c\u200cé", "é\\u200c\\u200cé"), ("Donau\xadschiff", "Donauschiff")],
)
def test_joiners_that_hide_something_are_shown_and_soft_hyphens_are_not(text: str, shown: str) -> None:
    assert sanitize(text) == shown
