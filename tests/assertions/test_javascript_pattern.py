import pytest
import regex

from geval_cli.assertions.match import is_javascript_pattern, python_pattern


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^\d+$", "12", True),
        (r"^\d+$", "12\n", False),  # `$` is the very end
        (r"^\d+$", "١٢", False),  # digits are ASCII
        (r"\bcaf\b", "café", True),  # and so are words
        (r"\Bb", "ab", True),
        (r"^\W$", "é", True),
        (r"^[\w-z]+$", "_-z", True),  # no range begins with many characters
        (r"^[^\d]$", "٣", True),
        (r"^[^\D]$", "٣", False),
        (r"^[\D]$", "٣", True),
        (r"^[\D5]+$", "5é\n", True),
        (r"^[^\W_]+$", "naïve", False),
        (r"^[^\W_]+$", "naive5", True),
        (r"^[\W]+$", "é-@[\\]^`{}\U0010ffff", True),
        (r"[\W]", "aZ_09", False),
        (r"^[\W-a]+$", "é-a", True),
        ("a.b", "a\rb", False),
        ("a[^]b", "a\nb", True),
        ("a[]|c", "a", False),
        (r"(?<y>\d\d)-\k<y>", "12-12", True),
        (r"(?<y>\d\d)-\k<y>", "12-13", False),
        (r"^\q\A$", "qA", True),  # escapes that mean nothing are the letter
        (r"^\u0041\x42\cJ$", "AB\n", True),
        (r"^\x4$", "x4", True),
        ("^a{e<=1}$", "a{e<=1}", True),  # nothing here is fuzzy
        ("^x{,2}$", "x{,2}", True),
        ("^x{1,2}$", "xx", True),
        (r"^[[:alpha:]]$", "a]", True),
        (r"^\/\.\$\{$", "/.${", True),
    ],
)
def test_it_finds_what_javascript_finds(pattern: str, text: str, found: bool) -> None:
    assert (regex.search(python_pattern(pattern), text) is not None) is found


SPACES = {
    *range(9, 14),
    0x20,
    0xA0,
    0x1680,
    *range(0x2000, 0x200B),
    0x2028,
    0x2029,
    0x202F,
    0x205F,
    0x3000,
    0xFEFF,
}


@pytest.mark.parametrize("pattern", [r"\s", r"[\s]", r"[^\S]", r"[^x\S]", r"(?!\S)[^]"])
def test_white_space_is_that_of_javascript(pattern: str) -> None:
    found = regex.compile(f"^{python_pattern(pattern)}$", regex.DOTALL)
    assert {code for code in range(0x10000) if found.match(chr(code))} == SPACES
    assert regex.search(python_pattern(r"^[\s\S]*$"), "".join(map(chr, range(0x11000))))


@pytest.mark.parametrize("letter", "dDwWsS")
def test_a_dash_beside_a_class_is_a_dash(letter: str) -> None:
    alone = regex.compile(python_pattern(rf"\{letter}"))
    for written, other in ((rf"[+-\{letter}]", "+"), (rf"[\{letter}-z]", "z"), (rf"[a-c-\{letter}]", "abc")):
        found = regex.compile(python_pattern(f"^{written}$"))
        matched = {sign for sign in map(chr, range(0x250)) if found.match(sign)}
        assert matched == {sign for sign in map(chr, range(0x250)) if alone.match(sign)} | {"-", *other}


@pytest.mark.parametrize("pattern", ["(a", "\\", "[z-a]"])
def test_what_is_broken_stays_broken(pattern: str) -> None:
    with pytest.raises(regex.error):
        regex.compile(python_pattern(pattern))


@pytest.mark.parametrize("pattern", ["(?i)a", "(?P<n>a)", "(?>a)", "(a|(?x)b)"])
def test_groups_that_javascript_does_not_know(pattern: str) -> None:
    assert not is_javascript_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["(?i:a)", "(?<n>a)", "(?:a)(?=b)(?!c)(?<=d)(?<!e)", r"\(?i", "[(?i)]", "a{2}"]
)
def test_groups_that_javascript_knows(pattern: str) -> None:
    assert is_javascript_pattern(pattern)
