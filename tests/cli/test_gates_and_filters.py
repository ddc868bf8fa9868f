"""Gates, filters and repeats through the command line: what is selected, what is shown, what the shell is told."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.geval_command import Finished, run_geval

from geval_cli.cli.arguments import failing_in, parse_option
from geval_cli.errors import ConfigError, UsageError
from geval_cli.runs.options import RunOptions, declared_options, default_of
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.store.runs import RunStore

SUITE = """\
prompts:
  - {id: plain, label: plain, raw: "{{word}}"}
  - {id: loud, label: loud, raw: "{{word}}!"}
providers:
  - echo
  - {id: echo, label: second}
tests:
  - description: greets
    vars: {word: hello}
    metadata: {area: start}
    assert: [{type: contains, value: hell, metric: tone}]
  - description: leaves
    vars: {word: bye}
    metadata: {area: end}
    assert: [{type: contains, value: hell, metric: tone}]
  - description: greets again
    vars: {word: hello there}
    metadata: {area: start}
    assert: [{type: contains, value: hell, metric: tone}]
"""


def run_suite(folder: Path, *options: str, suite: str = SUITE) -> tuple[Finished, dict[str, Any]]:
    (folder / "suite.yaml").write_text(suite, encoding="utf-8")
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    done = run_geval("run", "suite.yaml", "--no-progress", "-o", "out.json", *options, cwd=folder)
    return done, json.loads(out.read_text("utf-8")) if out.is_file() else {}


def places(document: dict[str, Any]) -> set[tuple[int, str, str]]:
    return {
        (item["test_index"], item["prompt"]["label"], item["provider"]["label"])
        for item in document["results"]
    }


@pytest.mark.parametrize(
    ("options", "tests", "prompts", "providers"),
    [
        (["--filter-first-n", "1"], {0}, {"plain", "loud"}, {"echo", "second"}),
        (["--filter-pattern", "^greets"], {0, 2}, {"plain", "loud"}, {"echo", "second"}),
        (["--filter-metadata", "area=end", "--filter-prompts", "lou"], {1}, {"loud"}, {"echo", "second"}),
        (["--filter-providers", "^second$", "--filter-first-n", "2"], {0, 1}, {"plain", "loud"}, {"second"}),
    ],
)
def test_filters(
    tmp_path: Path, options: list[str], tests: set[int], prompts: set[str], providers: set[str]
) -> None:
    _, document = run_suite(tmp_path, *options)

    assert places(document) == {
        (test, prompt, provider) for test in tests for prompt in prompts for provider in providers
    }


def test_a_sample_is_drawn_again_with_its_seed(tmp_path: Path) -> None:
    drawn = [places(run_suite(tmp_path, "--filter-sample", "2", "--seed", seed)[1]) for seed in ("5", "5")]

    assert drawn[0] == drawn[1]
    assert len({test for test, _, _ in drawn[0]}) == 2


@pytest.mark.parametrize("source", ["latest", "out.json"])
def test_what_failed_can_be_run_again(tmp_path: Path, source: str) -> None:
    run_suite(tmp_path)
    name = "first.json" if source == "out.json" else source
    (tmp_path / "first.json").write_text((tmp_path / "out.json").read_text("utf-8"), encoding="utf-8")
    _, document = run_suite(tmp_path, "--filter-failing", name)

    assert {test for test, _, _ in places(document)} == {1}


@pytest.mark.parametrize("source", ["latest", "out.json"])
@pytest.mark.parametrize("budget", [1, 2, 12])
def test_failures_of_a_run_that_stopped_early_are_not_taken_for_all(
    tmp_path: Path, source: str, budget: int
) -> None:
    _, document = run_suite(tmp_path, "--max-requests", str(budget), "--max-concurrency", "1")
    name = "first.json" if source == "out.json" else source
    (tmp_path / "first.json").write_text((tmp_path / "out.json").read_text("utf-8"), encoding="utf-8")
    done, _ = run_suite(tmp_path, "--filter-failing", name, "--allow-empty")

    is_whole = document["run"]["status"] == "completed"
    assert is_whole is (budget == 12)
    said = "was aborted: tests that it has not finished are not selected"
    assert (said in " ".join(done.stderr.split())) is not is_whole


def test_nothing_selected_is_a_mistake_unless_allowed(tmp_path: Path) -> None:
    done, _ = run_suite(tmp_path, "--filter-pattern", "nothing like it")
    allowed, document = run_suite(tmp_path, "--filter-pattern", "nothing like it", "--allow-empty")

    assert done.code == 2
    assert "no test of suite.yaml is selected" in done.stderr
    assert "--allow-empty" in done.stderr
    assert (allowed.code, document["summary"]["total"]) == (0, 0)


@pytest.mark.parametrize(
    ("flag", "written", "said"),
    [
        ("--filter-pattern", "(", "--filter-pattern must be a regular expression"),
        *(
            (f"--filter-{name}", "", f"--filter-{name} is empty")
            for name in ("pattern", "providers", "prompts")
        ),
        ("--filter-metadata", ["area"], "--filter-metadata must be NAME=VALUE"),
        ("--var", ["area"], "--var must be NAME=VALUE"),
        ("--filter-failing", "no-such-run", "no-such-run"),
        ("--filter-failing", "missing.json", "cannot read missing.json"),
        ("--filter-failing", "suite.json", "suite.json is not a geval results file"),
    ],
)
def test_broken_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str, written: Any, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    RunStore.open(tmp_path).close()
    (tmp_path / "suite.json").write_text("[1]", encoding="utf-8")
    declared = {option.name: (option, default_of(field)) for field, option in declared_options(RunOptions)}
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        failing_in(parse_option(*declared[flag], written), tmp_path)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("gates", "options", "code"),
    [
        (["pass_rate >= 60%"], [], 0),
        (["pass_rate >= 70%"], [], 1),
        (["tone.mean >= 0.6", "pass_rate[area=start] >= 100%"], [], 0),
        (["pass_rate[area=end] >= 1%"], [], 1),
        ([], ["--fail-under", "0.66"], 0),
        ([], ["--fail-under", "0.67"], 1),
        ([], ["--max-errors", "1"], 1),
        (["pass_rate >= 60%"], ["--fail-under", "0.9"], 1),
    ],
)
def test_gates_decide_the_exit_code(tmp_path: Path, gates: list[str], options: list[str], code: int) -> None:
    suite = SUITE + "gates: " + json.dumps(gates) + "\n"
    done, document = run_suite(tmp_path, *options, suite=suite)

    assert done.code == code
    shown = [gate["gate"] for gate in document["summary"]["gates"]]
    assert shown[: len(gates)] == gates
    assert all((gate in done.stdout) is (gate != "errors <= 0") for gate in shown)
    assert ("FAILED" in done.stdout.splitlines()[-2]) is (code == 1)


@pytest.mark.parametrize(("gates", "met"), [(["pass_rate >= 60%"], "1 of 1"), (["errors <= 0"], "1 of 1")])
def test_the_list_of_runs_counts_the_gates_that_the_run_shows(
    tmp_path: Path, gates: list[str], met: str
) -> None:
    done, _ = run_suite(tmp_path, suite=SUITE + "gates: " + json.dumps(gates) + "\n")
    assert f"{met} gate met" in done.stdout
    listed = run_geval("list", cwd=tmp_path, env={"COLUMNS": "200"})
    assert f"  {met}  " in listed.stdout


def test_a_gate_on_tags_that_no_test_has_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    done, document = run_suite(tmp_path, suite=f'{SUITE}gates: ["pass_rate[area=nowhere] >= 0"]\n')

    assert (done.code, document) == (2, {})
    assert "nothing was sent" in done.stderr


@pytest.mark.parametrize(("allowed", "code"), [("0", 3), ("1", 0)])
def test_errors_beside_gates(tmp_path: Path, allowed: str, code: int) -> None:
    (tmp_path / "replies.yaml").write_text(
        "- {match: a, reply: good}\n- {match: b, error: {status: 400}}\n", "utf-8"
    )
    suite = (
        "prompts: ['{{word}}']\nproviders: ['scripted:replies.yaml']\ngates: [pass_rate >= 50%]\n"
        "options: {max_concurrency: 1}\n"
        "tests:\n  - {vars: {word: a}, assert: [{type: contains, value: good}]}\n"
        "  - {vars: {word: b}, assert: [{type: contains, value: good}]}\n"
    )
    done, document = run_suite(tmp_path, "--max-errors", allowed, "-j", "1", suite=suite)

    assert (document["summary"]["passed"], document["summary"]["errored"]) == (1, 1)
    assert done.code == code


def test_whoever_only_allows_errors_still_wants_every_test_to_pass(tmp_path: Path) -> None:
    suite = (
        "prompts: ['{{word}}']\nproviders: ['scripted:replies.yaml']\n"
        "tests:\n  - {vars: {word: a}, assert: [{type: contains, value: good}]}\n"
    )
    (tmp_path / "replies.yaml").write_text("- {match: a, reply: bad}\n", "utf-8")
    done, document = run_suite(tmp_path, "--max-errors", "5", suite=suite)

    assert (done.code, document["summary"]["failed"]) == (1, 1)


def test_a_broken_gate_is_a_problem_with_its_line(tmp_path: Path) -> None:
    done, _ = run_suite(tmp_path, suite=SUITE + "gates:\n  - pass_rat >= 0.9\n")

    assert done.code == 2
    assert "suite.yaml:21:5" in done.stderr
    assert "did you mean `pass_rate`?" in done.stderr


def test_repeats_name_the_flaky_tests(tmp_path: Path) -> None:
    (tmp_path / "replies.yaml").write_text(
        "- {match: a, replies: [good, bad, good]}\n- {match: b, reply: good}\n", "utf-8"
    )
    suite = (
        "prompts: ['{{word}}']\nproviders: ['scripted:replies.yaml']\n"
        "tests:\n  - {description: wavers, vars: {word: a}, assert: [{type: contains, value: good}]}\n"
        "  - {description: steady, vars: {word: b}, assert: [{type: contains, value: good}]}\n"
    )
    done, document = run_suite(tmp_path, "--repeat", "3", "-j", "1", suite=suite)
    summary = document["summary"]

    assert summary["total"] == 6
    assert summary["flaky_count"] == 1
    assert (summary["flaky"][0]["passed"], summary["flaky"][0]["judged"]) == (2, 3)
    assert "flaky    " in done.stdout
    assert "1 test passed in some repeats only: #" in done.stdout


def test_repeats_of_equal_answers_make_no_interval_narrower(tmp_path: Path) -> None:
    suite = SUITE.replace("  - {id: loud", "  # - {id: loud").replace("  - {id: echo, label: second}\n", "")
    _, once = run_suite(tmp_path, suite=suite)
    _, again = run_suite(tmp_path, "--repeat", "3", suite=suite)

    assert (once["summary"]["total"], again["summary"]["total"]) == (3, 9)
    for read in (
        lambda run: run["summary"]["metrics"]["tone"]["interval"],
        lambda run: run["summary"]["pass_interval"],
    ):
        assert read(again) == pytest.approx(read(once))


def test_a_gate_on_an_unknown_metric_is_told_beside_mistakes_of_tests_and_providers(tmp_path: Path) -> None:
    gates = ["nowhere.mean >= 0.5", "tone.mean >= 0.5", "the-answer-is-polite.mean >= 0.5", "nonsense"]
    config = {
        "prompts": ["{{ q }}"],
        "providers": ["opnai:gpt-4o"],
        "gates": gates,
        "tests": [
            {"vars": {"q": "a"}, "assert": [{"type": "contians", "value": "x", "metric": "tone"}]},
            {"assert": [{"type": "g-eval", "criteria": "The answer is polite", "treshold": 0.5}]},
        ],
    }
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(tmp_path / "c.json", {}))
    said = "\n".join(problem.message for problem in caught.value.problems)

    assert "no assertion has the metric `nowhere` of the gate `nowhere.mean >= 0.5`" in said
    assert "metric `tone`" not in said
    assert "metric `the-answer" not in said
    for other in ("opnai", "contians", "treshold", "nonsense"):
        assert other in said, said
