"""`geval estimate`: true figures of a run, the sheet to label, gates and exit codes."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.geval_command import clean_environment, run_geval
from support.judged_data import summaries
from support.stored_runs import store_judged_run

import geval_cli.extras.trust
from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras.trust.documents import print_document
from geval_cli.extras.trust.estimation import estimate, estimate_document
from geval_cli.extras.trust.labelling import draw_sheet
from geval_cli.extras.trust.labels import read_labels, write_labels
from geval_cli.extras.trust.options import EstimateOptions
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status
from geval_cli.report.console import make_console


def case(number: int, score: float | None, *, metric: str = "tone", threshold: float = 0.75) -> CaseResult:
    verdict = Status.PASSED if (score or 0.0) >= threshold else Status.FAILED
    status = Status.ERROR if score is None else verdict
    judged = AssertionResult(
        type="g-eval",
        metric=metric,
        status=status,
        score=score,
        threshold=threshold,
        detail={"score_range": [1, 5]},
    )
    return CaseResult(
        id=f"{number}.0.0",
        test_index=number,
        repeat_index=0,
        column=0,
        description=None,
        prompt=RenderedPrompt("p", "prompt", "Say it."),
        provider=ProviderRef("echo", "echo"),
        vars={"x": number},
        output=f"=output {number}",
        status=status,
        score=score,
        named_scores={} if score is None else {metric: score},
        assertions=(judged,),
    )


def run_of(count: int = 400, *, good: float = 0.7, seed: int = 1) -> tuple[list[CaseResult], list[float]]:
    """Results of a kind judge, and what people would say of each output."""
    draw = random.Random(seed)
    truth = [float(draw.random() < good) for _ in range(count)]
    scores = [1.0 if (true and draw.random() < 0.95) or draw.random() < 0.5 else 0.25 for true in truth]
    return [case(number, score) for number, score in enumerate(scores)], truth


def labels_of(truth: list[float], numbers: Any) -> list[dict[str, Any]]:
    return [{"id": f"{number}.0.0", "metric": "tone", "label": truth[number]} for number in numbers]


@pytest.mark.parametrize(
    "other",
    [{"id": "0.0.0"}, {"vars": {"x": "0"}}, {"vars": {"x": "0"}, "test_key": None}, {"output": "=output 0"}],
    ids=["id", "vars", "no key", "text"],
)
def test_an_output_is_counted_once_however_its_annotators_name_it(other: dict[str, Any]) -> None:
    results, truth = run_of(100)
    anna = [{**row, "annotator": "anna"} for row in labels_of(truth, range(30))]
    found = estimate([*anna, {**other, "metric": "tone", "label": 0, "annotator": "ben"}], results)
    assert (found.matched, found.metrics[0].labelled) == (30, 30)
    assert "30 used" in estimate_document(found).about(str)


def test_published_data() -> None:
    """The first ten documents labelled; each output is a test, so a cluster of its own."""
    rows = [row for row in summaries() if row["metric"] == "consistency"]
    first = set(list(dict.fromkeys(row["doc"] for row in rows))[:10])
    results = [case(number, row["score"], metric="consistency") for number, row in enumerate(rows)]
    labels = [
        {"id": f"{number}.0.0", "metric": "consistency", "labels": row["labels"], "scale": [1, 5]}
        for number, row in enumerate(rows)
        if row["doc"] in first
    ]
    found = estimate(labels, results, require=["consistency.true_pass_rate >= 78%", "true_pass_rate >= 80%"])
    (item,) = found.metrics
    assert item.mean is not None
    assert item.pass_rate is not None
    assert item.mean.interval == pytest.approx((0.840211, 0.919141), abs=1e-6)
    assert item.pass_rate.interval == pytest.approx((0.789969, 0.903236), abs=1e-6)
    assert (item.mean.value, item.pass_rate.value) == pytest.approx((0.885468, 0.846603), abs=1e-6)
    assert (item.weight_of_mean, item.weight_of_rate) == pytest.approx((0.400631, 0.407158), abs=1e-6)
    assert (item.labelled, item.outputs, item.errored) == (119, 1198, 2)
    assert [gate.status for gate in found.gates] == [Status.PASSED, Status.FAILED]
    assert {gate.note for gate in found.gates} == {"it is 85 %, 95 % interval 79 to 90 %"}


def test_a_kind_judge_is_set_right() -> None:
    results, truth = run_of()
    drawn = random.Random(2).sample(range(400), 100)
    (item,) = estimate(labels_of(truth, drawn), results).metrics
    assert item.pass_rate is not None
    assert item.labels_pass_rate is not None
    assert item.pass_rate.value == pytest.approx(0.7, abs=0.08)
    assert item.judge_pass_rate > 0.75
    assert item.pass_rate.interval is not None
    assert item.labels_pass_rate.interval is not None
    low, high = item.pass_rate.interval
    assert high - low < item.labels_pass_rate.interval[1] - item.labels_pass_rate.interval[0]


def test_json_has_figures_and_no_nan() -> None:
    results, truth = run_of(60)
    document = json.loads(
        json.dumps(estimate(labels_of(truth, range(20)), results).to_json(), allow_nan=False)
    )
    assert (document["schema_version"], document["kind"], document["matched"]) == (1, "estimate", 20)
    assert set(document["metrics"][0]["pass_rate"]) == {"value", "interval", "n", "clusters"}


@pytest.mark.parametrize(
    ("labelled", "note"),
    [
        (range(20), "20 labels: use at least 30"),
        (range(40), "true only if the labelled outputs were drawn at random from this run"),
    ],
)
def test_notes(labelled: range, note: str) -> None:
    results, truth = run_of(60)
    (item,) = estimate(labels_of(truth, labelled), results).metrics
    assert any(text.startswith(note) for text in item.notes)


def test_what_the_judge_could_not_score_is_counted() -> None:
    results, truth = run_of(60)
    broken = [case(number, None) if number in (3, 50) else result for number, result in enumerate(results)]
    (item,) = estimate(labels_of(truth, range(40)), broken).metrics
    assert (item.labelled, item.outputs, item.errored) == (39, 58, 2)
    assert any("2 outputs of the run" in note for note in item.notes)


def test_of_a_judge_that_broke_on_everything_nothing_is_said() -> None:
    found = estimate(labels_of([1.0] * 20, range(20)), [case(number, None) for number in range(20)])
    (item,) = found.metrics
    assert (item.judge_pass_rate, item.pass_rate, item.outputs, item.errored) == (None, None, 0, 20)
    console = make_console(io.StringIO(), environ={})
    print_document(estimate_document(found), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the true pass rate is unknown" in shown
    assert "0 %" not in shown


def test_all_labelled_and_one_label() -> None:
    results, truth = run_of(60)
    (whole,) = estimate(labels_of(truth, range(60)), results).metrics
    assert whole.mean is not None
    assert whole.mean.value == pytest.approx(sum(truth) / 60)
    (one,) = estimate(labels_of(truth, [0]), results).metrics
    assert one.mean is not None
    assert one.mean.interval is None


def test_unmatched_labels_are_refused() -> None:
    results, truth = run_of(60)
    labels = [*labels_of(truth, range(30)), {"id": "99.0.0", "metric": "tone", "label": 1}]
    with pytest.raises(ConfigError):
        estimate(labels, results)
    assert estimate(labels, results, allow_unmatched=True).unmatched == 1


@pytest.mark.parametrize(
    ("options", "require"),
    [
        ({"only": ("tune",)}, []),
        ({"good": 2.0}, []),
        ({"threshold": -1.0}, []),
        ({"method": "rogan"}, []),
        ({"method": "rogan-gladen"}, []),
        ({}, ["pass_rate >= 0.5"]),
        ({}, ["style.true_mean >= 0.5"]),
        ({}, ["true_mean"]),
        ({}, ["true_pass_rate <= 80"]),
        ({}, ["summary.true_mean >= 0"]),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], require: list[str]) -> None:
    results, truth = run_of(40)
    with pytest.raises(UsageError):
        estimate(labels_of(truth, range(30)), results, options=EstimateOptions(**options), require=require)


def test_a_requirement_that_is_none_names_figures_of_an_estimate() -> None:
    with pytest.raises(UsageError) as refused:
        estimate([], [], require=["good"])
    assert refused.value.hint == "write it as `true_pass_rate >= 80%` or `coherence.true_pass_rate >= 0.8`"


@pytest.mark.parametrize(
    ("chance", "labelled", "options", "verdict"),
    [
        (0.7, 400, {}, "carries over"),
        (0.7, 300, {"margin": 0.01}, "unclear"),
        (0.7, 60, {}, "unclear"),
        (0.7, 60, {"margin": 0.2}, "carries over"),
        (0.7, 19, {"margin": 0.9}, "unclear"),
        (0.4, 60, {}, "does not"),
        (None, 60, {}, None),
    ],
)
def test_whether_the_calibration_of_the_run_carries_over(
    chance: float | None, labelled: int, options: dict[str, Any], verdict: str | None
) -> None:
    results, truth = run_of(400)
    if chance is not None:
        results = [
            replace(result, assertions=(replace(result.assertions[0], detail={"p_pass": chance}),))
            for result in results
        ]
    given = EstimateOptions(**options)
    (item,) = estimate(labels_of(truth, range(labelled)), results, options=given).metrics
    assert (None if item.carry_over is None else item.carry_over.verdict) == verdict


class TestLabelsFromElsewhere:
    labels = tuple(
        {"id": f"e{number}", "metric": "tone", "label": float(number < 200), "score": float(passed)}
        for number in range(400)
        for passed in [(number < 180) if number < 200 else number >= 340]
    )

    def test_the_rate_is_corrected_by_how_often_the_judge_errs(self) -> None:
        results = [case(number, float(number < 400)) for number in range(1000)]
        options = EstimateOptions(method="rogan-gladen", threshold=0.5)
        (item,) = estimate(self.labels, results, options=options).metrics
        assert item.pass_rate is not None
        assert item.pass_rate.value == pytest.approx(0.166667, abs=1e-6)
        assert item.pass_rate.interval == pytest.approx((0.056351, 0.262733), abs=1e-6)
        assert (item.judge_pass_rate, item.mean, item.outputs) == (0.4, None, 1000)

    def test_a_judge_that_guesses_gives_nothing(self) -> None:
        labels = [{**row, "score": float(number % 2)} for number, row in enumerate(self.labels)]
        found = estimate(
            labels,
            run_of(50)[0],
            options=EstimateOptions(method="rogan-gladen"),
            require=["true_pass_rate >= 0.1"],
        )
        (item,) = found.metrics
        assert item.pass_rate is None
        assert any("no better than chance" in note for note in item.notes)
        assert [gate.status for gate in found.gates] == [Status.ERROR]


class TestSheet:
    def test_is_a_random_draw_that_can_be_repeated(self) -> None:
        results, _ = run_of(200)
        first, again = draw_sheet(results, 50, 7), draw_sheet(results, 50, 7)
        assert first == again
        assert first != draw_sheet(results, 50, 8)
        assert len({row["id"] for row in first}) == 50
        assert all("score" not in row and row["label"] is None for row in first)

    def test_every_output_is_as_likely(self) -> None:
        results, _ = run_of(20)
        counts = dict.fromkeys((result.id for result in results), 0)
        for seed in range(600):
            for row in draw_sheet(results, 5, seed):
                counts[row["id"]] += 1
        assert all(100 < count < 200 for count in counts.values()), counts

    def test_of_few_outputs_all_are_taken_and_broken_ones_left_out(self) -> None:
        results = [case(0, 0.5), case(1, None), case(2, 1.0)]
        assert sorted(row["id"] for row in draw_sheet(results, 50, 0)) == ["0.0.0", "2.0.0"]

    def test_nothing_judged_is_said(self) -> None:
        with pytest.raises(UsageError):
            draw_sheet([case(0, None)], 5, 0)
        with pytest.raises(UsageError):
            draw_sheet([case(0, 1.0)], 5, 0, only=["style"])
        with pytest.raises(UsageError):
            draw_sheet([case(0, 1.0)], 0, 0)

    @pytest.mark.parametrize("name", ["sheet.jsonl", "sheet.csv"])
    def test_is_read_back_once_it_is_labelled(self, tmp_path: Path, name: str) -> None:
        results, truth = run_of(100)
        sheet = draw_sheet(results, 40, 7)
        write_labels(tmp_path / name, sheet)
        with pytest.raises(ConfigError) as caught:
            read_labels(tmp_path / name)
        assert caught.value.problems[0].message == "none of the 40 rows has a label yet"
        for row in sheet:
            row["label"] = 1 + 4 * truth[int(row["id"].split(".")[0])]
        write_labels(tmp_path / name, sheet)
        found = estimate(tmp_path / name, results)
        assert (found.matched, found.metrics[0].labelled) == (40, 40)
        assert not any("drawn at random" in note for note in found.metrics[0].notes)
        sheet[0]["label"] = None
        write_labels(tmp_path / name, sheet)
        (item,) = estimate(tmp_path / name, results).metrics
        assert any(note.startswith("1 drawn rows have no label yet") for note in item.notes)


class TestCommand:
    def test_from_the_sheet_to_the_figures(self, tmp_path: Path) -> None:
        store_judged_run(tmp_path)
        drawn = run_geval("estimate", "sheet.jsonl", "--draw", "3", "--seed", "7", cwd=tmp_path)
        assert (drawn.code, drawn.stderr) == (0, "")
        assert drawn.stdout.startswith("sheet.jsonl: ")
        again = run_geval("estimate", "sheet.jsonl", "--draw", "3", cwd=tmp_path)
        assert (again.code, again.stdout) == (2, "")
        assert "already exists" in again.stderr
        rows = [
            json.loads(line) for line in (tmp_path / "sheet.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        write_labels(tmp_path / "sheet.jsonl", [{**row, "label": row["scale"][1]} for row in rows])
        words = (
            "estimate",
            "sheet.jsonl",
            "--require",
            "coherence.true_pass_rate >= 1%",
            "-o",
            "e.md",
            "-o",
            "e.html",
        )
        finished = run_geval(*words, cwd=tmp_path, env=clean_environment(COLUMNS="80"))
        assert finished.code == 0, finished.stderr
        assert "% of the outputs are good" in finished.stdout
        assert "the judge alone says" in " ".join(finished.stdout.split())
        assert "pass rate" in (tmp_path / "e.md").read_text(encoding="utf-8")
        assert max(map(len, finished.stdout.splitlines())) <= 80
        failed = run_geval(
            "estimate", "sheet.jsonl", "--require", "true_pass_rate >= 99%", "--json", cwd=tmp_path
        )
        assert failed.code == 1
        document = json.loads(failed.stdout)
        found = geval_cli.extras.trust.estimate(tmp_path / "sheet.jsonl", home=tmp_path / ".geval")
        assert document["metrics"] == json.loads(json.dumps(found.to_json()))["metrics"]

    @pytest.mark.parametrize("words", [("--draw", "0"), ("--run", "nowhere"), ("-o", "x.csv")])
    def test_mistakes(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        write_labels(tmp_path / "l.jsonl", labels_of([1.0] * 3, range(3)))
        finished = run_geval("estimate", "l.jsonl", *words, cwd=tmp_path)
        assert (finished.code, finished.stdout) == (2, "")


@pytest.mark.parametrize("by", ["doc", "id"])
def test_labels_of_few_documents_say_little_about_the_error_rate(by: str) -> None:
    """The same labels, four times for each document: correcting by them is no more exact than by one of each."""
    results, _ = run_of(400)
    draw = random.Random(3)
    rows = [
        {"metric": "tone", "label": int(good), "score": float(good if draw.random() < 0.85 else not good)}
        for good in (draw.random() < 0.6 for _ in range(60))
    ]

    def estimated(times: int) -> Any:
        labels = [
            {**row, "id": f"{place}-{time}", "doc": f"document {place if by == 'doc' else f'{place}-{time}'}"}
            for place, row in enumerate(rows)
            for time in range(times)
        ]
        (item,) = estimate(labels, results, options=EstimateOptions(method="rogan-gladen")).metrics
        assert item.pass_rate is not None
        assert item.pass_rate.interval is not None
        return item.pass_rate

    one, four = estimated(1), estimated(4)
    assert (four.n, four.clusters) == (240, 60 if by == "doc" else 240)
    widths = [found.interval[1] - found.interval[0] for found in (one, four)]
    assert widths[1] == pytest.approx(widths[0], rel=0.02) if by == "doc" else widths[1] < 0.7 * widths[0]
