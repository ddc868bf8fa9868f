import pytest
from support.verdicts import judged, passes, problems

from geval_cli.assertions.match import WordRange


@pytest.mark.parametrize(
    ("value", "output", "expected"),
    [
        (3, " one  two\nthree ", True),
        (2, "one two three", False),
        ("3", "one two three", True),
        ("{{n}}", "one two", True),
        (0, "", True),
        (WordRange(min=2), "one two", True),
        (WordRange(min=2), "one", False),
        (WordRange(max=2), "one two three", False),
        (WordRange(min=1, max=2), "un\u00a0deux", True),
        (2, {"a": 1}, True),
    ],
)
def test_verdicts(value: object, output: object, expected: bool) -> None:
    assert passes("word-count", output, value=value, vars={"n": 2}) is expected


def test_the_reason_says_how_many_there_are_and_how_many_are_wanted() -> None:
    reason = judged("word-count", "one", value=WordRange(min=2, max=5)).reason
    assert reason == "the output has 1 word; expected from 2 to 5"


def test_a_text_that_is_no_number_is_a_problem() -> None:
    [problem] = problems("word-count", value="{{n}}", vars={"n": "many"})
    assert 'found "many"' in problem.message
