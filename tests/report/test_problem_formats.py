"""Every format says the same of the same problems, and no text of a config or a model acts in any of them."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sample_run import make_report

from geval_cli.cli.options import ProblemFormat
from geval_cli.errors import Location, Problem, Severity
from geval_cli.extras.pull_requests.problem_formats import Origin, run_problems, write_problems
from geval_cli.report.report import open_results_file

PLACE = Location("evals/a b.yaml", 7, 3, length=5, key_path="tests[0].assert")
PROBLEMS = (
    Problem("unknown key `promts`", Location("evals/a.yaml", 1, 1, length=6), "did you mean `prompts`?"),
    Problem("no test uses `x`", PLACE, notes=("first note", "second note"), severity=Severity.WARNING),
    Problem("two at once", hint="choose one"),
)


def written(form: ProblemFormat, *problems: Problem, origin: Origin = Origin.CONFIG) -> str:
    return write_problems(problems or PROBLEMS, form, origin=origin, workspace=Path.cwd())


def test_a_line_each() -> None:
    assert written(ProblemFormat.CONCISE).splitlines() == [
        "error: two at once (choose one)",
        "evals/a b.yaml:7:3: warning: no test uses `x`",
        "evals/a.yaml:1:1: error: unknown key `promts` (did you mean `prompts`?)",
    ]


def test_github_workflow_commands() -> None:
    assert written(ProblemFormat.GITHUB).splitlines() == [
        "::error title=geval%3A config::two at once%0Achoose one",
        "::error file=evals/a.yaml,line=1,col=1,title=geval%3A config"
        "::unknown key `promts`%0Adid you mean `prompts`?",
        "::warning file=evals/a b.yaml,line=7,col=3,title=geval%3A config"
        "::no test uses `x`%0Afirst note%0Asecond note",
    ]


def test_gitlab_code_quality() -> None:
    found = json.loads(written(ProblemFormat.GITLAB))

    assert [(item["location"], item["severity"], item["check_name"]) for item in found] == [
        ({"path": "evals/a b.yaml", "lines": {"begin": 7}}, "minor", "geval/config-warning"),
        ({"path": "evals/a.yaml", "lines": {"begin": 1}}, "major", "geval/config-error"),
    ]
    assert found[0]["description"] == "no test uses `x`\nfirst note\nsecond note"


def test_json_has_every_field() -> None:
    document = json.loads(written(ProblemFormat.JSON))

    assert (document["schema_version"], document["kind"]) == (1, "problems")
    assert document["problems"][1] == {
        "severity": "warning",
        "rule": "config-warning",
        "message": "no test uses `x`",
        "hint": "",
        "notes": ["first note", "second note"],
        "file": "evals/a b.yaml",
        "line": 7,
        "column": 3,
        "length": 5,
        "key_path": "tests[0].assert",
    }
    assert document["problems"][0]["file"] is None


# What SARIF 2.1.0 (OASIS, sections 3.13 to 3.30) demands of the parts that are written.
SARIF: dict[str, Any] = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool", "results"],
                "properties": {
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "results": {
                        "items": {
                            "required": ["message", "ruleId"],
                            "properties": {
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"required": ["text"]},
                                "locations": {
                                    "items": {
                                        "properties": {
                                            "physicalLocation": {
                                                "properties": {
                                                    "artifactLocation": {
                                                        "properties": {"uri": {"pattern": r"^[!-~]+$"}}
                                                    },
                                                    "region": {
                                                        "required": ["startLine"],
                                                        "properties": {
                                                            "startLine": {"minimum": 1},
                                                            "startColumn": {"minimum": 1},
                                                        },
                                                    },
                                                }
                                            }
                                        }
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}


@pytest.mark.parametrize("origin", Origin)
def test_sarif(origin: Origin) -> None:
    document = json.loads(written(ProblemFormat.SARIF, origin=origin))

    jsonschema.validate(document, SARIF)
    (run,) = document["runs"]
    assert {item["ruleId"] for item in run["results"]} == {
        rule["id"] for rule in run["tool"]["driver"]["rules"]
    }
    (place,) = run["results"][1]["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "evals/a%20b.yaml"},
        "region": {"startLine": 7, "startColumn": 3, "endColumn": 8},
    }
    assert run["results"][0]["locations"] == []


@pytest.mark.parametrize("form", ProblemFormat)
def test_nothing_to_say(form: ProblemFormat) -> None:
    text = write_problems([], form, origin=Origin.CONFIG, workspace=Path.cwd())
    if form in {ProblemFormat.GITLAB, ProblemFormat.SARIF, ProblemFormat.JSON}:
        assert json.loads(text) is not None
    else:
        assert text == ""


def test_a_problem_that_moved_to_another_line_is_the_same_problem() -> None:
    def fingerprints(line: int, reason: str) -> list[str]:
        place = Location("a.yaml", line, 1)
        problems = (Problem(f"g-eval tone 0.1 < 0.5: {reason}", place), Problem("other", place))
        return [item["fingerprint"] for item in json.loads(written(ProblemFormat.GITLAB, *problems))]

    assert fingerprints(3, "rude") == fingerprints(9, "very rude")
    assert len(set(fingerprints(3, "rude"))) == 2


def test_two_equal_problems_on_two_lines_have_fingerprints_of_their_own() -> None:
    problems = [Problem("unknown key", Location("a.yaml", line, 1)) for line in (1, 2)]
    found = json.loads(written(ProblemFormat.GITLAB, *problems))
    assert len({item["fingerprint"] for item in found}) == 2


@given(st.text(min_size=1), st.text())
def test_no_text_acts(message: str, hint: str) -> None:
    problem = Problem(message, Location("a.yaml", 1, 1, length=0), hint)
    for form in ProblemFormat:
        text = written(form, problem)
        assert "\x1b" not in text
        assert "\x07" not in text
    assert len(written(ProblemFormat.GITHUB, problem).splitlines()) == 1
    assert written(ProblemFormat.CONCISE, problem).count("\n") == 1


@pytest.mark.parametrize(("name", "count"), [("r.sarif", 4), ("gl.codequality.json", 4)])
def test_failed_tests_as_files_of_code_hosts(name: str, count: int, tmp_path: Path) -> None:
    report = make_report()
    open_results_file(tmp_path / name).finish(report)
    document = json.loads((tmp_path / name).read_text(encoding="utf-8"))

    found = document if isinstance(document, list) else document["runs"][0]["results"]
    assert len(found) == count == len(list(run_problems(report)))
