"""`geval compare --labels`: the difference of two runs corrected by labels, of published data and of odd labels."""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.geval_command import clean_environment, run_geval
from support.judged_data import lines_of, summaries
from support.sample_run import RUN, console_of
from support.stored_runs import store_run, write_config

from geval_cli.errors import ConfigError, UsageError
from geval_cli.extras import trust
from geval_cli.extras.trust.labels import write_labels
from geval_cli.extras.trust.options import CorrectOptions
from geval_cli.extras.trust.statistics.estimate import CarriesOver
from geval_cli.extras.trust.true_differences import (
    CorrectedComparison,
    CorrectedRow,
    Design,
    SignAgreement,
    compare,
)
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ProviderRef,
    RenderedPrompt,
    RunSummary,
    Status,
)
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import output_digest
from geval_cli.statistics.paired import DifferenceVerdict, Margins

TOLERANCE = 1e-6
Row = dict[str, Any]


def case(
    test: str | int, output: str, scores: Mapping[str, float | None], column: int = 0, number: int = 0
) -> CaseResult:
    judged = tuple(
        AssertionResult("g-eval", metric, Status.ERROR if score is None else Status.PASSED, score, 0.5)
        for metric, score in scores.items()
    )
    found = {metric: score for metric, score in scores.items() if score is not None}
    return CaseResult(
        id=f"{number}.0.{column}",
        test_index=number,
        repeat_index=0,
        column=column,
        description=None,
        prompt=RenderedPrompt("p", "p", "Say it."),
        provider=ProviderRef("m", "m"),
        vars={"x": test},
        output=output,
        status=Status.PASSED if found else Status.ERROR,
        score=None,
        named_scores=found,
        assertions=judged,
        metadata={"half": "even" if number % 2 == 0 else "odd"},
        test_key=f"key {test}",
    )


def run(
    name: str, cases: Iterable[CaseResult], columns: Sequence[Column] = (Column(0, "p", "m"),)
) -> RunReport:
    results = list(cases)
    return RunReport(replace(RUN, id=name, columns=tuple(columns)), RunSummary(), lambda: iter(results))


def two_runs(
    count: int = 60, *, metric: str = "tone", equal: int = 0, text: str = "output"
) -> tuple[RunReport, RunReport]:
    """Runs whose judge scores the later one a quarter higher, on texts of which the first `equal` are the same."""
    before = [case(n, f"{text} {n} of A", {metric: 0.25 * (n % 4)}, number=n) for n in range(count)]
    after = [
        case(
            n,
            f"{text} {n} of {'A' if n < equal else 'B'}",
            {metric: min(1.0, 0.25 * (n % 4) + 0.25)},
            number=n,
        )
        for n in range(count)
    ]
    return run("20260101-000000-aaaa", before), run("20260101-000000-bbbb", after)


def label(report: RunReport, number: int, value: float | None, **more: Any) -> Row:
    return {"id": f"{number}.0.0", "metric": "tone", "label": value, "run_id": report.run.id, **more}


def both(runs: tuple[RunReport, RunReport], numbers: Iterable[int], moved: float = 0.0) -> list[Row]:
    """Labels of both outputs; people see the later one `moved` by so much, and every third one not at all."""
    rows = []
    for number in numbers:
        rows.append(label(runs[0], number, 0.5))
        rows.append(label(runs[1], number, 0.5 + (moved if number % 3 else 0.0)))
    return rows


def only_row(found: CorrectedComparison) -> CorrectedRow:
    [row] = found.rows
    return row


def marked(a: str, b: str, metric: str, first: int) -> tuple[list[Row], RunReport, RunReport]:
    """Two systems of SummEval on the documents that the judge scored of both, and human labels of the first ones."""
    rows = [row for row in summaries() if row["metric"] == metric and row["system"] in (a, b)]
    scored = {(row["doc"], row["system"]): row for row in rows if row["score"] is not None}
    documents = [
        doc for doc in dict.fromkeys(row["doc"] for row in rows) if {(doc, a), (doc, b)} <= scored.keys()
    ]
    reports = [
        run(
            system,
            (
                case(doc, scored[doc, system]["output"], {metric: scored[doc, system]["score"]}, number=n)
                for n, doc in enumerate(documents)
            ),
        )
        for system in (a, b)
    ]
    labels = [
        {
            "vars": {"x": doc},
            "metric": metric,
            "labels": scored[doc, system]["labels"],
            "scale": [1, 5],
            "output": scored[doc, system]["output"],
        }
        for doc in documents[:first]
        for system in (a, b)
    ]
    return labels, reports[0], reports[1]


@pytest.mark.parametrize(
    ("metric", "a", "b", "first", "of", "expected"),
    [
        ("fluency", "M11", "M20", 30, 100, (0.113530, 0.073088, -0.035951, 0.263011, 0.172589, 0.131187)),
        ("coherence", "M8", "M22", 30, 100, (0.237416, 0.048706, 0.137800, 0.337032, 0.394138, 0.000036)),
        ("relevance", "M11", "M20", 30, 100, (0.083253, 0.037678, 0.006192, 0.160314, 0.156454, 0.035186)),
        ("consistency", "M11", "M17", 30, 99, (0.437493, 0.061668, 0.311368, 0.563618, 0.443058, 0.0)),
        ("coherence", "M11", "M23", 40, 100, (0.488980, 0.035354, 0.417469, 0.560491, 0.100931, 0.0)),
    ],
)
def test_published_data_of_the_same_tests(
    metric: str, a: str, b: str, first: int, of: int, expected: tuple[float, ...]
) -> None:
    row = only_row(compare(*marked(a, b, metric, first)))
    assert (row.design, row.tests, row.pairs) == (Design.SAME_TESTS, (first, first), of)
    assert row.corrected.interval is not None
    found = (row.corrected.value, row.se, *row.corrected.interval, row.weights[0], row.p)
    assert found == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("system", "expected", "judge"),
    [
        ("clone", (0.370854, 0.420746, 0.016503, 0.029153, -0.0421, 0.0751), 0.0078),
        ("unhelpful", (0.370854, 0.798355, -0.635774, 0.024338, -0.6847, -0.5869), -0.5959),
    ],
)
def test_published_data_of_different_tests(system: str, expected: tuple[float, ...], judge: float) -> None:
    rows = list(lines_of("arena_scores.jsonl"))
    a, b = (
        run(
            name,
            (
                case(row["id"], f"{row['id']} {name}", {"good": row["judge"][name]}, number=n)
                for n, row in enumerate(rows)
            ),
        )
        for name in ("base", system)
    )
    labels = [
        {"id": f"{n}.0.0", "metric": "good", "label": row["label"][name], "run_id": name}
        for n, row in enumerate(rows)
        for name in ("base", system)
        if name in row["label"]
    ]
    row = only_row(compare(labels, a, b))
    assert (row.design, row.labelled) == (Design.DIFFERENT_TESTS, (480, 50))
    assert row.corrected.interval is not None
    found = (*row.weights, row.corrected.value, row.se)
    assert found == pytest.approx(expected[:4], abs=TOLERANCE)
    assert row.corrected.interval == pytest.approx(expected[4:], abs=1e-4)
    assert row.judge.value == pytest.approx(judge, abs=TOLERANCE)


def test_a_judge_that_flatters_is_contradicted() -> None:
    found = compare(*marked("M11", "M20", "relevance", 30))
    row = only_row(found)
    assert (row.verdict, row.signs) == (DifferenceVerdict.BETTER, SignAgreement.OTHER)
    assert found.to_markdown().splitlines()[2] == (
        "relevance: the judge shows -0.11, but human labels on 30 tests put it at +0.08 (95 % CI +0.01 to +0.16)"
    )


SAID = "the judge shows +0.25"


@pytest.mark.parametrize(
    ("count", "moved", "said"),
    [
        (1, 0.5, f"{SAID}; human labels on 1 test cannot correct it: at least 15 labelled tests are needed"),
        (2, 0.5, f"{SAID}; human labels on 2 tests cannot correct it: at least 15 labelled tests are needed"),
        (
            14,
            0.5,
            f"{SAID}; human labels on 14 tests cannot correct it: at least 15 labelled tests are needed",
        ),
        (15, 0.5, f"{SAID}, and human labels on 15 tests confirm it: +0.33 (95 % CI +0.20 to +0.47)"),
        (20, -0.5, f"{SAID}, but human labels on 20 tests put it at -0.33 (95 % CI -0.44 to -0.21)"),
        (15, 0.03, f"{SAID}, and human labels on 15 tests confirm it: +0.02 (95 % CI +0.01 to +0.03)"),
        (
            30,
            0.0,
            f"{SAID}; human labels on 30 tests cannot correct it: they are all equal, which says nothing "
            "about the other tests",
        ),
    ],
)
def test_what_is_said_of_few_labels(count: int, moved: float, said: str) -> None:
    runs = two_runs()
    found = compare(both(runs, range(count), moved), *runs)
    assert found.to_markdown().splitlines()[2] == f"tone: {said}"
    row = only_row(found)
    assert (row.corrected.interval is None) == (row.p is None) == bool(row.why)


@pytest.mark.parametrize(
    ("margin", "verdict", "said"),
    [
        (None, DifferenceVerdict.BETTER, "confirm it: +0.10 (95 % CI +0.07 to +0.13)"),
        (0.05, DifferenceVerdict.BETTER, "confirm it: +0.10 (95 % CI +0.07 to +0.13)"),
        (0.09, DifferenceVerdict.UNDECIDED, "which shows no difference"),
        (0.2, DifferenceVerdict.EQUIVALENT, "less than 0.2 either way"),
    ],
)
def test_a_margin_says_which_differences_matter(
    margin: float | None, verdict: DifferenceVerdict, said: str
) -> None:
    runs = two_runs()
    options = CorrectOptions(margins=Margins(margin))
    found = compare(both(runs, range(30), 0.15), *runs, options=options)
    assert only_row(found).verdict is verdict
    assert said in found.to_markdown().splitlines()[2]


def test_labels_of_one_run_alone_compare_nothing() -> None:
    runs = two_runs()
    with pytest.raises(UsageError, match="cannot be compared"):
        compare([label(runs[0], number, 1) for number in range(20)], *runs)


@pytest.mark.parametrize(
    ("both_of", "only_a", "only_b", "design", "labelled", "alone"),
    [
        (20, 19, 0, Design.SAME_TESTS, (20, 20), 19),
        (20, 19, 4, Design.DIFFERENT_TESTS, (39, 24), 0),
        (0, 20, 20, Design.DIFFERENT_TESTS, (20, 20), 0),
        (14, 3, 3, Design.DIFFERENT_TESTS, (17, 17), 0),
        (14, 3, 0, Design.SAME_TESTS, (14, 14), 3),
    ],
)
def test_most_labelled_tests_decide_which_labels_count(
    both_of: int, only_a: int, only_b: int, design: Design, labelled: tuple[int, int], alone: int
) -> None:
    runs = two_runs()
    rows = both(runs, range(both_of), 0.5)
    rows += [label(runs[0], 20 + number, number % 2) for number in range(only_a)]
    rows += [label(runs[1], 40 + number, number % 2) for number in range(only_b)]
    found = compare([*rows, label(runs[0], 0, 1, metric="style")], *runs, allow_unmatched=True)
    row = only_row(found)
    assert (row.design, row.labelled, row.alone, row.unused) == (design, labelled, alone, 0)
    assert (row.corrected.interval is not None) == (min(labelled) >= 15)
    assert any(note.startswith(f"not used: {alone} label") for note in found.notes) == bool(alone)
    assert "not compared: 1 labelled metric without labels in both runs" in found.notes


def test_a_label_of_a_text_serves_both_runs_that_have_it() -> None:
    """Only one of the two outputs was read, and the other is the same."""
    runs = two_runs(equal=20)
    rows = [
        label(runs[number % 2], number, 0.5, output_sha256=output_digest(f"output {number} of A"))
        for number in range(20)
    ]
    rows += both(runs, range(20, 30), 0.5)
    row = only_row(compare(rows, *runs))
    assert (row.design, row.tests, row.equal) == (Design.SAME_TESTS, (30, 30), 20)
    # Two ratings of one text differ; the texts do not.
    twice = [
        label(report, 0, mark, output_sha256=output_digest("output 0 of A"))
        for report, mark in zip(runs, (0, 1), strict=True)
    ]
    again = only_row(compare([*twice, *rows[1:]], *runs))
    assert again.corrected.value == pytest.approx(row.corrected.value)


def test_several_raters_are_one_mean_and_who_rated_what_is_said() -> None:
    runs = two_runs()
    anna = [{**row, "annotator": "anna"} for row in both(runs, range(20), 0.5)]
    ben = [{**row, "annotator": "ben", "label": row["label"] / 2} for row in anna]
    found = compare([*anna, *ben], *runs)
    assert "an error that all 2 annotators would make again is not in the interval" in found.notes
    row = only_row(found)
    assert row.labelled == (20, 20)
    assert row.corrected.value == pytest.approx(0.75 * only_row(compare(anna, *runs)).corrected.value)
    apart = [
        {**label(runs[place], n, 0.5 + n / 100), "annotator": "ab"[place]}
        for n in range(40)
        for place in (n // 20,)
    ]
    assert any("labelled by different people" in note for note in compare(apart, *runs).notes)


@pytest.mark.parametrize(
    ("row", "message", "hint"),
    [
        ({"id": "99.0.0", "label": 1}, "neither run has an output `99.0.0`", ""),
        (
            {"id": "3.0.0", "label": 1},
            "this label does not say which run's output was read",
            "run_id",
        ),
        ({"id": "3.0.0", "label": 1, "metric": "tune"}, "no judge of either run scores `tune`", "tone"),
        ({"id": "3.0.0", "label": 7}, "the label 7 is not on the scale from 0 to 1", "scale"),
        (
            {"id": "3.0.0", "label": 1, "output": "a third text"},
            "this label was made for another output",
            "these runs' outputs",
        ),
        (
            {"id": "0.0.0", "label": 1, "run_id": "20260101-000000-aaaa"},
            "the label of `tone` for this item is already above",
            "",
        ),
        (
            {"id": "0.0.0", "label": 1, "run_id": "20260101-000000-aaaa", "output": "output 0 of A"},
            "there is a label of `tone` of this output already",
            "keep one",
        ),
    ],
)
def test_odd_labels_are_problems(row: Row, message: str, hint: str) -> None:
    runs = two_runs()
    with pytest.raises(ConfigError) as caught:
        compare([*both(runs, range(20)), {"metric": "tone", **row}], *runs)
    problem = caught.value.problems[0]
    assert problem.message == message
    assert hint in (problem.hint or "")


def test_labels_of_neither_run_can_be_left_out() -> None:
    runs = two_runs()
    rows = [*both(runs, range(20), 0.5), {"id": "99.0.0", "metric": "tone", "label": 1}]
    found = compare(rows, *runs, allow_unmatched=True)
    assert (found.unmatched, found.matched) == (1, 40)
    assert "not used: 1 label without an output in either run" in found.notes


def test_what_the_judge_could_not_score_and_what_has_no_partner_is_counted() -> None:
    a, b = two_runs()
    cases = [case(n, f"output {n} of B", {"tone": None if n == 3 else 0.5}, number=n) for n in range(50)]
    found = compare(both((a, b), range(60), 0.5)[:110], a, run(b.run.id, cases), allow_unmatched=True)
    row = only_row(found)
    assert (row.pairs, row.errored, row.unused) == (49, 1, 7)
    assert "left out: 1 pair that the judge did not score in both runs" in found.notes


def test_rows_of_several_metrics_and_columns_are_adjusted_together() -> None:
    columns = Column(0, "p", "m"), Column(1, "q", "m")
    scores = {"tone": 0.5, "style": 0.25}
    a, b = (
        run(
            name,
            (case(n, f"{n} {name} {place}", scores, place, n) for n in range(40) for place in (0, 1)),
            columns,
        )
        for name in ("a", "b")
    )
    rows = [
        {
            "id": f"{n}.0.{place}",
            "metric": metric,
            "label": (n * (place + 2) + n // 3 * (name == "b")) % 5 / 4,
            "run_id": name,
            "n": name,
        }
        for name in ("a", "b")
        for metric in scores
        for place in (0, 1)
        for n in range(20)
    ]
    found = compare(rows, a, b)
    assert [(row.column, row.metric) for row in found.rows] == [
        (f"{prompt} \u00d7 m", metric) for prompt in "pq" for metric in scores
    ]
    assert all(
        row.p is not None and row.p_adjusted is not None and row.p_adjusted >= row.p for row in found.rows
    )
    assert "p is adjusted for 4 rows (Holm)" in found.notes
    text = found.to_markdown()
    assert "## The correction by A's labels on B" in text
    assert re.search(r"\| `q . m` \| style \| .*, same tests \| 0\.00 \| ", text)
    for width in (60, 80, 200):
        stream = io.StringIO()
        found.print(console_of(stream, width, TERM="dumb"))
        shown = stream.getvalue()
        assert max(map(len, shown.splitlines())) <= width
        assert shown.count(" style ") == 4  # in two columns, of figures and of the correction
    halves = compare(rows, a, b, options=CorrectOptions(cluster="half"))
    assert {row.tests for row in halves.rows} == {(2, 2)}
    with pytest.raises(UsageError, match="no test has the metadata `team`"):
        compare(rows, a, b, options=CorrectOptions(cluster="team"))


@pytest.mark.parametrize(
    ("shift", "count", "verdict"),
    [
        (0.0, 60, CarriesOver.YES),
        (0.0, 19, CarriesOver.UNCLEAR),
        (0.05, 60, CarriesOver.UNCLEAR),
        (0.3, 60, CarriesOver.NO),
    ],
)
def test_whether_the_correction_carries_over(shift: float, count: int, verdict: CarriesOver) -> None:
    """People follow the judge in both runs, but for noise; in the later one they are `shift` away."""
    a, b = two_runs(200)
    rows = []
    for n in range(100):
        rows.append(label(a, n, 0.3 + 0.1 * (n % 4) + 0.04 * ((n // 4) % 3 - 1)))
    for n in range(100, 100 + count):
        rows.append(label(b, n, min(0.3 + 0.1 * min(n % 4 + 1, 3) + shift + 0.04 * ((n // 4) % 3 - 1), 1)))
    row = only_row(compare(rows, a, b))
    assert row.carry_over is not None
    assert row.carry_over.verdict is verdict
    assert row.carry_over.residual.value == pytest.approx(shift, abs=0.01)


def test_command_says_the_sentence_first_and_keeps_the_comparison(tmp_path: Path) -> None:
    """The judge likes long answers: the later run's are longer, and people find them no better."""
    test = {
        "assert": [{"type": "javascript", "metric": "helpful", "value": "Math.min(output.length / 40, 1)"}]
    }
    tests = [{"vars": {"x": f"answer {n:02}"}} for n in range(24)]
    ids = [
        store_run(write_config(tmp_path, f"{name}.json", tests, prompts=[prompt], defaultTest=test))
        for name, prompt in (("a", "{{ x }}"), ("b", "{{ x }}, as said above, in other words"))
    ]
    rows = [
        {
            "id": f"{n}.0.0",
            "metric": "helpful",
            "label": (n % 4 + (place and n % 3 == 0)) / 5,
            "run_id": run_id,
        }
        for n in range(16)
        for place, run_id in enumerate(ids)
    ]
    write_labels(tmp_path / "sheet.jsonl", rows)
    words = ("compare", *ids, "--labels", "sheet.jsonl", "-o", "c.json", "-o", "c.md")
    done = run_geval(*words, cwd=tmp_path, env=clean_environment(COLUMNS="80"))
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("helpful: the judge shows +0.78, ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "24 tests paired" in done.stdout
    found = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert found["kind"] == "compare"
    by_hand = trust.compare(tmp_path / "sheet.jsonl", *ids, home=tmp_path / ".geval")
    assert found["corrected"]["rows"] == json.loads(json.dumps(by_hand.to_json(), allow_nan=False))["rows"]
    text = (tmp_path / "c.md").read_text(encoding="utf-8")
    assert text.startswith("# Two runs, corrected by human labels\n\nhelpful: the judge shows")
    assert "## The judge alone" in text


class TestDrawnPairs:
    def test_are_both_outputs_of_the_same_tests_in_an_order_that_tells_nothing(self) -> None:
        a, b = two_runs(200)
        rows = trust.draw_pairs(a, b, 60, seed=7)
        assert rows == trust.draw_pairs(a, b, 60, seed=7)
        assert len({row["id"] for row in rows}) == 60
        assert [row["id"] for row in rows[::2]] == [row["id"] for row in rows[1::2]]
        first = sum(row["output"].endswith("A") for row in rows[::2])
        assert 15 < first < 45
        assert not {"run_id", "prompt", "provider", "score"} & {key for row in rows for key in row}
        smaller = trust.draw_pairs(a, b, 20, seed=7)
        assert {row["id"] for row in smaller} <= {row["id"] for row in rows}

    def test_every_test_is_as_likely(self) -> None:
        a, b = two_runs(20)
        counts = dict.fromkeys(range(20), 0)
        for seed in range(600):
            for number in {int(row["id"].split(".")[0]) for row in trust.draw_pairs(a, b, 5, seed)}:
                counts[number] += 1
        assert all(100 < count < 200 for count in counts.values()), counts

    @pytest.mark.parametrize("name", ["sheet.jsonl", "sheet.csv"])
    def test_are_read_back_once_they_are_labelled(self, tmp_path: Path, name: str) -> None:
        a, b = two_runs(60, equal=10)
        sheet = trust.draw_pairs(a, b, 30, seed=7)
        equal = sum(int(row["id"].split(".")[0]) < 10 for row in sheet)
        assert len(sheet) == 60 - equal
        for row in sheet:
            row["label"] = 0.6 if row["output"].endswith("B") and int(row["id"].split(".")[0]) % 2 else 0.4
        write_labels(tmp_path / name, sheet)
        found = compare(tmp_path / name, a, b)
        row = only_row(found)
        assert (row.tests, row.equal, row.unused) == ((30, 30), equal, 0)
        assert not any("drawn" in note for note in found.notes)
        sheet[-1]["label"] = None
        write_labels(tmp_path / name, sheet)
        assert any("1 drawn rows have no label yet" in note for note in compare(tmp_path / name, a, b).notes)

    def test_only_what_both_runs_have_is_drawn(self) -> None:
        a, _ = two_runs(10)
        b = run(
            "b",
            [
                case(n, f"{n} of B", {"tone": 0.5 if n > 2 else None, "style": 1.0}, number=n)
                for n in range(6)
            ],
        )
        assert {row["id"] for row in trust.draw_pairs(a, b, 50)} == {"3.0.0", "4.0.0", "5.0.0"}
        with pytest.raises(UsageError):
            trust.draw_pairs(a, b, 5, only=["style"])
        with pytest.raises(UsageError):
            trust.draw_pairs(a, run("c", [case("another", "x", {"tone": 1.0}, number=0)]), 5)


def test_command_draws_pairs_and_reads_what_is_kept_for_the_runs(tmp_path: Path) -> None:
    test = {
        "assert": [{"type": "javascript", "metric": "helpful", "value": "Math.min(output.length / 40, 1)"}]
    }
    tests = [{"vars": {"x": f"answer {n:02}"}} for n in range(20)]
    ids = [
        store_run(write_config(tmp_path, f"{name}.json", tests, prompts=[prompt], defaultTest=test))
        for name, prompt in (("a", "{{ x }}"), ("b", "{{ x }}, as said above"))
    ]
    words = ("estimate", "sheet.jsonl", "--draw", "15", "--of", "latest~1,latest")
    done = run_geval(*words, cwd=tmp_path)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.startswith("sheet.jsonl: 30 rows to label, 30 outputs of both runs on 15 tests")
    assert "geval compare <ID> <ID> --labels sheet.jsonl" in done.stdout
    rows = [json.loads(line) for line in (tmp_path / "sheet.jsonl").read_text(encoding="utf-8").splitlines()]
    write_labels(tmp_path / "sheet.jsonl", [{**row, "label": len(row["output"]) % 7 / 7} for row in rows])
    compared = ("compare", *ids, "--json", "--labels")
    by_sheet = run_geval(*compared, "sheet.jsonl", cwd=tmp_path)
    missing = run_geval(*compared, "kept", cwd=tmp_path)
    assert (missing.code, "no labels are kept for run" in missing.stderr) == (2, True)
    taken = run_geval("label", ",".join(ids), "--import", "sheet.jsonl", cwd=tmp_path)
    assert taken.stdout == "kept 30 labels for run <ID>, <ID>\n"
    by_store = run_geval(*compared, "kept", cwd=tmp_path)
    found, kept = (json.loads(done.stdout)["corrected"] for done in (by_sheet, by_store))
    assert (found["rows"], found["matched"]) == (kept["rows"], 30)
    for wrong in (("--of", "latest"), ("--of", "latest~1,latest,latest"), ("--of", "latest,nowhere")):
        assert run_geval("estimate", "x.jsonl", "--draw", "3", *wrong, cwd=tmp_path).code == 2
