"""Labels and the outputs that they are about."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.stored_runs import store_judged_run

from geval_cli.errors import ConfigError
from geval_cli.extras.trust.agreement import agree
from geval_cli.extras.trust.calibration import calibrate
from geval_cli.extras.trust.estimation import estimate
from geval_cli.extras.trust.labels import Label, labels_from_rows, read_labels, write_labels
from geval_cli.extras.trust.matching import Matching, by_output, judged_items, match_labels
from geval_cli.records import AssertionResult, CaseResult, ProviderRef, RenderedPrompt, Status
from geval_cli.report.sanitize import output_digest
from geval_cli.store.state import open_runs


def result(test: int, column: int = 0, repeat: int = 0, **changes: object) -> CaseResult:
    given: dict[str, object] = {
        "id": f"{test}.{repeat}.{column}",
        "test_index": test,
        "repeat_index": repeat,
        "column": column,
        "description": f"test {test}",
        "prompt": RenderedPrompt(f"p{column}", f"prompt {column}", "Say it."),
        "provider": ProviderRef("echo", "Echo"),
        "vars": {"n": test, "who": "Ada"},
        "output": f"output {test} {column} {repeat}",
        "status": Status.PASSED,
        "score": 0.5,
        "named_scores": {"tone": test / 10},
        "metadata": {"id": f"item-{test}"},
    }
    return CaseResult(**{**given, **changes})  # type: ignore[arg-type]


def results() -> Iterator[CaseResult]:
    yield from (result(test, column) for test in range(3) for column in range(2))
    broken = AssertionResult("g-eval", "tone", Status.ERROR, None)
    yield result(3, named_scores={"tone": 0.4}, assertions=(broken,))
    yield result(4, named_scores={}, metadata={})


def labels_of(folder: Path, *rows: dict[str, object]) -> tuple[Label, ...]:
    write_labels(folder / "labels.jsonl", [{"metric": "tone", "label": 1, **row} for row in rows])
    return read_labels(folder / "labels.jsonl").labels


def match(folder: Path, *rows: dict[str, object], allow_unmatched: bool = False) -> Matching:
    labels = labels_of(folder, *rows)
    return match_labels(labels, judged_items(results()), run_id="this", allow_unmatched=allow_unmatched)


SECOND = output_digest("output 1 1 0")


@pytest.mark.parametrize(
    ("row", "id_"),
    [
        ({"id": "1.0.1"}, "1.0.1"),
        ({"id": "1.0.1", "output_sha256": SECOND, "run_id": "other"}, "1.0.1"),
        ({"id": "item-1", "prompt": "p1"}, "1.0.1"),
        ({"id": "item-1", "prompt": "prompt 1", "provider": "Echo", "repeat": 1}, "1.0.1"),
        ({"id": "item-1", "output_sha256": SECOND}, "1.0.1"),
        ({"description": "test 1", "vars": {"who": "Ada", "n": 1}, "prompt": "p1"}, "1.0.1"),
        ({"vars": {"who": "Ada", "n": "1"}, "prompt": "p1"}, "1.0.1"),
        ({"description": "test 1", "output_sha256": f"sha256:{SECOND}"}, "1.0.1"),
        ({"output": "output 1 1 0"}, "1.0.1"),
        ({"id": "3.0.0"}, "3.0.0"),
    ],
)
def test_ways_to_name_an_output(tmp_path: Path, row: dict[str, object], id_: str) -> None:
    (found,) = match(tmp_path, row).matches
    assert found.item.id == id_
    assert found.score == (None if id_ == "3.0.0" else 0.1)
    assert found.item.words == 4


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        ({"id": "1.0.5"}, 33, "this run has no output `1.0.5` | the nearest id is `"),
        ({"id": "item 2b"}, 33, "this run has no output `item 2b` | the nearest id is `item-2`"),
        ({"id": "unlike any"}, 33, "this run has no output `unlike any` | check that it is the right run"),
        (
            {"id": "item-1"},
            33,
            "this label matches 2 outputs | add `prompt`, `provider` or `repeat`, or",
        ),
        ({"id": "item-1", "prompt": "p7"}, 33, "this item has no output for that prompt"),
        ({"id": "1.0.0", "repeat": 2}, 33, "this item has no output for that prompt"),
        ({"id": "1.0.0", "output_sha256": SECOND}, 57, "this label was made for another output"),
        ({"id": "1.0.0", "run_id": "other"}, 50, "this label was made for the run `other` and has no"),
        ({"description": "test 9"}, 1, "no output of this run has this description, these vars or this text"),
        ({"id": "1.0.0", "metric": "tome"}, 11, "no judge of this run scores `tome` | did you mean `tone`?"),
        ({"id": "1.0.0", "metric": "length"}, 11, "no judge of this run scores `length` | the run has: tone"),
        ({"id": "4.0.0"}, 33, "this run has no output `4.0.0`"),
    ],
)
def test_labels_without_an_output(tmp_path: Path, row: dict[str, object], column: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        match(tmp_path, {"id": "0.0.0"}, row)
    (problem,) = caught.value.problems
    assert problem.location is not None
    assert f"{problem.message} | {problem.hint}".startswith(message)
    assert (problem.location.line, problem.location.column) == (2, column)
    found = match(tmp_path, {"id": "0.0.0"}, row, allow_unmatched=True)
    assert ([item.item.id for item in found.matches], len(found.unmatched)) == (["0.0.0"], 1)


YES = output_digest("yes")


def moved(*keys: str | None) -> Iterator[CaseResult]:
    """Yield a run whose tests have these keys, and all the same output."""
    for test, key in enumerate(keys):
        for column in range(2):
            yield result(test, column, output="yes", test_key=key, metadata={})


@pytest.mark.parametrize(
    ("keys", "row", "found"),
    [
        (("a", "b", "c"), {"id": "1.0.0", "test_key": "b"}, "1.0.0"),
        # A test was inserted: the id is that of another test, whose output happens to be equal.
        (("new", "a", "b"), {"id": "1.0.0", "test_key": "b"}, "2.0.0"),
        (("new", "a", "b"), {"id": "1.0.1", "test_key": "b", "prompt": "prompt 1"}, "2.0.1"),
        (("new", "a", "b"), {"test_key": "b"}, "2.0.0"),
        (("b", "a", "b"), {"id": "2.0.0", "test_key": "b"}, "2.0.0"),
        # Where the run or the label has no key, the id is what there is.
        ((None, None, None), {"id": "1.0.0", "test_key": "b"}, "1.0.0"),
        (("a", "b", "c"), {"id": "1.0.0"}, "1.0.0"),
        # Sheets of an older geval say description and variables beside the id.
        ((None, None), {"id": "0.0.0", "vars": {"n": 1, "who": "Ada"}}, "1.0.0"),
        (("a", "b"), {"id": "0.0.0", "description": "test 1"}, "1.0.0"),
        (("a", "b"), {"id": "0.0.0", "description": "test 1", "run_id": "this"}, "0.0.0"),
    ],
)
def test_a_label_follows_its_test(
    tmp_path: Path, keys: tuple[str | None, ...], row: dict[str, object], found: str
) -> None:
    said = {"output_sha256": YES, "run_id": "other", "prompt": "prompt 0", **row}
    matching = match_labels(labels_of(tmp_path, said), judged_items(moved(*keys)), run_id="this")
    assert [item.item.id for item in matching.matches] == [found]


@pytest.mark.parametrize(
    ("keys", "row", "message"),
    [
        (("a", "c"), {"id": "1.0.0", "test_key": "b"}, "this label was made for another test"),
        (("a", "c"), {"test_key": "b"}, "this label was made for another test"),
        (("a", "c"), {"id": "1.0.0", "vars": {"n": 7}}, "this label was made for another test"),
        (("b", "b"), {"id": "7.0.0", "test_key": "b"}, "this label matches 2 outputs"),
        (
            ("b", "c"),
            {"id": "1.0.0", "test_key": "b", "output_sha256": SECOND},
            "this label was made for another output",
        ),
        (
            ("b", "c"),
            {"id": "1.0.0", "test_key": "b", "prompt": "prompt 7"},
            "this item has no output for that prompt, provider or repeat",
        ),
    ],
)
def test_a_label_of_a_test_that_is_not_here_is_about_no_other(
    tmp_path: Path, keys: tuple[str, ...], row: dict[str, object], message: str
) -> None:
    labels = labels_of(tmp_path, {"output_sha256": YES, "run_id": "other", "prompt": "prompt 0", **row})
    with pytest.raises(ConfigError) as caught:
        match_labels(labels, judged_items(moved(*keys)), run_id="this")
    assert [problem.message for problem in caught.value.problems] == [message]


def test_labels_of_one_output_stay_together_whether_or_not_they_have_its_key(tmp_path: Path) -> None:
    one = {"id": "0.0.0", "annotator": "anna"}
    two = {"id": "0.0.0", "annotator": "ben", "test_key": "a"}
    for rows in ((one, two), (two, one)):
        (label,) = labels_of(tmp_path, *rows)
        assert (set(label.marks), label.item.test_key) == ({"anna", "ben"}, "a")
    assert len(labels_of(tmp_path, {"test_key": "a"}, {"test_key": "b"})) == 2


def test_nothing_matched_is_never_allowed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        match(tmp_path, {"id": "nothing"}, allow_unmatched=True)


def test_many_unmatched_labels_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        match(tmp_path, *({"id": f"lost-{number}"} for number in range(50)))
    assert len(caught.value.problems) == 21
    rest = caught.value.problems[-1]
    assert rest.message == "30 more labels have no output in this run"
    assert rest.location is not None
    assert rest.location.line == 21  # the first of them, so that it is shown after the others


def test_labels_of_a_stored_run(tmp_path: Path) -> None:
    store_judged_run(tmp_path)
    with open_runs(tmp_path / ".geval", {}) as runs:
        run, _ = runs.find("latest")
        stored = list(runs.results(run.id))
        rows = [
            {
                "id": item.id,
                "metric": "coherence",
                "label": 5,
                "scale": [1, 5],
                "output_sha256": output_digest(item.output),
            }
            for item in stored
            if item.output is not None
        ]
        write_labels(tmp_path / "labels.csv", rows)
        labels = read_labels(tmp_path / "labels.csv").labels
        found = match_labels(labels, judged_items(runs.results(run.id)), run_id=run.id)
    scores = {item.id: item.named_scores["coherence"] for item in stored if item.output is not None}
    assert {item.item.id: item.score for item in found.matches} == pytest.approx(scores)
    assert len(scores) == 4


WAYS: tuple[Callable[[int], dict[str, object]], ...] = (
    lambda test: {"id": f"{test}.0.1"},
    lambda test: {"id": f"item-{test}", "prompt": "p1"},
    lambda test: {"id": f"{test}.0.1", "output": f"output {test} 1 0"},
    lambda test: {"id": f"{test}.0.1", "output": f"output {test} 1 0", "run_id": "earlier"},
    lambda test: {"description": f"test {test}", "prompt": "prompt 1"},
    lambda test: {"vars": {"n": test, "who": "Ada"}, "prompt": "p1"},
    lambda test: {"output": f"output {test} 1 0", "description": f"test {test}"},
)
"""How rows may name the second output of a test."""


@pytest.mark.parametrize("other", WAYS[1:])
def test_annotators_who_name_an_output_in_different_ways_label_one_output(
    other: Callable[[int], dict[str, object]],
) -> None:
    """Figures must not depend on how the rows name the outputs."""
    outputs = [
        result(
            test,
            column,
            named_scores={"tone": test % 5 / 4},
            assertions=(AssertionResult("g-eval", "tone", Status.PASSED, test % 5 / 4),),
        )
        for test in range(40)
        for column in range(2)
    ]

    def given(*ways: Callable[[int], dict[str, object]]) -> list[dict[str, object]]:
        people = zip(("anna", "ben", "cleo"), ways, strict=True)
        return [
            {
                "metric": "tone",
                "annotator": name,
                "label": (test + place) % 5 / 4,
                "doc": f"d{test}",
                **way(test),
            }
            for place, (name, way) in enumerate(people)
            for test in range(40)
        ]

    alike, mixed = given(*[WAYS[0]] * 3), given(WAYS[0], WAYS[0], other)
    found, same = agree(mixed, outputs), agree(alike, outputs)
    assert found == same
    assert (found.matched, found.metrics[0].n, found.metrics[0].annotators) == (40, 40, 3)
    assert found.metrics[0].alt_test is not None
    assert calibrate(mixed, outputs) == calibrate(alike, outputs)
    assert estimate(mixed, outputs).metrics == estimate(alike, outputs).metrics


def test_of_two_labels_of_one_person_for_equal_texts_of_two_runs_the_mean_counts() -> None:
    outputs = [result(test, 1) for test in range(3)]
    rows = [
        {"metric": "tone", "annotator": who, "label": label, "run_id": run, **WAYS[2](0)}
        for who, label, run in (("anna", 1, "this"), ("anna", 0, "earlier"), ("ben", 1, "this"))
    ]
    matches = match_labels(labels_from_rows(rows).labels, judged_items(outputs)).matches
    (joined,) = by_output(matches)
    assert joined.label.marks == {"anna": 0.5, "ben": 1.0}
