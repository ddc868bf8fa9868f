import pytest
from support.verdicts import judged, passes, problems

from geval_cli.extras.markup import XmlRules


@pytest.mark.parametrize(
    ("kind", "output", "keys", "expected"),
    [
        ("is-xml", "<a><b>x</b></a>", {}, True),
        ("is-xml", "\n <?xml version='1.0' encoding='utf-16'?><ä>é 日本</ä>\n", {}, True),
        ("is-xml", "<!DOCTYPE html><html/>", {}, True),
        ("is-xml", "<a><b>x</a>", {}, False),
        ("is-xml", "text <a/>", {}, False),
        ("is-xml", "", {}, False),
        ("is-xml", {"a": 1}, {}, False),
        ("is-xml", "<a><b>x</b></a>", {"value": "a.b"}, True),
        ("is-xml", "<a><b>x</b></a>", {"value": "a, a.b"}, True),
        ("is-xml", "<a><b>x</b></a>", {"value": ("a.b", "a.c")}, False),
        ("is-xml", "<a><b>x</b></a>", {"value": ("b",)}, False),
        ("is-xml", "<a/>", {"value": XmlRules(required_elements=("a",))}, True),
        ("contains-xml", "Sure: <a>1 &lt; 2</a> done", {}, True),
        ("contains-xml", "<a/> and <b><c/></b>", {"value": ("a", "b.c")}, True),
        ("contains-xml", "<p>never closed <b>bold</b>", {"value": "b"}, True),
        ("contains-xml", "<p>never closed", {}, False),
        ("contains-xml", "a < b and c > d", {}, False),
        ("contains-xml", "", {}, False),
        ("contains-xml", "<a title='x > y'>1</a>", {}, True),
        ("contains-xml", "<a title='x > y'/> and <b/>", {"value": ("a", "b")}, True),
        ("contains-xml", "<a/></b><c></c>", {"value": ("a", "c")}, True),
        ("contains-xml", "<a>x/></a><b>1</b>", {"value": ("a", "b")}, True),
        ("contains-xml", "<a><b/></a ><c\n>1</c>", {"value": ("a.b", "c")}, True),
        ("contains-xml", "<a title='é > 日'>😀</a> é <b/>", {"value": ("a", "b")}, True),
        ("contains-xml", "<a><![CDATA[</a>]]></a><b/>", {"value": ("a", "b")}, True),
        ("contains-xml", "<a><!-- > </a> --></a><b/>", {"value": ("a", "b")}, True),
        ("contains-xml", "<ä>1</ä>", {"value": "ä"}, True),
        ("contains-xml", "<a title='never closed>1</a>", {}, False),
        ("contains-xml", "<a>1</a", {}, False),
    ],
)
def test_verdicts(kind: str, output: object, keys: dict[str, object], expected: bool) -> None:
    assert passes(kind, output, **keys) is expected


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><x>&b;</x>'
    result = judged("is-xml", bomb)
    assert result.score == 0
    assert "declares its own entities" in (result.reason or "")


def test_the_reason_says_where_it_breaks_and_what_is_missing() -> None:
    assert judged("is-xml", "<a><b>x</a>").reason == "the output is not XML: mismatched tag: line 1, column 9"
    assert judged("is-xml", "<a/>", value=("a.b", "a.c")).reason == "the XML has no a.b, a.c"


def test_thousands_of_open_tags_are_read_in_bounded_time() -> None:
    assert not passes("contains-xml", "<a>" * 20_000)


def test_a_broken_template_in_the_name_of_an_element_is_a_problem() -> None:
    assert problems("is-xml", value="{{x")[0].message.startswith("broken template")


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        ("a.b, c:d, é, _x, a-1.b", []),
        ("a..b, <c>, d e", ["a..b", "<c>", "d e"]),
        (("a ", "//b", "1a"), ["a", "//b", "1a"]),
        (XmlRules(required_elements=("a.b", ".c")), [".c"]),
    ],
)
def test_a_name_that_no_element_can_have_gets_a_warning(value: object, wrong: list[str]) -> None:
    """`not-is-xml` with such a name passed every output."""
    found = [problem.message for problem in problems("not-is-xml", value=value)]
    assert [message.partition("`")[2].partition("`")[0] for message in found] == wrong


def test_many_elements_beside_one_another_are_read_in_bounded_time() -> None:
    assert passes("contains-xml", "<a>1</a><b>" * 5_000, value="a")
