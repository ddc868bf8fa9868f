from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_cli.assertions.geval import GEvalAssertion
from geval_cli.assertions.registry import ASSERTION_TYPES
from geval_cli.errors import Location, Problem, Severity
from geval_cli.source.problems import did_you_mean, render_problem, render_problems, sort_problems
from geval_cli.specs.base import spellings

KEYS = sorted(spellings(GEvalAssertion))


def at(line: int, column: int, file: str = "a.yaml") -> Location:
    return Location(file, line, column)


def test_a_problem_without_a_place_still_says_what_to_do() -> None:
    shown = render_problem(Problem("nothing works", hint="try again", notes=("really",)))
    assert shown == "error: nothing works\n    = try again\n    = really"


def test_a_warning_is_called_one() -> None:
    problem = Problem("odd", at(1, 1), severity=Severity.WARNING)
    assert render_problem(problem, read_line=lambda _: "x") == (
        "warning: odd\n  --> a.yaml:1:1\n    |\n  1 | x\n    | ^"
    )


def test_the_gutter_grows_with_the_line_number() -> None:
    shown = render_problem(Problem("odd", at(12345, 2), "why?", ("note",)), read_line=lambda _: "ab")
    assert shown == "error: odd\n    --> a.yaml:12345:2\n      |\n12345 | ab\n      |  ^ why?\n      = note"


def test_problems_come_in_the_order_of_the_file_and_once() -> None:
    first, second = Problem("one", at(2, 9)), Problem("two", at(10, 1))
    other_file = Problem("three", at(1, 1, "b.yaml"))
    nowhere = Problem("four")
    assert sort_problems([other_file, second, first, nowhere, second]) == [nowhere, first, second, other_file]


def test_a_part_that_is_used_twice_is_reported_once() -> None:
    problems = [Problem("bad", Location("a.yaml", 1, 1, key_path=path)) for path in ("tests[0]", "tests[1]")]
    assert sort_problems(problems) == problems[:1]


def test_lines_are_read_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    shown = render_problems([Problem("odd", at(3, 1, str(path))), Problem("odd", at(9, 1, str(path)))])
    assert "  3 | three" in shown
    assert shown.endswith("a.yaml:9:1")


def test_control_characters_of_a_config_do_not_reach_the_terminal() -> None:
    assert "\x1b" not in render_problem(
        Problem("unknown key `\x1b[2J`", at(1, 1)), read_line=lambda _: "\x1b[2J: 1"
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("treshold", "threshold"),
        ("evaluationSteps", "evaluationSteps"),
        ("evaluation-steps", "evaluation_steps"),
        ("EvaluationParam", "evaluation_params"),
        ("rubric_promt", "rubricPrompt"),
        ("strict", "strict_mode"),
        ("wieght", "weight"),
        ("temperature", None),
        ("x", None),
        ("", None),
        ("-", None),
    ],
)
def test_keys_are_recognised_through_slips(word: str, meant: str | None) -> None:
    found = did_you_mean(word, KEYS)
    assert found == meant or (
        meant and found and found.replace("_", "").lower() == meant.replace("_", "").lower()
    )


@given(st.sampled_from(sorted(ASSERTION_TYPES)), st.data())
def test_a_single_slip_in_a_type_is_always_recognised(word: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(word) - 1))
    letter = data.draw(st.sampled_from("qxz"))
    slip = data.draw(
        st.sampled_from(
            [
                word[:position] + word[position + 1 :],
                word[:position] + letter + word[position:],
                word[:position] + letter + word[position + 1 :],
                word[:position] + word[position : position + 2][::-1] + word[position + 2 :],
            ]
        )
    )
    assert did_you_mean(slip, [word, "something-else-entirely"]) == word
