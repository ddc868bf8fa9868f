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
