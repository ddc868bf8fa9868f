"""`geval agree`: what it makes of runs and of odd labels, as record, JSON, files and exit codes."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lxml import etree
from msgspec.structs import replace
from support.geval_command import clean_environment, run_geval
from support.stored_runs import store_judged_run

import geval_cli.extras.trust
from geval_cli.errors import ConfigError, OutputError, UsageError
from geval_cli.extras.trust.agreement import agree, agreement_document
from geval_cli.extras.trust.documents import deliver, write_document
from geval_cli.extras.trust.labels import write_labels
from geval_cli.extras.trust.options import AgreeCommand, AgreeOptions
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status

HOSTILE = "<script>alert(1)</script>\u202e|[x](http://y) \x1b[31m"


def rows(
    documents: int = 12, *, metric: str = "tone", people: int = 2, seed: int = 1, **changes: Any
) -> list[dict[str, Any]]:
    """Labels with scores: three outputs of each document, a judge that is right more often than not."""
    draw = np.random.default_rng(seed)
    made = []
    for number in range(documents * 3):
        truth = int(draw.integers(1, 6))
        marks = {f"p{who}": int(np.clip(truth + draw.integers(-1, 2), 1, 5)) for who in range(people)}
        score = float(np.clip(truth - 1 + draw.integers(-1, 2), 0, 4)) / 4
        row = {"id": str(number), "metric": metric, "labels": marks, "scale": [1, 5], "score": score}
        made.append(
            {**row, "doc": f"d{number // 3}", "output": "word " * int(draw.integers(1, 9)), **changes}
        )
    return made


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from numbers_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers_in(item)
    elif isinstance(value, float):
        yield value


class TestOddLabels:
    @pytest.mark.parametrize(
        ("given", "note"),
        [
            (rows(3), "no intervals: 3 independent groups of outputs; at least 10 are needed"),
            (rows(1), "no intervals: 1 independent group of outputs"),
            (rows(people=1), "one annotator"),
            (rows(people=2), "no alt-test: it needs at least 3 annotators, each with 30 outputs that others"),
            (rows(9, people=3), "no alt-test"),
            (rows(labels={"a": 3, "b": 3}), "all labels are equal, so there is no correlation"),
            (
                rows(labels={"a": 3, "b": 3}),
                "no ceiling: one annotator gave the same label to all outputs that others",
            ),
            (
                rows(score=0.5),
                "no ceiling: one annotator shares with others only outputs to which the judge gave the same",
            ),
            (
                [*rows(people=1), {**rows()[0], "id": "x"}],
                "no ceiling: one annotator shares fewer than two outputs with other annotators",
            ),
            (
                [{**row, "labels": {**row["labels"], "p0": 3}} for row in rows()],
                "no ceiling: one annotator gave the same label to all outputs",
            ),
            (
                [{**row, "labels": {**row["labels"], "p1": 3}} for row in rows()],
                "no ceiling: one annotator labelled only outputs to which the others gave the same mean label",
            ),
            (rows(score=0.5), "all scores are equal, so there is no correlation"),
            (rows(output=None), "output texts are missing"),
            ([*rows(), {**rows()[0], "id": "x", "score": None}], "the judge failed on 1 labelled output,"),
            (rows(score=None), "the judge failed on 36 labelled outputs"),
        ],
    )
    def test_are_explained_and_never_a_number_that_means_nothing(
        self, given: list[dict[str, Any]], note: str
    ) -> None:
        found = agree(given)
        assert any(text.startswith(note) for text in found.metrics[0].notes)
        document = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert all(np.isfinite(number) for number in numbers_in(document))

    def test_a_ceiling_that_is_there_needs_no_reason(self) -> None:
        for people in (1, 2, 3):
            found = agree(rows(people=people)).metrics[0]
            assert (found.people is None) == (people == 1)
            assert not any(text.startswith("no ceiling") for text in found.notes)

    def test_a_constant_side_has_no_correlation(self) -> None:
        level = agree(rows(score=0.5)).metrics[0].dataset
        assert (level.pearson.value, level.spearman.value, level.kendall.value) == (None, None, None)

    def test_errors_of_the_judge_are_left_out(self) -> None:
        given = rows()
        broken = [{**given[0], "id": f"broken {number}", "score": None} for number in range(5)]
        whole, part = agree([*given, *broken]).metrics[0], agree(given).metrics[0]
        assert (whole.n, whole.errored, part.errored) == (36, 5, 0)
        assert whole.dataset == part.dataset
        assert whole.verdicts == part.verdicts

    def test_all_good_says_that_nothing_is_shown(self) -> None:
        found = agree(rows(labels={"a": 5, "b": 4}))
        assert found.metrics[0].summary == (
            "For `tone`, people find all 36 outputs good, so nothing shows whether this judge sees bad ones."
        )

    def test_the_order_of_rows_changes_nothing(self) -> None:
        given = rows()
        first, second = agree(given).metrics[0], agree(given[::-1]).metrics[0]
        for one, other in zip(
            first.dataset.spearman.interval or (), second.dataset.spearman.interval or (), strict=True
        ):
            assert one == pytest.approx(other, abs=1e-12)


class TestClusters:
    def test_without_doc_each_item_is_its_own(self) -> None:
        found = agree(rows(doc=None))
        assert (found.clustered_by, found.metrics[0].clusters) == ("test", 36)

    def test_a_column_may_say_it(self) -> None:
        given = [{**row, "author": number % 11} for number, row in enumerate(rows())]
        found = agree(given, options=AgreeOptions(cluster="author"))
        assert (found.clustered_by, found.metrics[0].clusters) == ("author", 11)

    def test_one_that_is_missing_is_named(self) -> None:
        given = [{**row, "author": "x"} for row in rows()]
        with pytest.raises(UsageError) as caught:
            agree(given, options=AgreeOptions(cluster="autor"))
        assert "36 of 36 labels have no `autor`" in caught.value.message
        assert caught.value.hint == "did you mean `author`?"


class TestRequirements:
    @pytest.mark.parametrize(
        ("gate", "status"),
        [
            ("spearman >= 0.1", "passed"),
            ("spearman >= 0.99", "failed"),
            ("tone.kendall > -1", "passed"),
            ("tone.summary.spearman>=10%", "passed"),
            ("shift <= 0.5", "passed"),
            ("shift < -0.5", "failed"),
            ("ceiling >= 20 %", "passed"),
            ("ceiling <= 1000 %", "passed"),
            ("alpha >= 0", "passed"),
            ('"tone".spearman >= -.5', "passed"),
            ("length <= 1", "passed"),
            ("system.spearman >= 0", "error"),
        ],
    )
    def test_hold_when_the_interval_does(self, gate: str, status: str) -> None:
        (outcome,) = agree(rows(20), require=[gate]).gates
        assert (outcome.status, bool(outcome.note)) == (status, True)

    def test_look_at_the_bound_and_not_at_the_value(self) -> None:
        spearman = agree(rows(20)).metrics[0].dataset.spearman
        assert spearman.interval is not None
        assert spearman.value is not None
        between = (spearman.interval[0] + spearman.value) / 2
        (outcome,) = agree(rows(20), require=[f"spearman >= {between:.6f}"]).gates
        assert (outcome.status, outcome.bound) == (Status.FAILED, spearman.interval[0])

    def test_without_an_interval_nothing_is_decided(self) -> None:
        (outcome,) = agree(rows(4), require=["spearman >= 0"]).gates
        assert outcome.status is Status.ERROR
        assert "too few independent outputs" in outcome.note

    @pytest.mark.parametrize("statistic", ["spearman", "kendall", "kappa"])
    @pytest.mark.parametrize("score", [lambda good: good, lambda good: 1 - good], ids=["right", "wrong"])
    def test_a_figure_of_1_has_no_interval_however_many_labels_there_are(
        self, statistic: str, score: Callable[[int], int]
    ) -> None:
        made = [
            {"id": str(number), "metric": "m", "label": number % 2, "score": score(number % 2)}
            for number in range(100)
        ]
        (outcome,) = agree(made, require=[f"{statistic} >= 0.4"]).gates
        assert outcome.status is Status.ERROR
        assert "too few" not in outcome.note
        assert outcome.note.endswith("of 1 or -1, or from a single test, has no interval")

    @pytest.mark.parametrize("limit", ["kappa >= 0.2", "kappa >= 0", "kappa <= 0.1"])
    @pytest.mark.parametrize(
        ("label", "score"),
        [
            (lambda number: 1, lambda number: number % 2),
            (lambda number: number % 2, lambda number: 1),
            (lambda number: 0, lambda number: number % 2),
        ],
        ids=["all good", "all passed", "all bad"],
    )
    def test_agreement_with_one_kind_of_verdict_decides_nothing(
        self, limit: str, label: Callable[[int], int], score: Callable[[int], int]
    ) -> None:
        """Kappa is 0 whichever output is left out, which is no proof that it is 0."""
        made = [
            {"id": str(number), "metric": "m", "label": label(number), "score": score(number)}
            for number in range(100)
        ]
        found = agree(made, require=[limit])
        assert (found.metrics[0].verdicts.kappa.value, found.metrics[0].verdicts.kappa.interval) == (0, None)
        assert found.gates[0].status is Status.ERROR

    @pytest.mark.parametrize(
        ("gate", "hint"),
        [
            ("spearman", "write it as"),
            ("spearman >= high", "write it as"),
            ("spearman[lang=de] >= 0.4", "write it as"),
            ("spearman >= 0.4 vs baseline", "write it as"),
            ("spaerman >= 0.4", "did you mean `spearman`?"),
            ("tome.spearman >= 0.4", "did you mean `tone`?"),
            ("tone.other.spearman >= 0.4", "did you mean"),
            ("kappa <= 60", "write 0.6 or 60%"),
            ("shift <= 5", "write 0.05 or 5%"),
            ("shift >= -10", "write -0.1 or -10%"),
            ("length <= 400", "write it as"),
            ("spearman >= 0.4%", "write 0.4 or 40%"),
            ("kappa <= 400%", "write it as"),
            ("ceiling <= 90", "write 0.9 or 90%"),
            ("tone.summary.kappa >= 0.1", "did you mean `tone`?"),
            ("system.shift <= 0.9", "labelled"),
        ],
    )
    def test_that_are_none_are_refused(self, gate: str, hint: str) -> None:
        with pytest.raises(UsageError) as caught:
            agree(rows(), require=[gate])
        assert hint in caught.value.hint or "labelled" in caught.value.hint


@pytest.mark.parametrize(
    "options",
    [
        AgreeOptions(good=1.5),
        AgreeOptions(threshold=-1),
        AgreeOptions(annotators="experts"),
        AgreeOptions(annotators="me"),
    ],
)
def test_options_that_cannot_be(options: AgreeOptions) -> None:
    with pytest.raises(UsageError) as caught:
        agree(rows(), options=options)
    assert caught.value.hint


def test_labels_without_scores_need_a_run() -> None:
    with pytest.raises(UsageError, match="no judge scores"):
        agree([{"id": "a", "metric": "m", "label": 1}])


def case(number: int, score: float | None, *, threshold: float | None = 0.5, column: int = 0) -> CaseResult:
    status = Status.ERROR if score is None else Status.PASSED
    if score is not None and threshold is not None and score < threshold:
        status = Status.FAILED
    judged = AssertionResult(
        "g-eval",
        "tone",
        status,
        score,
        threshold=threshold,
        detail={"judge": "openai:gpt-4.1"},
    )
    return CaseResult(
        id=f"{number}.0.{column}",
        test_index=number,
        repeat_index=0,
        column=column,
        description=None,
        prompt=RenderedPrompt("p", f"prompt {column}", "Say it."),
        provider=ProviderRef("echo", "echo"),
        vars={},
        output="a word " * number,
        status=Status.PASSED,
        score=score,
        named_scores={} if score is None else {"tone": score},
        assertions=(judged,),
        metadata={"area": f"area {number % 10}"},
    )


class TestRuns:
    labels = tuple({"id": f"{number}.0.0", "metric": "tone", "label": number % 3 / 2} for number in range(30))

    def test_results_give_scores_judge_threshold_and_clusters(self) -> None:
        results = [case(number, None if number == 4 else (number % 3) / 2) for number in range(30)]
        found = agree(self.labels, results)
        (item,) = found.metrics
        assert (found.judges, found.clustered_by, item.judge) == (
            ("openai:gpt-4.1",),
            "test",
            "openai:gpt-4.1",
        )
        assert (item.n, item.errored, item.clusters, item.verdicts.threshold) == (29, 1, 29, 0.5)
        assert item.dataset.spearman.value == 1.0
        assert item.points[0].words == 0
        by_area = agree(self.labels, results, options=AgreeOptions(cluster="area"))
        assert by_area.metrics[0].clusters == 10

    def test_verdicts_of_several_thresholds_are_told_as_those_of_the_run(self, tmp_path: Path) -> None:
        results = [case(number, number % 4 / 4, threshold=0.3 + number / 100) for number in range(30)]
        found = agree(self.labels, results, options=AgreeOptions(good=0.6))
        (item,) = found.metrics
        passed = [number % 4 / 4 >= 0.3 + number / 100 for number in range(30)]
        good = [number % 3 / 2 >= 0.6 for number in range(30)]
        pairs = list(zip(passed, good, strict=True))
        counts = item.verdicts.counts
        assert (counts.true_pass, counts.false_pass) == (
            pairs.count((True, True)),
            pairs.count((True, False)),
        )
        assert item.verdicts.threshold is None
        write_document(tmp_path / "found.md", agreement_document(found))
        text = (tmp_path / "found.md").read_text(encoding="utf-8")
        assert f"| as run | {counts.true_pass} | {counts.false_pass} |" in text
        write_document(tmp_path / "found.html", agreement_document(found))
        page = (tmp_path / "found.html").read_text(encoding="utf-8")
        right = counts.true_pass + counts.true_fail
        assert f"The judge is right about {right} of 30 outputs." in page
        assert "the judge passes from" not in page
        chosen = agree(self.labels, results, options=AgreeOptions(threshold=0.3)).metrics[0].verdicts
        assert chosen.threshold == 0.3

    def test_a_judge_that_broke_on_everything_is_not_called_scores_of_the_file(self) -> None:
        found = replace(
            agree(self.labels, [case(number, None) for number in range(30)]), run="20261127-000000-aaaa"
        )
        about = agreement_document(found).about
        assert about is not None
        assert about(str).startswith("Judge: unknown. Run 20261127-000000-aaaa")

    def test_unmatched_labels(self) -> None:
        results = [case(number, 0.5) for number in range(20)]
        with pytest.raises(ConfigError):
            agree(self.labels, results)
        found = agree(self.labels, results, allow_unmatched=True)
        assert (found.matched, found.unmatched) == (20, 10)

    def test_columns_of_a_run_are_systems(self) -> None:
        results = [
            case(number, (number + column) % 3 / 2, column=column)
            for number in range(12)
            for column in range(3)
        ]
        labels = [
            {"id": f"{number}.0.{column}", "metric": "tone", "label": (number * column) % 3 / 2}
            for number in range(12)
            for column in range(3)
        ]
        (item,) = agree(labels, results).metrics
        assert item.system is not None
        assert item.document_level is not None
        assert (item.system.systems, item.documents, item.clusters) == (3, 12, 12)


class TestCommand:
    def test_a_stored_run(self, tmp_path: Path) -> None:
        store_judged_run(tmp_path)
        labels = [
            {"id": f"{test}.0.{column}", "metric": "coherence", "label": 5 - column, "scale": [1, 5]}
            for test in range(2)
            for column in range(2)
        ]
        write_labels(tmp_path / "labels.csv", labels)
        finished = run_geval("agree", "labels.csv", "--json", cwd=tmp_path)
        assert (finished.code, finished.stderr) == (0, "")
        document = json.loads(finished.stdout)
        assert (document["schema_version"], document["kind"], document["matched"]) == (1, "agree", 4)
        assert document["metrics"][0]["levels"]["dataset"]["spearman"]["n"] == 4
        found = geval_cli.extras.trust.agree(tmp_path / "labels.csv", "latest", home=tmp_path / ".geval")
        assert document == {**found.to_json(), "labels": "labels.csv", "run": document["run"]}
        labels.append({"id": "1.0.7", "metric": "coherence", "label": 5, "scale": [1, 5]})
        write_labels(tmp_path / "labels.csv", labels)
        refused = run_geval("agree", "labels.csv", "--run", "latest", cwd=tmp_path)
        assert refused.code == 2
        assert "labels.csv:6:1" in refused.stderr
        assert "this run has no output `1.0.7`" in refused.stderr
        assert run_geval("agree", "labels.csv", "--allow-unmatched", cwd=tmp_path).code == 0
        assert run_geval("agree", "labels.csv", "--run", "nowhere", cwd=tmp_path).code == 2

    @pytest.mark.parametrize(
        ("documents", "gate", "code"),
        [
            (20, "spearman >= 0.1", 0),
            (20, "spearman >= 0.99", 1),
            (20, "spaerman >= 0", 2),
            (4, "spearman >= 0", 3),
        ],
    )
    def test_exit_codes(self, tmp_path: Path, documents: int, gate: str, code: int) -> None:
        write_labels(tmp_path / "labels.jsonl", rows(documents))
        assert run_geval("agree", "labels.jsonl", "--require", gate, cwd=tmp_path).code == code

    def test_a_file_that_cannot_be_written_keeps_back_nothing_else(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What `geval drift` and `geval probe` find has been paid for when the disk is full."""
        document = agreement_document(agree(rows()))
        paths = (
            tmp_path / "gone" / "a.html",
            tmp_path / "b.json",
            tmp_path / "gone" / "c.md",
            tmp_path / "d.md",
        )
        with pytest.raises(OutputError, match=r"a\.html"):
            deliver(document, AgreeCommand(outputs=paths))
        assert [path.exists() for path in paths] == [False, True, False, True]
        assert "the judge passes" in capsys.readouterr().out

    def test_hostile_names_are_text_everywhere(self, tmp_path: Path) -> None:
        given = [{**row, "labels": {HOSTILE: 3, "b": row["labels"]["p1"]}} for row in rows(metric=HOSTILE)]
        write_labels(tmp_path / "labels.jsonl", given)
        outputs = [word for name in ("a.html", "a.md", "a.json") for word in ("-o", name)]
        finished = run_geval(
            "agree", "labels.jsonl", *outputs, cwd=tmp_path, env=clean_environment(COLUMNS="80")
        )
        assert finished.code == 0
        assert "\x1b" not in finished.stdout
        assert "\u202e" not in finished.stdout
        page = (tmp_path / "a.html").read_text(encoding="utf-8")
        assert "<script" not in page
        assert "\u202e" not in page
        assert len(etree.HTML(page).findall(".//svg")) == 3
        for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
            etree.fromstring(drawing)
        markdown = (tmp_path / "a.md").read_text(encoding="utf-8")
        outside = re.sub(r"`[^`]*`", "", markdown)
        assert "script" in markdown
        assert not re.search(r"script|http|\u202e|\x1b", outside)
        assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["kind"] == "agree"

    @pytest.mark.parametrize("columns", ["80", "100", "200"])
    def test_lines_fit(self, tmp_path: Path, columns: str) -> None:
        write_labels(tmp_path / "labels.jsonl", rows(12, people=3) + rows(12, metric="a " * 30, people=3))
        finished = run_geval("agree", "labels.jsonl", cwd=tmp_path, env=clean_environment(COLUMNS=columns))
        assert max(map(len, finished.stdout.splitlines())) <= int(columns)
        assert "alt-test" in finished.stdout
        assert not re.search("[0-9.+%/-]\u2026", finished.stdout)  # a long name may be cut off, and no number

    @pytest.mark.parametrize("name", ["agreement.txt", "nowhere/agreement.json", "."])
    def test_files_that_cannot_be_written_are_refused_first(self, tmp_path: Path, name: str) -> None:
        write_labels(tmp_path / "labels.jsonl", rows())
        finished = run_geval("agree", "labels.jsonl", "-o", name, cwd=tmp_path)
        assert (finished.code, finished.stdout) == (2, "")


class TestTheExtra:
    def test_what_is_missing_is_named_with_how_to_get_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            geval_cli.extras.trust, "find_spec", lambda name: None if name == "scipy" else object()
        )
        with pytest.raises(UsageError) as caught:
            geval_cli.extras.trust.require_statistics("geval agree")
        assert caught.value.message == "geval agree needs the package scipy"
        assert 'pip install ".[trust]"' in caught.value.hint

    def test_labels_are_read_without_it(self) -> None:
        modules = "geval_cli.extras.trust.matching, geval_cli.cli.app"
        source = f"import sys, {modules}; sys.exit('numpy' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0

    def test_public_names(self) -> None:
        assert all(hasattr(geval_cli.extras.trust, name) for name in geval_cli.extras.trust.__all__)
        with pytest.raises(AttributeError):
            geval_cli.extras.trust.nothing  # noqa: B018


def test_many_documents_may_have_any_name() -> None:
    """With more documents than are left out one by one, names are hashed; JSON may have half of a surrogate pair."""
    made = [
        {
            "id": str(number),
            "metric": "m",
            "label": number % 2,
            "score": number % 5 / 4,
            "doc": f"\ud800 {number}",
        }
        for number in range(250)
    ]
    assert agree(made).metrics[0].clusters == 250
