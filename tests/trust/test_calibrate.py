"""`geval calibrate`: records, files, notes and exit codes; and a config that uses what it wrote."""

import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema import Draft202012Validator
from lxml import etree
from markdown_it import MarkdownIt
from msgspec.structs import replace
from support.geval_command import Finished, clean_environment, run_geval
from support.judged_data import summaries
from support.stored_runs import store_run

import geval_cli.extras.trust
from geval_cli.cli.arguments import parse_option
from geval_cli.errors import ConfigError, Problem, Severity, UsageError
from geval_cli.extras.export import read_portable_suite
from geval_cli.extras.json_schema import config_json_schema
from geval_cli.extras.trust.calibration import calibrate, calibration_document, write_calibration
from geval_cli.extras.trust.documents import (
    ReportDocument,
    Section,
    Table,
    markdown_of,
    print_document,
    write_document,
)
from geval_cli.extras.trust.labels import write_labels
from geval_cli.extras.trust.options import CalibrateOptions
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status
from geval_cli.report.console import make_console
from geval_cli.report.report import RunReport
from geval_cli.runs.options import Option
from geval_cli.runs.prepare import prepare
from geval_cli.runs.requests import RunRequest
from geval_cli.runs.stored import load_report
from geval_cli.statistics.intervals import share_interval
from geval_cli.store.state import open_runs
from geval_cli.suite.load import open_suite

EXAMPLES = Path(__file__).parents[2] / "examples" / "trust"
HOSTILE = "<script>alert(1)</script>\u202e|[x](http://y) \x1b[31m"


def rows(count: int = 40, *, metric: str = "tone", seed: int = 1, **changes: Any) -> list[dict[str, Any]]:
    """Labels with scores of a judge that is right more often than not."""
    draw = np.random.default_rng(seed)
    made = []
    for number in range(count):
        truth = number % 5 + 1
        score = float(np.clip(truth - 1 + draw.integers(-1, 2), 0, 4)) / 4
        made.append(
            {"id": str(number), "metric": metric, "label": truth, "scale": [1, 5], "score": score, **changes}
        )
    return made


def rated(number: int, score: float, threshold: float, *, passed: bool) -> CaseResult:
    """A result of a run whose judge decided so, whatever its score."""
    status = Status.PASSED if passed else Status.FAILED
    return CaseResult(
        id=f"{number}.0.0",
        test_index=number,
        repeat_index=0,
        column=0,
        description=None,
        prompt=RenderedPrompt("p", "prompt", "Say it."),
        provider=ProviderRef("echo", "echo"),
        vars={},
        output=f"output {number}",
        status=status,
        score=score,
        named_scores={"tone": score},
        assertions=(AssertionResult("g-eval", "tone", status, score, threshold),),
    )


def refusals(given: list[dict[str, Any]], **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        calibrate(given, options=CalibrateOptions(**options))
    return [problem.message for problem in caught.value.problems]


class TestRecord:
    def test_published_data(self) -> None:
        kept = [row for row in summaries() if row["metric"] == "coherence"]
        first = set(list(dict.fromkeys(row["doc"] for row in kept))[:50])
        found = calibrate([row for row in kept if row["doc"] in first])
        entry = found.to_file()["entries"][0]
        assert (entry["threshold"], entry["n"], entry["good"], entry["clusters"]) == (0.9375, 600, 237, 50)
        assert entry["p_pass"] == [
            [0.0, 0.0, 0.076923, 39],
            [0.25, 0.875, 0.139241, 158],
            [1.0, 1.0, 0.526055, 403],
        ]
        assert (entry["alpha"], entry["pass_from"], entry["fail_below"]) == (0.1, None, 0.75)
        (item,) = found.metrics
        assert [one.threshold for one in item.candidates] == [0.125, 0.375, 0.5625, 0.6875, 0.8125, 0.9375]
        assert any(note.startswith("no score is a clear pass") for note in item.notes)

    def test_json_has_figures_and_no_nan(self) -> None:
        document = json.loads(json.dumps(calibrate(rows(120)).to_json(), allow_nan=False))
        assert (document["schema_version"], document["kind"]) == (1, "calibrate")
        item = document["metrics"][0]
        assert set(item["checked"]["accuracy"]) == {"value", "interval", "n", "clusters"}
        assert item["checked"]["accuracy"]["n"] == 120
        assert "points" not in item

    def test_under_a_hundred_labels_the_curve_is_logistic(self) -> None:
        few, many = calibrate(rows(99)).to_file(), calibrate(rows(100)).to_file()
        assert ("logistic" in few["entries"][0], "p_pass" in few["entries"][0]) == (True, False)
        assert ("logistic" in many["entries"][0], "p_pass" in many["entries"][0]) == (False, True)

    @pytest.mark.parametrize(
        ("given", "note"),
        [
            (
                rows(40),
                "16 good and 24 bad labels: 31 of each give balanced accuracy to ±0.1; 50 are recommended",
            ),
            (rows(40), "the scores do not come from a run"),
            (rows(40), "under 100 labels"),
            (rows(20), "no score is called clear or borderline: that needs 9 good and 9 bad labels, not 8"),
            (rows(40, score=0.5), "all scores are equal"),
            (
                [{**row, "score": 1 - row["score"]} for row in rows(40)],
                "at no threshold do its verdicts agree",
            ),
            (
                [*rows(40), *rows(2, score=None, id="x", doc=None)[:1]],
                "left out: 1 labelled output that could not be judged",
            ),
        ],
    )
    def test_notes(self, given: list[dict[str, Any]], note: str) -> None:
        notes = calibrate(given).metrics[0].notes
        assert any(text.startswith(note) for text in notes), notes

    def test_figures_on_held_out_labels_are_those_of_the_prevalence(self) -> None:
        """Half of the labels are good, as was advised; nearly all outputs will be."""
        draw = np.random.default_rng(5)
        given = []
        for number in range(400):
            good = number % 2
            score = float(np.clip(draw.normal(0.7 if good else 0.4, 0.15), 0, 1))
            given.append(
                {"id": str(number), "metric": "tone", "label": float(good), "score": round(score, 2)}
            )
        found = calibrate(given, options=CalibrateOptions(prevalence=0.95))
        (item,) = found.metrics
        checked = item.checked
        assert checked is not None
        counts = checked.counts
        right = 0.95 * counts.true_pass / counts.good + 0.05 * counts.true_fail / counts.bad
        assert checked.accuracy.value == pytest.approx(right)
        # Always to say "95 %" is off by .05 of good outputs and by .95 of bad ones.
        assert checked.base_brier.value == pytest.approx(0.95 * 0.05**2 + 0.05 * 0.95**2, abs=2e-3)
        assert checked.brier.value < checked.base_brier.value
        assert checked.bad_passed.n == checked.good_failed.n == 200
        # Bad outputs, of which there are next to none, make the figure no surer than the good ones do.
        assert checked.accuracy.interval is not None
        width = checked.accuracy.interval[1] - checked.accuracy.interval[0]
        of_good = share_interval(counts.true_pass, counts.good)
        assert of_good is not None
        assert width > 0.95 * (of_good[1] - of_good[0])
        best = max(item.candidates, key=lambda one: one.mcc or 0.0)
        assert best.threshold == item.calibration.threshold
        console = make_console(io.StringIO(), environ={})
        print_document(calibration_document(found), console)
        said = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
        assert "on held-out labels, weighted to 95 % good outputs: " in said

    @pytest.mark.parametrize("ending", [".md", ".json"])
    def test_verdicts_that_no_threshold_makes_are_told_as_those_of_the_run(
        self, ending: str, tmp_path: Path
    ) -> None:
        """Half of the tests have another threshold than the others, so none of them is today's."""
        results = [
            rated(number, number % 5 / 4, 0.2 if number % 2 else 0.9, passed=number % 2 == 1)
            for number in range(40)
        ]
        labels = [
            {"id": item.id, "metric": "tone", "label": float(item.test_index % 5 > 1)} for item in results
        ]
        found = calibrate(labels, results)
        (item,) = found.metrics
        assert item.present is None
        assert item.at_present.threshold is None
        counts = item.at_present.counts
        assert (counts.false_pass, counts.false_fail) == (8, 12)
        assert item.summary.endswith("; the run's own verdicts: 8 and 12.")
        path = tmp_path / f"found{ending}"
        write_document(path, calibration_document(found))
        text = path.read_text(encoding="utf-8")
        if ending == ".md":
            assert "| as run | 8 of 16 | 12 of 24 |" in text
            assert text.count("| today |") == 1
        else:
            assert json.loads(text)["metrics"][0]["present"] is None

    def test_equal_scores_keep_the_present_threshold(self) -> None:
        (item,) = calibrate(rows(40, score=0.5), options=CalibrateOptions(threshold=0.6)).metrics
        assert (item.calibration.threshold, item.candidates) == (0.6, ())
        assert item.calibration.p_pass(0.1) == item.calibration.p_pass(0.9)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (rows(9), "`tone` has 9 labels with a score, too few to calibrate"),
            (rows(40, label=5), "all 40 labels of `tone` are good"),
            (rows(40, label=1), "all 40 labels of `tone` are bad"),
            (rows(40, score=None), "`tone` has 0 labels with a score, too few to calibrate"),
        ],
    )
    def test_labels_that_cannot_do_it(self, given: list[dict[str, Any]], message: str) -> None:
        assert refusals(given) == [message]

    def test_every_metric_that_cannot_do_it_is_named_at_once(self) -> None:
        given = [*rows(40, label=5), *rows(5, metric="style"), *rows(40, metric="fine")]
        assert len(refusals(given)) == 2
        found = calibrate(given, options=CalibrateOptions(only=("fine",)))
        assert [item.metric for item in found.metrics] == ["fine"]

    @pytest.mark.parametrize(
        "options",
        [
            {"only": ("tune",)},
            {"good": 1.5},
            {"threshold": -1},
            {"prevalence": 0.0},
            {"prevalence": 1.0},
            {"costs": (0.0, 1.0)},
            {"cluster": "nothing"},
        ],
    )
    def test_options_that_make_no_sense(self, options: dict[str, Any]) -> None:
        with pytest.raises(UsageError):
            calibrate(rows(), options=CalibrateOptions(**options))

    def test_costs_and_prevalence_move_the_threshold_and_the_chances(self) -> None:
        given = rows(200)
        plain, strict = calibrate(given), calibrate(given, options=CalibrateOptions(costs=(9, 1)))
        assert strict.metrics[0].calibration.threshold > plain.metrics[0].calibration.threshold
        assert strict.to_file()["entries"][0]["objective"] == "cost 9:1"
        common = calibrate(given, options=CalibrateOptions(prevalence=0.9))
        assert common.metrics[0].calibration.p_pass(0.5) > plain.metrics[0].calibration.p_pass(0.5)
        assert common.to_file()["entries"][0]["prevalence"] == 0.9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example after `geval run answers.yaml` and `geval calibrate`, of which each test gets a copy."""
    folder = tmp_path_factory.mktemp("shop") / "made"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(".geval"))
    path = folder / "judge.yaml"
    steps = '- match: \'"steps"\'\n  reply: \'{"steps": ["Something else."]}\'\n'
    path.write_text(steps + path.read_text(encoding="utf-8"), encoding="utf-8")
    store_run(folder / "answers.yaml")
    found = calibrate(folder / "answer-labels.jsonl", "latest", home=folder / ".geval")
    write_calibration(folder / "judge.cal.json", found)
    return folder


@pytest.mark.parametrize(
    "payload", [HOSTILE, "![x](http://y/p.png)", "a\n\n# b\n[c]: http://y", "`a` <img src=x> ``"]
)
def test_no_text_in_any_place_of_a_markdown_report_becomes_a_link_a_picture_or_a_tag(payload: str) -> None:
    table = Table(("a", "b"), [(payload, "c")])
    text = f"the judge's reply: {payload}"
    section = Section(
        payload, lambda quote: f"see {quote(payload)}", tables=[table], texts=[text], notes=[text]
    )
    document = ReportDocument(
        "T", lambda quote: quote(payload), [section], {}, answer=lambda quote: quote(payload)
    )
    page = MarkdownIt("commonmark").enable("table").render(markdown_of(document))
    tags = {"h1", "h2", "p", "code", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(re.findall(r"<(\w+)", page)) <= tags
    assert page.count("<h1>") == page.count("<h2>") == 1


@pytest.fixture
def calibrated(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "shop", ignore=shutil.ignore_patterns("running"))


def geval(folder: Path, *words: str) -> Finished:
    return run_geval(*words, cwd=folder, env=clean_environment(COLUMNS="80"))


def prepared(
    folder: Path, name: str = "calibrated.yaml", **options: Any
) -> tuple[list[Problem], list[Problem]]:
    """The errors and the warnings of a config, as `geval validate` finds them."""
    try:
        found = prepare(RunRequest(folder / name, {}, **options), is_going_to_run=False)
    except ConfigError as error:
        errors = [item for item in error.problems if item.severity is Severity.ERROR]
        return errors, [item for item in error.problems if item.severity is not Severity.ERROR]
    return [], list(found.warnings)


def results_of(folder: Path, name: str) -> tuple[RunReport, list[CaseResult]]:
    run_id = store_run(folder / name)
    with open_runs(folder / ".geval", {}) as runs:
        report = load_report(runs, run_id)
        return report, list(report.results())


def change(folder: Path, name: str, *, of_suite: dict[str, Any] | None = None, **keys: Any) -> str:
    """Write a config with another assertion beside `calibrated.yaml`, and return its name."""
    config = yaml.safe_load((folder / "calibrated.yaml").read_text(encoding="utf-8"))
    assertion = config["defaultTest"]["assert"][0]
    for part, changes in ((assertion, keys), (config, of_suite or {})):
        for key, value in changes.items():
            if value is None:
                part.pop(key, None)
            else:
                part[key] = value
    (folder / name).write_text(yaml.safe_dump(config), encoding="utf-8")
    return name


RUBRIC_KEYS = ("criteria", "evaluation_steps", "evaluation_params", "score_range", "scoring")


class TestInARun:
    def test_results_say_how_likely_people_are_pleased(self, calibrated: Path) -> None:
        finished = geval(calibrated, "run", "calibrated.yaml", "-v", "-o", "results.json")
        assert finished.code == 0
        assert "warning" not in finished.stderr
        assert re.search(r"0\.00 < 0\.625  P\(pass\) 0\.002", finished.stdout)
        assert re.search(r"borderline <= 80%\s+40 %\s+\S* ?PASS", finished.stdout)
        results = json.loads((calibrated / "results.json").read_text(encoding="utf-8"))["results"]
        entry = json.loads((calibrated / "judge.cal.json").read_text(encoding="utf-8"))["entries"][0]
        for case in results:
            (verdict,) = case["assertions"]
            assert verdict["threshold"] == entry["threshold"] == 0.625
            slope, intercept = entry["logistic"]
            chance = 1 / (1 + np.exp(-(slope * verdict["score"] + intercept)))
            assert verdict["detail"]["p_pass"] == pytest.approx(chance, abs=1e-9)
            is_clear = verdict["score"] >= entry["pass_from"] or verdict["score"] < entry["fail_below"]
            assert verdict["detail"]["borderline"] is not is_clear

    def test_a_number_wins_over_the_file(self, calibrated: Path) -> None:
        _, results = results_of(calibrated, change(calibrated, "number.yaml", threshold=0.3))
        assert results[0].assertions[0].threshold == 0.3
        assert "p_pass" in results[0].assertions[0].detail

    @pytest.mark.parametrize(
        ("keys", "part"),
        [
            ({"criteria": "The answer is short."}, "other criteria"),
            ({"score_range": [1, 9]}, "another range of ratings"),
            ({"rubric": {1: "bad", 5: "good"}}, "another rubric"),
            ({"guidelines": ["Rate thanks 1."]}, "other guidelines"),
            ({"examples": [{"output": "Thanks.", "rating": 1}]}, "other examples"),
            ({"evaluation_steps": ["Look."]}, "other evaluation steps"),
            ({"evaluation_params": None}, "other `evaluation_params`"),
            ({"scoring": "samples"}, "another `scoring` or number of samples"),
            ({"rubric_prompt": "Rate {{ output }}"}, "another `rubric_prompt`"),
            ({"provider": "echo"}, "another judge"),
            (
                {"type": "llm-rubric", "value": "kind", **dict.fromkeys(RUBRIC_KEYS)},
                "another type of assertion",
            ),
        ],
    )
    def test_another_criterion_is_named_before_anything_is_sent(
        self, calibrated: Path, keys: dict[str, Any], part: str
    ) -> None:
        (error,), _ = prepared(calibrated, change(calibrated, "strict.yaml", **keys))
        assert error.message.startswith("`helpful` was calibrated with ")
        assert part in error.message
        assert error.message.endswith(", so `threshold: calibrated` cannot be used")
        assert error.location is not None
        assert error.location.line > 1
        assert error.hint == "calibrate again: geval calibrate LABELS --run RUN -o judge.cal.json"
        errors, warnings = prepared(calibrated, change(calibrated, "lenient.yaml", threshold=0.5, **keys))
        assert errors == []
        assert any(item.message.endswith("so results get no P(pass)") for item in warnings)

    @pytest.mark.parametrize(
        ("part", "words"),
        [
            ("params", "other judge parameters"),
            ("guidelines", "other guidelines"),
            ("examples", "other examples"),
            ("new", ""),
        ],
    )
    def test_parts_that_the_file_alone_says(self, calibrated: Path, part: str, words: str) -> None:
        """A part that only another version of geval knows is no difference; the key decides in the run."""
        path = calibrated / "judge.cal.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["entries"][0]["parts"][part] = "00000000"
        path.write_text(json.dumps(content), encoding="utf-8")
        errors, _ = prepared(calibrated)
        assert [words in item.message for item in errors] == ([True] if words else [])

    def test_the_command_says_that_nothing_was_sent(self, calibrated: Path) -> None:
        refused = geval(calibrated, "run", change(calibrated, "strict.yaml", criteria="Short."))
        assert (refused.code, refused.stdout) == (2, "")
        assert "nothing was sent" in refused.stderr

    def test_a_stale_file_with_a_number_runs_without_chances(self, calibrated: Path) -> None:
        _, results = results_of(
            calibrated, change(calibrated, "stale.yaml", threshold=0.5, criteria="Short.")
        )
        assert all("p_pass" not in case.assertions[0].detail for case in results)

    def test_steps_that_a_judge_writes_are_known_only_afterwards(self, calibrated: Path) -> None:
        name = change(calibrated, "generated.yaml", evaluation_steps=None, of_suite={"gates": None})
        assert prepared(calibrated, name)[0] == []
        report, results = results_of(calibrated, name)
        assert any("calibrated with other evaluation steps" in note for note in report.run.warnings)
        assert all("p_pass" not in case.assertions[0].detail for case in results)

    def test_agree_says_whose_labels_are_too_good_for_a_calibrated_run(self, calibrated: Path) -> None:
        words = "on the labels that it was made from, figures are too good; use other labels"
        for suite, is_said in (("answers.yaml", False), ("calibrated.yaml", True)):
            geval(calibrated, "run", suite)
            found = geval(calibrated, "agree", "answer-labels.jsonl", "--run", "latest")
            assert (words in " ".join(found.stdout.split())) is is_said, found.stdout

    def test_judging_again_marks_again(self, calibrated: Path) -> None:
        geval(calibrated, "run", "calibrated.yaml")
        finished = geval(calibrated, "judge", "latest", "calibrated.yaml", "-o", "again.json")
        assert finished.code == 0
        first = json.loads((calibrated / "again.json").read_text(encoding="utf-8"))["results"][0]
        assert "p_pass" in first["assertions"][0]["detail"]

    @pytest.mark.parametrize(
        ("suite", "keys", "message"),
        [
            ({"calibration": None, "gates": None}, {}, "the config has no calibration file"),
            ({"calibration": None}, {"threshold": 0.5}, "there is no calibration, so the gate"),
            ({}, {"metric": "helpfull"}, "has no calibration of `helpfull`"),
            ({}, {"metric": None}, "`threshold: calibrated` needs a metric"),
            ({}, {"type": "not-g-eval"}, "`threshold: calibrated` is not for not-g-eval"),
            ({"calibration": 3}, {}, "`calibration` must be a path, found"),
            ({"calibration": "file://nowhere.json"}, {}, "there is no file"),
            ({"calibration": "answers.jsonl"}, {}, ""),
            ({}, {"threshold": "calibrate"}, "`threshold` must be"),
        ],
    )
    def test_configs_that_cannot_use_it(
        self, calibrated: Path, suite: dict[str, Any], keys: dict[str, Any], message: str
    ) -> None:
        errors, _ = prepared(calibrated, change(calibrated, "broken.yaml", of_suite=suite, **keys))
        assert errors
        assert any(message in error.message for error in errors)
        assert all(error.location is not None for error in errors)

    @pytest.mark.parametrize(
        ("changes", "message", "place"),
        [
            ({"calibration_version": 2}, "not 2", "judge.cal.json:2:"),
            ({"calibration_version": 0}, "calibrate again", "judge.cal.json:2:"),
            ({"calibration_version": None}, "", "judge.cal.json:2:"),
            ({"entries": []}, "`entries` must be a list", "judge.cal.json:3:"),
            ({"entries": [3]}, "a calibration must be a mapping", "judge.cal.json:4:"),
            ({"more": 1}, "unknown key `more`", "judge.cal.json"),
            ({"entry": {"threshold": 2}}, "`threshold` must be", "judge.cal.json"),
            ({"entry": {"threshold": "x"}}, "`threshold` must be", "judge.cal.json"),
            ({"entry": {"thresold": 0.5}}, "unknown key `thresold`", "judge.cal.json"),
            ({"entry": {"n": -1}}, "`n` must be", "judge.cal.json"),
            ({"entry": {"n": None}}, "has no value", "judge.cal.json"),
            ({"entry": {"metric": 5}}, "`metric` must be", "judge.cal.json"),
            ({"entry": {"logistic": None}}, "needs `p_pass` or `logistic`", "judge.cal.json"),
            ({"entry": {"logistic": [-1, 0]}}, "`logistic` must be", "judge.cal.json"),
            ({"entry": {"logistic": [1]}}, "`logistic` must be", "judge.cal.json"),
            ({"entry": {"p_pass": [[0, 0, 0.5, 1]]}}, "`logistic` must be", "judge.cal.json"),
            ({"entry": {"logistic": None, "p_pass": [[0, 0, 0.5]]}}, "blocks must be", "judge.cal.json"),
            ({"entry": {"logistic": None, "p_pass": [[0, 0, 0.5, 1], [0, 1, 0.6, 1]]}}, "blocks must be", ""),
            ({"entry": {"logistic": None, "p_pass": [[0, 0, 0.5, 1], [1, 1, 0.2, 1]]}}, "blocks must be", ""),
            ({"entry": {"logistic": None, "p_pass": [[0, 10**400, 0.5, 1]]}}, "", "judge.cal.json"),
            ({"entry": {"logistic": None, "p_pass": ["x"]}}, "`p_pass[0]` must be", "judge.cal.json"),
        ],
    )
    def test_a_broken_file_is_refused_with_its_place(
        self, calibrated: Path, changes: dict[str, Any], message: str, place: str
    ) -> None:
        path = calibrated / "judge.cal.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content["entries"][0].update(changes.pop("entry", {}))
        path.write_text(json.dumps({**content, **changes}, indent=1), encoding="utf-8")
        (error,), _ = prepared(calibrated)
        assert message in f"{error.message}; {error.hint}"
        assert f"{error.location}".startswith(f"{calibrated}/{place}"), error.location

    @pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00", '{"calibration_version": NaN}', "{}"])
    def test_a_file_that_is_none(self, calibrated: Path, text: str) -> None:
        (calibrated / "judge.cal.json").write_text(text, encoding="utf-8")
        errors, _ = prepared(calibrated)
        assert [str(error.location).split(":")[0] for error in errors] == [str(calibrated / "judge.cal.json")]

    def test_a_file_for_other_metrics_is_said(self, calibrated: Path) -> None:
        errors, warnings = prepared(calibrated, change(calibrated, "o.yaml", metric="kind", threshold=0.5))
        assert errors == []
        assert "no assertion has a metric from judge.cal.json: helpful" in [item.message for item in warnings]

    def test_strangers_read_no_file_outside(self, calibrated: Path) -> None:
        shutil.move(calibrated / "judge.cal.json", calibrated.parent / "judge.cal.json")
        name = change(calibrated, "out.yaml", of_suite={"calibration": "../judge.cal.json"})
        assert prepared(calibrated, name)[0] == []
        assert prepared(calibrated, name, untrusted=True)[0]

    def test_an_exported_suite_names_the_file_and_has_the_threshold(self, calibrated: Path) -> None:
        found = read_portable_suite(calibrated / "calibrated.yaml", env={})
        assert found.content["calibration"] == "judge.cal.json"
        assert found.content["defaultTest"]["assert"][0]["threshold"] == 0.625
        assert [item.message for item in found.warnings] == [
            "`judge.cal.json` remains a separate file that has to travel with the suite"
        ]

    def test_another_file_is_another_run(self, calibrated: Path) -> None:
        """A run cannot be resumed with other chances than it began with."""
        before = open_suite(calibrated / "calibrated.yaml", env={}).suite.digest
        path = calibrated / "judge.cal.json"
        path.write_text(
            path.read_text(encoding="utf-8").replace('"alpha": 0.1', '"alpha": 0.2'), encoding="utf-8"
        )
        assert open_suite(calibrated / "calibrated.yaml", env={}).suite.digest != before

    @pytest.mark.parametrize("judge", ["openai:gpt-4.1", "anthropic:claude-sonnet-4-5", "local:smollm2"])
    def test_a_judge_without_its_key_is_compared_too(self, calibrated: Path, judge: str) -> None:
        _, warnings = prepared(calibrated, change(calibrated, "j.yaml", threshold=0.5, provider=judge))
        assert any("was calibrated with another judge" in item.message for item in warnings)

    def test_sets_and_several_prompts_are_looked_into(self, calibrated: Path) -> None:
        name = change(calibrated, "inner.yaml", criteria="Short.")
        config = yaml.safe_load((calibrated / name).read_text(encoding="utf-8"))
        config["defaultTest"]["assert"] = [{"type": "assert-set", "assert": config["defaultTest"]["assert"]}]
        (calibrated / name).write_text(yaml.safe_dump(config), encoding="utf-8")
        (error,), _ = prepared(calibrated, name)
        assert "other criteria" in error.message

    def test_runs_and_estimates_need_no_library_of_the_extra(self) -> None:
        modules = (
            "extras.trust.calibrated",
            "extras.trust.true_figures",
            "extras.trust.labelling",
            "extras.trust.estimation",
            "extras.trust.commands.reports",
        )
        imports = ", ".join(f"geval_cli.{name}" for name in modules)
        code = (
            f"import sys, {imports}; print(sorted({{'numpy', 'scipy', 'krippendorff'}} & set(sys.modules)))"
        )
        finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert finished.stdout.strip() == "[]"


class TestCommand:
    def test_a_run_with_several_criteria_is_refused(self, calibrated: Path) -> None:
        written = (calibrated / "answers.yaml").read_text(encoding="utf-8")
        (calibrated / "mixed.yaml").write_text(
            written.replace("kindly.", "about {{ thing }}."), encoding="utf-8"
        )
        _, results = results_of(calibrated, "mixed.yaml")
        with pytest.raises(ConfigError) as caught:
            calibrate(calibrated / "answer-labels.jsonl", results)
        (problem,) = caught.value.problems
        assert problem.message == "`helpful` was rated with other criteria in part of this run"
        assert problem.location is not None
        assert problem.location.line == 1

    def test_scores_on_another_scale_are_refused(self, calibrated: Path) -> None:
        _, results = results_of(calibrated, "answers.yaml")
        other = [replace(case, named_scores={"helpful": 5.0}) for case in results]
        with pytest.raises(ConfigError) as caught:
            calibrate(calibrated / "answer-labels.jsonl", other)
        assert caught.value.problems[0].message == "`helpful` has scores outside 0 to 1, such as 5"

    @pytest.mark.parametrize("name", ["answers.yaml", "calibrated.yaml"])
    def test_editors_take_the_examples(self, name: str) -> None:
        written = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
        Draft202012Validator(config_json_schema()).validate(written)
        written["defaultTest"]["assert"][0]["threshold"] = "calibrate"
        assert not Draft202012Validator(config_json_schema()).is_valid(written)

    def test_a_mean_of_several_assertions_is_refused(self, calibrated: Path) -> None:
        config = yaml.safe_load((calibrated / "answers.yaml").read_text(encoding="utf-8"))
        config["defaultTest"]["assert"] *= 2
        (calibrated / "two.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        _, results = results_of(calibrated, "two.yaml")
        with pytest.raises(ConfigError) as caught:
            calibrate(calibrated / "answer-labels.jsonl", results)
        assert caught.value.problems[0].message == "`helpful` is the mean of several assertions of a test"

    def test_a_run_that_kept_no_criteria_ties_to_no_judge(self, calibrated: Path) -> None:
        _, results = results_of(calibrated, "answers.yaml")
        bare = [
            replace(case, assertions=tuple(replace(item, detail={}) for item in case.assertions))
            for case in results
        ]
        found = calibrate(calibrated / "answer-labels.jsonl", bare)
        assert any(note.startswith("the run did not record its criteria") for note in found.metrics[0].notes)
        write_calibration(calibrated / "judge.cal.json", found)
        (error,), _ = prepared(calibrated)
        assert error.message.startswith("the calibration of `helpful` in judge.cal.json has no judge")

    def test_files(self, tmp_path: Path) -> None:
        write_labels(tmp_path / "l.jsonl", rows(120, metric=HOSTILE))
        names = ("x.cal.json", "r.json", "r.md", "r.html")
        finished = run_geval(
            "calibrate", "l.jsonl", *(word for name in names for word in ("-o", name)), cwd=tmp_path
        )
        assert finished.code == 0, finished.stderr
        for text in (
            finished.stdout,
            *((tmp_path / name).read_text(encoding="utf-8") for name in ("r.md", "r.html")),
        ):
            assert "\u202e" not in text
            assert "\x1b" not in text
        assert "\n## `<script>" in (tmp_path / "r.md").read_text(encoding="utf-8")
        page = etree.HTML((tmp_path / "r.html").read_text(encoding="utf-8"))
        assert page.findall(".//script") == []
        assert len(page.findall(".//svg")) == 1
        assert json.loads((tmp_path / "x.cal.json").read_text(encoding="utf-8"))["calibration_version"] == 1
        assert json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["kind"] == "calibrate"

    @pytest.mark.parametrize(
        "words",
        [
            ("--cost", "3"),
            ("-o", "nowhere/x.cal.json"),
            ("--run", "nowhere"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        write_labels(tmp_path / "l.jsonl", rows())
        finished = run_geval("calibrate", "l.jsonl", *words, cwd=tmp_path)
        assert (finished.code, finished.stdout) == (2, "")
        assert finished.stderr

    @pytest.mark.parametrize("written", ["3", "0:1", "a:b", "nan:1", "1:inf", "", ":", "1:2:3"])
    def test_costs_that_are_none(self, written: str) -> None:
        with pytest.raises(UsageError):
            parse_option(Option("--cost", syntax="A:B"), None, written)

    def test_the_terminal_cuts_no_number(self) -> None:
        draw = np.random.default_rng(2)
        given = rows(300)
        for row in given:
            row["score"] = float(np.clip(row["score"] * 0.8 + draw.random() * 0.2, 0, 1))
        found = calibrate(given)
        for width in (60, 80, 200):
            stream = io.StringIO()
            print_document(calibration_document(found), make_console(stream, environ={}, width=width))
            printed = stream.getvalue()
            assert "…" not in printed
            assert "chosen" in printed
            assert "today" in printed
            assert re.search(r"\d+ more thresholds: --json", printed)
            assert len(printed.splitlines()) < 70
            assert max(map(len, printed.splitlines())) <= width

    def test_the_library_is_the_command(self, tmp_path: Path) -> None:
        write_labels(tmp_path / "l.jsonl", rows(120))
        finished = run_geval("calibrate", "l.jsonl", "--json", cwd=tmp_path)
        found = geval_cli.extras.trust.calibrate(tmp_path / "l.jsonl")
        assert json.loads(finished.stdout) == {**json.loads(json.dumps(found.to_json())), "labels": "l.jsonl"}


@pytest.mark.parametrize(("documents", "is_there"), [(2, False), (8, False), (9, True), (18, True)])
def test_clear_scores_take_labels_of_nine_documents_each(documents: int, is_there: bool) -> None:
    """Ten labels of each document, all alike: with two, one of three new bad documents would be a clear pass."""
    labels = [
        {
            "id": f"{good}-{number}-{place}",
            "doc": f"{good} {number}",
            "metric": "m",
            "label": good,
            "score": score,
        }
        for good in (0, 1)
        for number in range(documents)
        for place, score in enumerate([(good + number / documents) / 2] * 10)
    ]
    (found,) = calibrate(labels).metrics
    assert (found.calibration.alpha is not None) is is_there
    note = f"9 good and 9 bad labels of different tests or documents, not {documents}"
    assert any(note in text for text in found.notes) is not is_there
