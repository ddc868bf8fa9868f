import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.verdicts import judged, passes, problems

from geval_cli.errors import Severity
from geval_cli.records import Status


@pytest.mark.parametrize(
    ("output", "value", "keys", "expected"),
    [
        ("Hello World", "Hello Wurld", {"threshold": 3}, True),
        ("kitten", "sitting", {"threshold": 3}, True),
        ("kitten", "sitting", {"threshold": 2}, False),
        ("abcde", "", {}, True),
        ("abcdef", "", {}, False),
        ("", "", {"threshold": 0}, True),
        ("12", 12, {"threshold": 0}, True),
        ("naïve 日本", "naive 日本", {"threshold": 1}, True),
        ({"a": 1}, '{"a": 1}', {"threshold": 0}, True),
    ],
)
def test_verdicts(output: object, value: object, keys: dict[str, object], expected: bool) -> None:
    assert passes("levenshtein", output, value=value, **keys) is expected


def test_the_default_limit_is_five_characters() -> None:
    result = judged("levenshtein", "abcdef", value="")
    assert (result.threshold, result.detail["limit"], result.status) == (None, 5, Status.FAILED)
    assert result.reason == "the edit distance is 6, more than 5"


@pytest.mark.parametrize(
    ("kind", "keys", "is_told"),
    [
        ("levenshtein", {"value": "Paris"}, True),
        ("levenshtein", {"value": "{{ city }}"}, True),
        ("levenshtein", {"value": "Paris", "threshold": 4}, False),
        ("levenshtein", {"value": "Paris!"}, False),
        ("levenshtein", {"value": ""}, False),
        ("not-levenshtein", {"value": "Paris"}, False),
    ],
)
def test_a_limit_that_lets_an_empty_output_pass_is_told(
    kind: str, keys: dict[str, object], is_told: bool
) -> None:
    found = problems(kind, vars={"city": "Oslo"}, **keys)
    assert [problem.severity for problem in found] == [Severity.WARNING] * is_told
    assert all("passes an empty output" in problem.message for problem in found)


@pytest.mark.parametrize("kind", ["levenshtein", "not-levenshtein"])
def test_a_list_in_a_variable_is_told(kind: str) -> None:
    [problem] = problems(kind, value="{{ cities }}", vars={"cities": ["Oslo", "Rome"]})
    assert problem.severity is Severity.WARNING
    assert "compares with a list or mapping" in problem.message


@given(st.text(max_size=12), st.text(max_size=12))
def test_the_distance_is_that_of_the_definition(one: str, other: str) -> None:
    other = other.replace("{", "(")
    result = judged("levenshtein", one, value=other, threshold=100)
    assert result.detail["distance"] == _by_definition(one, other)


def _by_definition(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, start=1):
        above = row
        row = [i]
        for j, right in enumerate(other, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (left != right)))
    return row[-1]
