import csv

import pytest
from support.specs import case
from support.verdicts import judged, passes, problems

from geval_cli.assertions.base import rendered_texts, split_at_commas
from geval_cli.errors import Severity
from geval_cli.records import Status
from geval_cli.specs.dialect import PROMPTFOO_RULES
from geval_cli.templating import Templates


@pytest.mark.parametrize(
    ("kind", "value", "output", "expected"),
    [
        ("contains-all", ("Paris", "France"), "Paris is in France", True),
        ("contains-all", ("Paris", "Italy"), "Paris is in France", False),
        ("contains-all", ("paris",), "Paris", False),
        ("icontains-all", ("PARIS", "france"), "Paris is in France", True),
        ("contains-any", ("Rome", "Paris"), "Paris", True),
        ("contains-any", ("Rome", "Oslo"), "Paris", False),
        ("icontains-any", ("ROME", "paris"), "PARIS", True),
        ("contains-any", "Rome, Paris", "in Paris", True),
        ("contains-all", "Rome, Paris", "in Paris", False),
        ("contains-all", '"Rome, Italy", Paris', "Paris; Rome, Italy", True),
        ("contains-any", 42, "the answer is 42", True),
        ("contains-all", (1, True), "1 is true", True),
        ("contains-any", ("x",), "", False),
        ("contains-all", ("é", "日本"), "Café à 日本", True),
        ("contains-any", ('"a": 1',), {"a": 1}, True),
    ],
)
def test_verdicts(kind: str, value: object, output: object, expected: bool) -> None:
    assert passes(kind, output, value=value) is expected


def test_every_text_is_a_template_and_so_is_a_text_with_commas() -> None:
    assert passes("contains-all", "a b", value=("{{x}}", "{{y}}"), vars={"x": "a", "y": "b"})
    assert passes("contains-any", "b", value="{{names}}", vars={"names": "a, b"})


@pytest.mark.parametrize("words", [["Rome", "Paris"], ("Rome", "Paris"), '["Rome", "Paris"]', "Rome, Paris"])
def test_a_variable_that_holds_a_list_stands_for_its_texts(words: object) -> None:
    given = {"words": words}
    assert passes("contains-any", "in Paris", value="{{ words }}", vars=given)
    assert passes("icontains-all", "paris, rome", value="{{words}}", vars=given)
    assert not passes("contains-all", "in Paris", value="{{ words }}", vars=given)


@pytest.mark.parametrize(
    ("value", "output", "expected"),
    [
        ('["Rome", "a, b"]', "a, b", True),
        ('["Rome", "a, b"]', "a", False),
        ("[1, true, 2.5]", "2.5", True),
        ('["{{ city }}", "Rome"]', "Oslo", True),
        (("x", "{{ words }}"), "Paris", True),
        ("[a], b", "[a]", True),  # no JSON: a text with commas
        ("[1]", "as in [1]", True),  # a citation
        ("[1]", "as in 1", False),
        ('["1"]', "as in 1", True),
        ('[["a"], "b"]', "a", False),
    ],
)
def test_a_list_may_be_written_as_json(value: object, output: str, expected: bool) -> None:
    given = {"words": ["Rome", "Paris"], "city": "Oslo"}
    assert passes("contains-any", output, value=value, vars=given) is expected


def test_references_in_a_variable_are_several() -> None:
    assert passes("rouge-n", "good day", value="{{ best }}", vars={"best": ["no", "good day"]})
    assert passes("rouge-n", '["a b"]', value="{{ best }}", vars={"best": '["a b"]'})  # a text is one


def test_an_empty_list_in_a_variable_is_nothing_to_look_for() -> None:
    for value in ("{{ words }}", "[]"):
        assert "nothing to look for" in problems("contains-any", value=value, vars={"words": []})[0].message


def test_the_reason_names_what_is_missing() -> None:
    reason = judged("contains-all", "Paris", value=("Paris", "Rome", "Oslo")).reason
    assert reason == 'the output does not contain "Rome", "Oslo"'


def test_nothing_to_look_for_is_a_problem() -> None:
    assert "nothing to look for" in problems("contains-all", value=())[0].message
    assert "nothing to look for" in problems("contains-any", value="{{x}}", vars={"x": ""})[0].message
    assert problems("contains-any", value=("a",)) == []


@pytest.mark.parametrize(
    ("kind", "value", "ends"),
    [
        *((kind, "", "passes") for kind in ("contains", "icontains", "starts-with", "ends-with", "regex")),
        *((f"not-{kind}", "{{e}}", "fails") for kind in ("contains", "icontains", "starts-with", "regex")),
        ("contains-any", ("a", ""), "passes"),
        ("icontains-any", ("{{e}}", "a"), "passes"),
        ("not-contains-any", ("a", "{{e}}"), "fails"),
        ("contains-any", "a,, b,", None),
        ("contains-all", ("", "{{e}}"), "passes"),
        ("not-icontains-all", ("{{e}}",), "fails"),
        ("contains-all", ("a", ""), None),
        ("contains-any", ("a", "{{x}}"), None),
        ("contains", "{{x}}", None),
        ("equals", "", None),
        ("not-equals", "{{e}}", None),
        *(
            ("regex", pattern, "passes")
            for pattern in (".*", "yes|no|", "(?i)a?", r"\s*", "[0-9]{0,3}", "{{x}}*", "()")
        ),
        ("not-regex", "(sorry)?", "fails"),
        *(
            ("regex", pattern, None)
            for pattern in ("^a?$", "a+", "[^^]", r"\b", "(?!z)", "(?<!z)$", "^.{0,9}$", "{{x}}")
        ),
        ("not-regex", "z", None),
    ],
)
def test_a_text_that_every_output_has_is_pointed_out(kind: str, value: object, ends: str | None) -> None:
    found = problems(kind, value=value, vars={"e": "", "x": "a"})
    told = [(problem.severity, problem.message.split(" (")[0]) for problem in found]
    assert told == ([(Severity.WARNING, f"{kind} always {ends}")] if ends else [])
    if ends:
        verdicts = {
            judged(kind, output, value=value, vars={"e": "", "x": "a"}).status for output in ("", "z")
        }
        assert verdicts == {Status.PASSED if ends == "passes" else Status.FAILED}


def test_an_undefined_name_in_one_of_the_texts_is_a_problem() -> None:
    [problem] = problems("contains-any", value=("a", "{{cty}}"), vars={"city": "x"})
    assert problem.hint == "did you mean `city`?"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a, b", ["a", "b"]),
        ('"a, b", c', ["a, b", "c"]),
        ('say ""hi"", b', ['say ""hi""', "b"]),
        ("a\nb, c\n", ["a", "b", "c"]),
        ("", []),
        ("a,\nb,, c ,", ["a", "b", "c"]),
    ],
)
def test_a_text_is_cut_at_commas_outside_of_quotes(text: str, parts: list[str]) -> None:
    assert split_at_commas(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('"a, b", c', ["a, b", "c"]),
        ("a,, b, ", ["a", "b"]),
        ("a,\nb\nc\n", ["a", "b\nc"]),
        (r'"a \"b\"", "c ""d""", e', ['a "b"', 'c "d"', "e"]),
        (r'"a\\", b', ["a\\", "b"]),
        ('say "hi", b', ['say "hi"', "b"]),
        (' , "" ,', [""]),
        ('"a" b, c', ["a b", "c"]),
        ('a, "b', ["a", "b"]),
        (" , ", []),
    ],
)
def test_in_promptfoos_configs_line_breaks_belong_to_a_text(text: str, parts: list[str]) -> None:
    assert split_at_commas(text, in_lines=False) == parts
    assert rendered_texts(text, case(), Templates(PROMPTFOO_RULES), split=True) == parts


def test_a_part_may_be_a_whole_document(request: pytest.FixtureRequest) -> None:
    before = csv.field_size_limit(131_072)  # Python's own, which reading a table raises
    request.addfinalizer(lambda: csv.field_size_limit(before))
    assert split_at_commas(f"a, {'x' * 200_000}") == ["a", "x" * 200_000]
