"""Runs held against an earlier one: which one that is, gates on the difference, and what is refused before paying."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.stored_runs import store_judged_run, store_run

from geval_cli.engine.plan import content_key
from geval_cli.errors import ConfigError, GevalError, UsageError
from geval_cli.extras.compare.comparison import (
    ComparisonOptions,
    NamedRun,
    compare,
    comparison_from_json,
    open_baseline,
)
from geval_cli.extras.compare.text import baseline_markdown
from geval_cli.records import RunSummary, Status
from geval_cli.report.report import write_results_file
from geval_cli.runs.evaluate import exit_code
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.source.files import MAX_CONFIG_BYTES
from geval_cli.statistics.paired import DifferenceVerdict
from geval_cli.store.state import open_runs


def suite_of(outputs: Sequence[str]) -> list[dict[str, Any]]:
    """Return tests whose stored outputs pass when they are good."""
    return [
        {
            "vars": {"question": number},
            "output": output,
            "metadata": {"lang": "de" if number % 2 else "en"},
            "assert": [{"type": "contains", "value": "good", "metric": "tone"}],
        }
        for number, output in enumerate(outputs)
    ]


def outputs_of(tests: int, *, bad: float, seed: int) -> list[str]:
    numbers = random.Random(seed)
    return ["bad" if numbers.random() < bad else "good" for _ in range(tests)]


def config_of(folder: Path, name: str, outputs: Sequence[str], **keys: Any) -> Path:
    return _written(folder, name, {"tests": suite_of(outputs), **keys})


def _written(folder: Path, name: str, config: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def summary_of(folder: Path, run_id: str) -> tuple[RunSummary, int]:
    with open_runs(folder / ".geval", {}) as runs:
        report = load_report(runs, run_id)
        return report.summary, exit_code(report)


@pytest.fixture
def main_run(tmp_path: Path) -> str:
    """Return the id of an earlier run of 60 tests, of which a tenth fails; it is in main.json, too."""
    run_id = store_run(config_of(tmp_path, "main.yaml", outputs_of(60, bad=0.1, seed=1)))
    with open_runs(tmp_path / ".geval", {}) as runs:
        write_results_file(tmp_path / "main.json", load_report(runs, run_id))
    return run_id


GATES = {
    "a drop that is shown breaks it": (0.6, "tone.delta >= -0.02 vs baseline", Status.FAILED, ""),
    "a drop of verdicts likewise": (0.6, "pass_rate.delta >= -2% vs baseline", Status.FAILED, ""),
    "a wide margin holds": (0.6, "tone.delta >= -0.9 vs baseline", Status.PASSED, ""),
    "a wide margin is proven": (0.6, "score.delta >= -0.9 vs baseline proven", Status.PASSED, ""),
    "what is not shown holds": (0.14, "tone.delta >= -0.02 vs baseline", Status.PASSED, "undecided"),
    "what is not shown is not proven": (
        0.14,
        "tone.delta >= -0.02 vs baseline proven",
        Status.FAILED,
        "more tests would tell",
    ),
    "a limit from above": (0.6, "tone.delta <= 0.05 vs baseline proven", Status.PASSED, ""),
    "a difference within a wide margin": (
        0.14,
        "tone equivalent within 0.4 vs baseline",
        Status.PASSED,
        "90 %",
    ),
    "a difference beyond a margin": (0.6, "score equivalent within 5% vs baseline", Status.FAILED, "90 %"),
    "a difference that may be either": (
        0.14,
        "pass_rate equivalent within 0.02 vs baseline",
        Status.FAILED,
        "undecided",
    ),
    "no tests but those of the tags": (0.6, "tone.delta[lang=de] >= 0 vs baseline", Status.FAILED, "n=30"),
}


@pytest.mark.parametrize("name", GATES)
def test_gates_on_a_difference(tmp_path: Path, main_run: str, name: str) -> None:
    bad, gate, status, note = GATES[name]
    config = config_of(tmp_path, "new.yaml", outputs_of(60, bad=bad, seed=2), gates=[gate, "failures <= 60"])
    summary, code = summary_of(tmp_path, store_run(config, baseline=main_run))

    assert [item.gate for item in summary.gates] == [gate, "failures <= 60", "errors <= 0"]
    found = summary.gates[0]
    assert (found.status, code) == (status, 1 if status is Status.FAILED else 0)
    assert note in found.note
    assert found.actual == pytest.approx(comparison_from_json(summary.baseline).rows[0].delta.value, abs=0.2)


def test_gates_on_differences_are_corrected_for_their_number_unless_that_is_switched_off(
    tmp_path: Path, main_run: str
) -> None:
    gates = [f"tone.delta >= {limit} vs baseline" for limit in (0, -0.01, -0.02)]
    notes = []
    for value in (gates, {"conditions": gates}, {"correction": "none", "conditions": gates}):
        config = config_of(tmp_path, "new.yaml", outputs_of(60, bad=0.6, seed=2), gates=value)
        notes.append(
            {
                gate.note.partition("bounds")[0].partition("fixed, ")[2]
                for gate in summary_of(tmp_path, store_run(config, baseline=main_run))[0].gates[:3]
            }
        )
    assert notes == [{"one-sided 98.3 % "}] * 2 + [{"one-sided 95 % "}]


@pytest.mark.parametrize("name", ["latest", "main.json", "by id"])
def test_a_baseline_is_a_run_or_a_file(
    tmp_path: Path, main_run: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = config_of(tmp_path, "new.yaml", outputs_of(60, bad=0.6, seed=2))
    summary, code = summary_of(tmp_path, store_run(config, baseline=main_run if name == "by id" else name))

    found = comparison_from_json(summary.baseline)
    assert (found.a.id, found.b.name, found.paired) == (main_run, "this run", 60)
    assert {row.verdict for row in found.rows} == {DifferenceVerdict.WORSE}
    assert code == 1  # for the tests that failed: a comparison alone decides nothing


def test_a_config_names_a_file_beside_it_unless_a_column_is_called_so(tmp_path: Path, main_run: str) -> None:
    assert main_run
    outputs = outputs_of(60, bad=0.6, seed=2)
    summary, _ = summary_of(tmp_path, store_run(config_of(tmp_path, "b.yaml", outputs, baseline="main.json")))
    assert comparison_from_json(summary.baseline).paired == 60
    config = {
        "prompts": ["{{ question }}"],
        "providers": [{"id": "echo", "label": "main.json"}],
        "tests": [{"vars": {"question": 1}, "assert": [{"type": "contains", "value": "1"}]}],
        "baseline": "main.json",
    }
    summary, _ = summary_of(tmp_path, store_run(_written(tmp_path, "c.yaml", config)))
    assert summary.baseline is None


def test_proven_holds_for_no_broken_test_of_many_and_for_no_more_broken_ones_where_fewer_fail(
    tmp_path: Path,
) -> None:
    """Two hundred tests, a limit of -0.02: none broken holds, and from the first one on nothing does."""
    earlier = store_run(config_of(tmp_path, "main.yaml", ["good"] * 200))
    gates = ["tone.delta >= -0.02 vs baseline proven", "tone.delta >= -0.03 vs baseline proven"]
    found = []
    for broken in range(4):
        outputs = ["bad"] * broken + ["good"] * (200 - broken)
        config = config_of(tmp_path, "new.yaml", outputs, gates=[*gates, "failures <= 9"])
        summary, _ = summary_of(tmp_path, store_run(config, baseline=earlier))
        found.append([gate.status is Status.PASSED for gate in summary.gates[:2]])
    assert found == [[True, True], [False, True], [False, False], [False, False]]


@pytest.mark.parametrize("is_changed", [False, True])
def test_three_tests_prove_nothing_once_the_code_that_rates_them_has_changed(
    tmp_path: Path, is_changed: bool
) -> None:
    """The file still passes them all: only its content tells that it may not have rated alike."""
    check = tmp_path / "check.py"
    check.write_text("def get_assert(output, context):\n    return 'good' in output\n", encoding="utf-8")
    tests = [{"output": f"good {number}"} for number in range(3)]
    keys = {
        "tests": tests,
        "defaultTest": {"assert": [{"type": "python", "metric": "tone", "value": "file://check.py"}]},
        "gates": ["tone.delta >= -0.02 vs baseline proven"],
    }
    first = {key: value for key, value in keys.items() if key != "gates"}
    run_id = store_run(_written(tmp_path, "main.yaml", first))
    with open_runs(tmp_path / ".geval", {}) as runs:
        write_results_file(tmp_path / "main.json", load_report(runs, run_id))
    if is_changed:
        check.write_text("def get_assert(output, context):\n    return 'goo' in output\n", encoding="utf-8")
    for baseline in (run_id, str(tmp_path / "main.json")):
        summary, _ = summary_of(tmp_path, store_run(_written(tmp_path, "new.yaml", keys), baseline=baseline))
        gate = summary.gates[0]
        assert (gate.status is Status.PASSED) is not is_changed
        assert comparison_from_json(summary.baseline).changes == (
            ("the content of check.py",) if is_changed else ()
        )


def test_margins_of_the_config_and_of_the_command_line(tmp_path: Path, main_run: str) -> None:
    outputs = outputs_of(60, bad=0.1, seed=1)
    rows = []
    for margin, given in ((0.3, ()), ({"tone": 0.4}, ()), (0.3, ("0.0001", "score=0.0002"))):
        config = config_of(tmp_path, "new.yaml", [f"so {output}" for output in outputs], margin=margin)
        summary, _ = summary_of(tmp_path, store_run(config, baseline=main_run, margins=given))
        (row,) = comparison_from_json(summary.baseline).rows
        rows.append((row.verdict, row.delta.margin))
    assert rows == [
        (DifferenceVerdict.EQUIVALENT, 0.3),
        (DifferenceVerdict.EQUIVALENT, 0.4),
        (DifferenceVerdict.UNDECIDED, 0.0001),
    ]
    for wrong, place in ((2, "margin"), ({"tone": "x"}, "tone")):
        with pytest.raises(ConfigError) as caught:
            prepare(RunRequest(config_of(tmp_path, "new.yaml", ["good"], margin=wrong), {}))
        (problem,) = caught.value.problems
        assert "a margin must be a number between 0 and 1, found" in problem.message
        assert problem.location is not None, place


def test_a_column_is_no_baseline_of_a_gate(tmp_path: Path) -> None:
    config = {
        "prompts": ["{{ x }}"],
        "providers": [{"id": "echo", "label": name} for name in ("one", "two")],
        "tests": [{"vars": {"x": 1}, "assert": [{"type": "contains", "value": "1", "metric": "tone"}]}],
        "gates": ["tone.delta >= -0.02 vs baseline"],
        "baseline": "two",
    }
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(_written(tmp_path, "c.json", config), {}))
    (problem,) = caught.value.problems
    assert problem.message.endswith("needs a baseline, but `baseline: two` is a column, not an earlier run")


def test_a_gate_without_a_baseline_is_a_problem(tmp_path: Path) -> None:
    config = config_of(tmp_path, "new.yaml", ["good"], gates=["tone.delta >= -0.02 vs baseline"])
    with pytest.raises(ConfigError) as caught:
        prepare(RunRequest(config, {}))
    (problem,) = caught.value.problems
    assert "needs a baseline, but there is none" in problem.message
    assert problem.location is not None
    assert "--baseline" in problem.hint
    # Without running anything, whoever names it on the command line may still do so.
    (warning,) = prepare(RunRequest(config, {}), is_going_to_run=False).warnings
    assert warning.message == problem.message


def test_a_first_run_leaves_out_what_needs_a_baseline(tmp_path: Path) -> None:
    gates = ["tone.delta >= 0 vs baseline", "tone.mean >= 0.5"]
    config = config_of(tmp_path, "new.yaml", ["good"] * 3, gates=gates, baseline="main.json")
    (warning,) = prepare(RunRequest(config, {}, baseline="none")).warnings
    assert "is skipped: there is no baseline" in warning.message
    summary, code = summary_of(tmp_path, store_run(config, baseline="none"))
    assert [gate.gate for gate in summary.gates] == ["tone.mean >= 0.5", "errors <= 0"]
    assert (summary.baseline, code) == (None, 0)


@pytest.mark.parametrize(
    ("keys", "baseline", "message"),
    [
        ({}, "nothing.json", "cannot read nothing.json"),
        ({}, "20200101", "there is no run `20200101`"),
        ({}, "other.json", "the suites are unrelated: 0 of 60 tests match"),
        ({"gates": ["style.delta >= 0 vs baseline"]}, "main", "no assertion has the metric `style`"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_stored(
    tmp_path: Path,
    main_run: str,
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, Any],
    baseline: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = json.loads((tmp_path / "main.json").read_text("utf-8"))
    for result in other["results"]:
        result["vars"] = {"other": result["test_index"]}
        result["test_key"] = content_key(None, result["vars"])
    (tmp_path / "other.json").write_text(json.dumps(other), encoding="utf-8")
    config = config_of(tmp_path, "new.yaml", outputs_of(60, bad=0.6, seed=2), **keys)
    with pytest.raises(GevalError) as caught:
        store_run(config, baseline=main_run if baseline == "main" else baseline)

    said = caught.value.problems[0].message if isinstance(caught.value, ConfigError) else caught.value.message
    assert message in said
    with open_runs(tmp_path / ".geval", {}) as runs:
        assert runs.find("latest").run.id == main_run


def test_a_metric_that_the_baseline_lacks_is_a_problem_of_the_gate(tmp_path: Path, main_run: str) -> None:
    tests = suite_of(outputs_of(60, bad=0.1, seed=2))
    for test in tests:
        test["assert"].append({"type": "contains", "value": "o", "metric": "style"})
    config = _written(tmp_path, "new.yaml", {"tests": tests, "gates": ["style.delta >= 0 vs baseline"]})
    with pytest.raises(ConfigError) as caught:
        store_run(config, baseline=main_run)
    (problem,) = caught.value.problems
    assert "has no score of `style`" in problem.message
    assert problem.hint == "its metrics: tone"
    assert problem.location is not None


def test_a_resumed_run_is_not_its_own_baseline(tmp_path: Path, main_run: str) -> None:
    config = config_of(tmp_path, "new.yaml", ["good"] * 60)
    prepared = prepare(RunRequest(config, {}, baseline="latest"))
    with open_runs(tmp_path / ".geval", {}) as runs:
        assert open_baseline(prepared, runs, "another") is not None
        with pytest.raises(UsageError, match="is this run itself"):
            open_baseline(prepared, runs, main_run)


def test_runs_of_a_real_judge_are_comparable_unless_it_is_another(tmp_path: Path) -> None:
    first, second = store_judged_run(tmp_path), store_judged_run(tmp_path)
    replies = json.loads((tmp_path / "judge.json").read_text("utf-8"))
    # Another judge by its replies to what it is never asked; here it answers alike.
    unused = {"match": "never asked", "reply": "1"}
    (tmp_path / "other.json").write_text(json.dumps([unused, *replies]), encoding="utf-8")
    config = tmp_path / "judged.json"
    config.write_text(config.read_text("utf-8").replace("judge.json", "other.json"), encoding="utf-8")
    third = store_run(config)
    with open_runs(tmp_path / ".geval", {}) as runs:
        a, b, c = (NamedRun(run_id, load_report(runs, run_id)) for run_id in (first, second, third))
        again, another = (compare(a, later, ComparisonOptions()) for later in (b, c))
    assert again.warnings == ()
    assert another.warnings == ("not comparable: different judge in coherence",)
    assert "left out as errors: 2 of 6 cases in A, 2 of 6 cases in B" in again.notes


def test_a_summary_lists_the_first_of_many_flipped_tests(tmp_path: Path) -> None:
    earlier = store_run(config_of(tmp_path, "main.yaml", ["good"] * 150))
    summary, _ = summary_of(
        tmp_path, store_run(config_of(tmp_path, "new.yaml", ["bad"] * 150), baseline=earlier)
    )
    row = comparison_from_json(summary.baseline).rows[0]
    assert (row.broken, len(row.flipped)) == (150, 100)
    assert "and 130 more" in baseline_markdown(summary.baseline)


def test_a_strangers_config_reads_no_baseline_elsewhere(tmp_path: Path, main_run: str) -> None:
    assert main_run
    inner = tmp_path / "inner"
    inner.mkdir()
    config = config_of(inner, "new.yaml", ["good"] * 60, baseline="../main.json")
    with pytest.raises(ConfigError) as caught:
        store_run(config, untrusted=True)
    assert "outside the config's folder" in caught.value.problems[0].message
    config = config_of(inner, "new.yaml", ["good"] * 60, baseline="main.parquet")
    with pytest.raises(ConfigError) as caught:
        store_run(config, untrusted=True)
    assert "`main.parquet` is a Parquet file, which --untrusted" in caught.value.problems[0].message


def test_a_baseline_that_is_no_file_or_too_large_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    for name, words in (
        ("pipe.json", "is a pipe"),
        ("zero.jsonl", "outside the config's folder"),
        ("large.json", "larger than 64 mb"),
    ):
        with pytest.raises(GevalError) as caught:
            store_run(config_of(tmp_path, "new.yaml", ["good"], baseline=name), untrusted=True)
        assert words in str([caught.value.message, *getattr(caught.value, "problems", ())])
    with pytest.raises(GevalError, match="is a pipe"):
        store_run(config_of(tmp_path, "new.yaml", ["good"]), baseline=str(tmp_path / "pipe.json"))


def test_a_broken_name_in_the_config_is_a_problem(tmp_path: Path) -> None:
    for value in (3, "", ["main.json"]):
        with pytest.raises(ConfigError) as caught:
            prepare(RunRequest(config_of(tmp_path, "new.yaml", ["good"], baseline=value), {}))
        assert "baseline" in caught.value.problems[0].message
        assert caught.value.problems[0].location is not None


def test_nothing_is_lost_when_no_case_has_a_partner(tmp_path: Path) -> None:
    config = config_of(tmp_path, "a.yaml", ["good"] * 3)
    with pytest.raises(UsageError, match="no runs are stored here yet"):
        store_run(config, baseline="latest")
