"""Two runs compared: what is paired, what is said of it, and what it looks like."""

import io
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.sample_run import RUN, console_of, make_judged

from geval_cli.errors import UsageError
from geval_cli.extras.compare.comparison import (
    NOT_ASKED,
    THIS_PULL_REQUEST,
    Baseline,
    ComparedRow,
    ComparisonOptions,
    DeltaWords,
    EarlierRun,
    NamedRun,
    RowDelta,
    RowKind,
    RowWords,
    RunComparison,
    compare,
    comparison_from_json,
    comparison_to_json,
    judge_difference,
    judge_differences,
    without_rivals,
)
from geval_cli.extras.compare.matching import MatchedBy, match_columns
from geval_cli.extras.compare.text import baseline_of, changes_text, comparison_markdown, print_comparison
from geval_cli.numbers import estimated
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    Column,
    ProviderRef,
    RenderedPrompt,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.report import RunReport
from geval_cli.runs.baseline import THIS_RUN
from geval_cli.source.source_map import SourcePath
from geval_cli.statistics.paired import NO_MARGINS, DifferenceVerdict, Margins, PairedSample
from geval_cli.suite.gates import Gate, parse_gate

COLUMN = Column(0, "p", "m")
Cases = Iterable[CaseResult]


def case(
    test: int,
    scores: Mapping[str, float] | None = None,
    *,
    status: Status | None = None,
    column: Column = COLUMN,
    repeat: int = 0,
    reason: str = "it is said so",
    details: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CaseResult:
    """Return the case of a test whose metrics have these scores; each passes from 0.5 on."""
    found = {} if scores is None else dict(scores)
    assertions = tuple(
        AssertionResult("g-eval", name, verdict_of(score), score, 0.5, reason=reason, detail=details or {})
        for name, score in found.items()
    )
    mean = sum(found.values()) / len(found) if found else None
    result = CaseResult(
        id=f"{test}",
        test_index=test,
        repeat_index=repeat,
        column=column.index,
        description=None,
        prompt=RenderedPrompt("p", column.prompt_label, "text"),
        provider=ProviderRef("m", column.provider_label),
        vars={"question": f"number {test}"},
        output="an answer",
        status=status or verdict_of(min(found.values())),
        score=mean,
        named_scores=found,
        assertions=assertions,
    )
    return replace(result, **changes)


def verdict_of(score: float) -> Status:
    return Status.PASSED if score >= 0.5 else Status.FAILED


def named(name: str, cases: Cases, *, columns: tuple[Column, ...] = (COLUMN,), **run: Any) -> NamedRun:
    held = list(cases)
    record = replace(RUN, id=f"20260101-120000-000{name.lower()}", columns=columns, **run)

    def results() -> Iterator[CaseResult]:
        yield from held

    return NamedRun(name, RunReport(record, RunSummary(), results))


def compared(a: Cases, b: Cases, options: ComparisonOptions | None = None) -> RunComparison:
    return compare(named("A", a), named("B", b), options or ComparisonOptions())


def row_of(found: RunComparison, metric: str) -> ComparedRow:
    return next(row for row in found.rows if metric in {row.metric, *row.same})


def waver(tests: int, drop: float, *, seed: int = 1) -> tuple[list[CaseResult], list[CaseResult]]:
    """Return two runs in which `fluency` only wavers, and `relevance` drops."""
    numbers = random.Random(seed)
    before, after = [], []
    for test in range(tests):
        fluency, relevance = numbers.choice([0.5, 0.75, 1.0]), numbers.choice([0.5, 0.75, 1.0])
        before.append(case(test, {"fluency": fluency, "relevance": relevance}))
        lower = relevance - (drop if numbers.random() < 0.6 else 0.0)
        other = numbers.choice([0.5, 0.75, 1.0])
        after.append(
            case(test, {"fluency": other, "relevance": max(0.0, lower)}, reason="it misses the point")
        )
    return before, after


@pytest.mark.parametrize("held", [(1, 3), (3, 1), (1, 1), (3, 3)])
def test_tests_that_a_file_of_part_of_a_run_lacks_are_not_removed(held: tuple[int, int]) -> None:
    """As in a file of `geval show --failed -o`, whose summary is that of the run."""
    runs = [
        NamedRun(name, replace(side.report, summary=RunSummary(total=3)))
        for name, count in zip("AB", held, strict=True)
        for side in [named(name, [case(test, {"m": 0.0}) for test in range(count)])]
    ]
    found = compare(runs[0], runs[1], ComparisonOptions())
    assert found.changes == ()
    assert found.warnings == tuple(
        f"{name} has only 1 of the 3 cases of its run; only these are compared"
        for name, count in zip("AB", held, strict=True)
        if count < 3
    )


def test_a_regression_is_worse_and_chance_is_undecided() -> None:
    found = compared(*waver(60, 0.5))

    assert [(row.metric, row.verdict) for row in found.rows] == [
        ("pass_rate", DifferenceVerdict.WORSE),
        ("score", DifferenceVerdict.WORSE),
        ("fluency", DifferenceVerdict.UNDECIDED),
        ("relevance", DifferenceVerdict.WORSE),
    ]
    relevance, rate = row_of(found, "relevance"), row_of(found, "pass_rate")
    assert (found.paired, found.only_a, found.only_b) == (60, 0, 0)
    assert relevance.delta.p_adjusted >= relevance.delta.p
    assert (rate.fixed, rate.broken) == (0, len(rate.flipped))
    assert rate.mcnemar_mid_p is not None
    assert rate.mcnemar_mid_p < 0.001
    flip = rate.flipped[0]
    assert (flip.was, flip.became) == (Status.PASSED, Status.FAILED)
    assert (flip.assertion, flip.reason) == ("g-eval relevance", "it misses the point")


def test_p_values_are_adjusted_for_all_rows() -> None:
    runs = waver(60, 0.5)
    holm, bh = (compared(*runs, ComparisonOptions(adjust=name)) for name in ("holm", "bh"))
    values = sorted(row.delta.p for row in holm.rows)

    assert min(row.delta.p_adjusted for row in holm.rows) == pytest.approx(values[0] * 4)
    assert all(
        one.delta.p_adjusted >= other.delta.p_adjusted for one, other in zip(holm.rows, bh.rows, strict=True)
    )


def test_tests_match_by_content_and_suites_that_share_none_are_refused() -> None:
    before = [case(test, {"m": 1.0}) for test in range(40)]
    moved = [case(39 - test, {"m": 1.0}, vars={"question": f"number {test}"}) for test in range(40)]
    assert compared(before, moved).paired == 40
    others = [case(test, {"m": 1.0}, vars={"question": f"number {test + 36}"}) for test in range(40)]
    with pytest.raises(UsageError, match="4 of 40 tests match"):
        compared(before, others)
    # A part of the suite is compared with its part; half of the smaller suite is enough.
    found = compared(before, others[:8])
    assert (found.paired, found.only_a, found.only_b) == (4, 36, 4)
    with pytest.raises(UsageError, match="4 of 9 tests match"):
        compared(before, others[:9])
    with pytest.raises(UsageError, match="B has no results"):
        compared(before, [])


@pytest.mark.parametrize(("tests", "alike"), [(5, 0), (4, 5), (6, 6)])
def test_pairs_that_may_be_wrong_are_warned_of(tests: int, alike: int) -> None:
    """Tests of equal content are paired in their order, which says nothing where one is missing or new."""
    same: dict[str, Any] = {"vars": {}}
    before = [case(test, {"m": 1.0}, **same) for test in range(5)] + [case(9, {"m": 1.0})]
    after = [case(test, {"m": 1.0}, **same) for test in range(tests)] + [case(9, {"m": 1.0})]
    found = compared(before, after).warnings
    assert bool(found) == bool(alike)
    assert all(
        text.startswith(f"pairs may be wrong: {alike} tests that the results of A and B") for text in found
    )


def test_errors_are_left_out_and_counted() -> None:
    before = [case(test, {"m": 1.0}) for test in range(12)]
    after = [case(test, {"m": 0.0}) for test in range(12)]
    before[0] = case(0, status=Status.ERROR)
    after[1] = case(1, status=Status.ERROR)
    found = compared(before, after)

    assert {row.delta.n for row in found.rows} == {10}
    assert (found.paired, found.a.errored, found.b.errored) == (12, 1, 1)
    assert found.notes == ("left out as errors: 1 of 12 cases in A, 1 of 12 cases in B",)


def test_failed_cases_that_an_error_leaves_without_a_score_are_counted() -> None:
    before = [case(test, {"m": 1.0}) for test in range(12)]
    failed, error = make_judged(Status.FAILED, 0.0, metric="c"), make_judged(Status.ERROR, None, metric="m")
    after = [
        replace(case(test, status=Status.FAILED), score=None, assertions=(failed, error))
        if test < 5
        else item
        for test, item in enumerate(before)
    ]
    found = compared(before, after)
    assert {(row.metric, row.delta.n) for row in found.rows} == {("pass_rate", 12), ("score", 7)}
    assert found.notes == (
        "failed, and left out of scores because of an error in another assertion: 0 of 12 cases in A, 5 of 12 cases"
        " in B",
    )


def test_runs_without_a_test_that_was_judged_in_both_are_not_compared() -> None:
    errors = [case(test, status=Status.ERROR) for test in range(3)]
    found = compared(errors, errors)

    assert found.rows == ()
    assert found.notes[-1] == "nothing was judged in both runs, so there is nothing to compare"


@given(*[st.lists(st.tuples(*[st.sampled_from("ab")] * 2), min_size=1, max_size=5)] * 2)
def test_no_two_pairs_of_columns_have_the_same_label(
    before: list[tuple[str, str]], after: list[tuple[str, str]]
) -> None:
    sides = [[Column(index, *labels) for index, labels in enumerate(side)] for side in (before, after)]
    labels = [pair.label for pair in match_columns(*sides).pairs]
    assert len(set(labels)) == len(labels)
    for pair in match_columns(*sides).pairs:
        assert pair.number in ("", f"[{pair.after.index + 1}] ")


def test_columns_with_equal_labels_are_paired_in_their_order() -> None:
    twice = [Column(0, "p", "m"), Column(1, "p", "m"), Column(2, "q", "m")]
    found = match_columns(twice, [*twice[:2], Column(2, "r", "m")])

    assert [(pair.before.index, pair.after.index, pair.by) for pair in found.pairs] == [
        (0, 0, MatchedBy.LABEL),
        (1, 1, MatchedBy.LABEL),
        (2, 2, MatchedBy.PLACE),
    ]


def test_one_test_shows_nothing() -> None:
    found = compared([case(0, {"m": 0.0})], [case(0, {"m": 1.0})])

    row = row_of(found, "m")
    assert (row.verdict, row.delta.interval, row.delta.p, row.delta.mde) == (
        DifferenceVerdict.UNDECIDED,
        None,
        1.0,
        None,
    )


def test_repeats_of_a_test_are_one_cluster_and_those_of_one_run_only_are_left_out() -> None:
    scores = random.Random(4)
    before = [case(test, {"m": scores.random()}, repeat=repeat) for test in range(12) for repeat in range(3)]
    after = [case(test, {"m": scores.random()}, repeat=repeat) for test in range(12) for repeat in range(3)]
    row = row_of(compared(before, after), "pass_rate")
    assert (row.delta.n, row.delta.clusters, row.mcnemar_mid_p) == (36, 12, None)
    single = [item for item in after if not item.repeat_index]
    found = compared(before, single)
    assert row_of(found, "m").delta.n == 12
    assert any("A has 3 repeats and B 1" in note for note in found.notes)


def test_metadata_can_name_the_clusters() -> None:
    numbers = random.Random(6)
    before, after = (
        [case(test, {"m": numbers.random()}, metadata={"doc": test % 15, "one": []}) for test in range(30)]
        for _ in range(2)
    )
    found = compared(before, after, ComparisonOptions(cluster="doc"))
    assert {row.delta.clusters for row in found.rows} == {15}
    with pytest.raises(UsageError, match="no test has the metadata `dco`"):
        compared(before, after, ComparisonOptions(cluster="dco"))


def test_a_metric_of_one_run_only_is_said_and_has_no_row() -> None:
    before = [case(test, {"m": 1.0, "old": 1.0}) for test in range(5)]
    after = [case(test, {"m": 1.0, "new": 0.5, "newer": 1.0}) for test in range(5)]
    found = compared(before, after)

    assert [(row.metric, row.same) for row in found.rows] == [("pass_rate", ("m",)), ("score", ())]
    assert found.notes == ("only A has 1 metric: old", "only B has 2 metrics: new, newer")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"judge": "a"}, {"judge": "b"}, "not comparable: different judge in m"),
        (
            {"judge": "a", "prompt_version": "1"},
            {"judge": "a", "prompt_version": "2"},
            "not comparable: different prompt version in m",
        ),
        (
            {"judge": "a", "evaluation_steps": ["x"]},
            {"judge": "a", "evaluation_steps": ["y"]},
            "not comparable: different criteria or steps in m",
        ),
        (
            {"judge": "a", "criterion_key": "sha256:1"},
            {"judge": "a", "criterion_key": "sha256:2"},
            "not comparable: different judge's settings in m",
        ),
        ({"judge": "a", "criterion_key": "sha256:1"}, {"judge": "a", "criterion_key": "sha256:1"}, ""),
        ({"judge": "a"}, {"judge": "a"}, ""),
        ({}, {"judge": "a"}, ""),
    ],
)
def test_another_judge_is_warned_of(old: dict[str, Any], new: dict[str, Any], said: str) -> None:
    before = [case(test, {"m": 1.0}, details=old) for test in range(3)]
    after = [case(test, {"m": 1.0}, details=new) for test in range(3)]

    assert compared(before, after).warnings == ((said,) if said else ())


def test_runs_of_another_prompt_version_are_warned_of() -> None:
    cases = [case(0, {"m": 1.0})]
    found = compare(
        named("A", cases, prompt_version="1"), named("B", cases, prompt_version="2"), ComparisonOptions()
    )
    assert found.warnings == ("not comparable: the judges' prompts are from another version",)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("sha256:1", "sha256:1", DifferenceVerdict.IDENTICAL),
        ("sha256:1", "sha256:2", DifferenceVerdict.UNDECIDED),
        (None, None, DifferenceVerdict.UNDECIDED),
    ],
)
def test_identical_is_only_what_rated_the_same_texts(
    old: str | None, new: str | None, verdict: DifferenceVerdict
) -> None:
    before = [case(test, {"m": 1.0}, details={"judge": "a", "rating_key": old}) for test in range(3)]
    after = [case(test, {"m": 1.0}, details={"judge": "a", "rating_key": new}) for test in range(3)]

    assert {row.verdict for row in compared(before, after).rows} == {verdict}


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        (["sha256:1", "sha256:2"], DifferenceVerdict.IDENTICAL),
        ([None, "sha256:2"], DifferenceVerdict.UNDECIDED),
        (["sha256:1", None, "sha256:3"], DifferenceVerdict.UNDECIDED),
    ],
)
def test_ratings_of_a_metric_are_identical_only_if_all_of_them_are_known(
    keys: list[str | None], verdict: DifferenceVerdict
) -> None:
    def rated(test: int) -> CaseResult:
        found = case(test, {"m": 1.0}, details={"judge": "a"})
        parts = [replace(found.assertions[0], detail={"judge": "a", "rating_key": key}) for key in keys]
        return replace(found, assertions=tuple(parts))

    rows = compared([rated(test) for test in range(3)], [rated(test) for test in range(3)]).rows

    assert {row.verdict for row in rows} == {verdict}


OLD = (Column(0, "p", "small"), Column(1, "q", "small"), Column(2, "p", "large"))


@pytest.mark.parametrize(
    ("after", "chosen", "expected"),
    [
        (OLD, (), [(0, 0, "label"), (1, 1, "label"), (2, 2, "label")]),
        (
            (Column(0, "p", "large"), Column(1, "p", "other"), Column(2, "q", "other")),
            (),
            [(2, 0, "label"), (0, 1, "place"), (1, 2, "place")],
        ),
        ((Column(0, "p", "large"), Column(1, "p", "other")), (), [(2, 0, "label")]),
        (OLD, ("p | small=q | small",), [(0, 1, "choice"), (2, 2, "label")]),
        (OLD, ("1=2", "2=1"), [(1, 0, "choice"), (0, 1, "choice"), (2, 2, "label")]),
        (
            (Column(0, "q", "small"), Column(1, "p", "small"), Column(2, "p", "other")),
            ("1=1",),
            [(0, 0, "choice"), (2, 2, "place")],
        ),
        ((Column(0, "z", "x=y"),), ("large=x=y",), [(2, 0, "choice")]),
        ((Column(0, "z", "y"),), ("q=1",), [(1, 0, "choice")]),
        ((Column(0, "z", "y"),), ("p | small=z | y",), [(0, 0, "choice")]),
        ((Column(0, "z", "y"),), ("p × small=z x y",), [(0, 0, "choice")]),  # noqa: RUF001
    ],
)
def test_columns(
    after: tuple[Column, ...], chosen: tuple[str, ...], expected: list[tuple[int, int, str]]
) -> None:
    match = match_columns(OLD, after, chosen)

    assert [(pair.before.index, pair.after.index, pair.by) for pair in match.pairs] == expected
    assert len(match.pairs) + len(match.only_before) == len(OLD)
    assert len(match.pairs) + len(match.only_after) == len(after)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["large"], "--column takes OLD=NEW: `large`"),
        (["p=large"], "--column `p=large` is not a pair of columns: 2 columns of A have the label `p`\n"),
        (["large=nobody"], "`large=nobody` is not a pair of columns: B has no column `nobody`\n"),
        (["nobody=p"], "pair of columns: A has no column `nobody`, and 2 columns of B have the label `p`\n"),
        (["large=a=b"], "--column `large=a=b` is not a pair of columns\n"),
        (["large=large", "3=2"], "names a column twice"),
    ],
)
def test_columns_that_cannot_be_chosen(chosen: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        match_columns(OLD, OLD, chosen)
    assert caught.value.hint


def test_two_columns_of_one_run_are_compared_without_their_mirror_image() -> None:
    columns = (Column(0, "p", "small"), Column(1, "p", "large"))
    results = [
        case(test, {"m": score}, column=column)
        for test in range(12)
        for column, score in zip(columns, (0.1 + test / 100, 0.9 - test / 200), strict=True)
    ]
    run = named("A", results, columns=columns)
    found = compare(run, named("B", results, columns=columns), ComparisonOptions(columns=("small=large",)))
    assert {row.verdict for row in found.rows if row.kind is RowKind.SCORE} == {DifferenceVerdict.BETTER}, (
        found.rows
    )
    assert found.notes == (
        "1 column of A is not compared: p × large",  # noqa: RUF001
        "1 column of B is not compared: p × small",  # noqa: RUF001
    )


def test_columns_paired_by_place_are_said_and_unmatched_ones_too() -> None:
    other, further = Column(0, "p", "other"), Column(1, "p", "further")
    before = [case(test, {"m": 1.0}) for test in range(3)]
    after = [case(test, {"m": 1.0}, column=other) for test in range(3)]
    found = compare(named("A", before), named("B", after, columns=(other,)), ComparisonOptions())
    assert found.columns[0].by is MatchedBy.PLACE
    assert found.notes == ("paired by position: p × m -> p × other",)  # noqa: RUF001
    assert found.rows[0].column == "p × m -> p × other"  # noqa: RUF001
    with pytest.raises(UsageError, match="no column in common"):
        compare(named("A", before), named("B", after, columns=(other, further)), ComparisonOptions())


def test_the_json_form_is_read_back_and_has_the_keys_of_its_contract() -> None:
    found = compared(*waver(30, 0.5))
    data = json.loads(json.dumps(comparison_to_json(found)))

    assert comparison_from_json(data) == found
    assert {"schema_version", "kind", "a", "b", "paired", "only_a", "only_b", "rows"} <= data.keys()
    row = data["rows"][0]
    assert {"metric", "column", "delta", "verdict", "flipped"} <= row.keys()
    assert {"value", "interval", "n", "clusters", "se", "p", "p_adjusted", "mde", "needed_tests"} <= row[
        "delta"
    ].keys()
    assert {"test", "from", "to", "assertion"} <= row["flipped"][0].keys()


def test_a_comparison_of_another_version_is_no_crash() -> None:
    assert "another version" in str(baseline_of({"kind": "compare", "rows": 3}))
    assert baseline_of({"kind": "compare", "error": "the suites are unrelated"}) == "the suites are unrelated"


def two_columns() -> RunComparison:
    columns = (Column(0, "Answer politely: {{ question }}", "small"), Column(1, "p", "large"))
    runs = []
    for name, seed in (("A", 1), ("B", 2)):
        numbers = random.Random(seed)
        metric = "the-answer-is-right-and-names-its-sources"
        cases = [
            case(test, {metric: numbers.choice([0.0, 0.5, 1.0])}, column=column)
            for test in range(20)
            for column in columns
        ]
        runs.append(named(name, cases, columns=columns))
    return compare(*runs, ComparisonOptions(adjust="bh"))


PICTURES: dict[str, Callable[[], RunComparison]] = {
    "regression": lambda: compared(*waver(60, 0.5)),
    "columns": two_columns,
    "undecided": lambda: compared(*waver(40, 0.0, seed=3)),
}


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, width: int, check_expected: Callable[[str, str], None]) -> None:
    stream = io.StringIO()
    print_comparison(PICTURES[name](), console_of(stream, width), most_flips=5)
    text = stream.getvalue()

    assert all(len(line) <= width for line in text.splitlines())
    check_expected(f"compare-{name}.{width}.txt", text)


@pytest.mark.parametrize("name", PICTURES)
def test_in_short_it_is_a_screen(name: str, check_expected: Callable[[str, str], None]) -> None:
    stream = io.StringIO()
    print_comparison(PICTURES[name](), console_of(stream, 80), is_verbose=False, more="geval compare A B -v")
    text = stream.getvalue()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) <= 40
    check_expected(f"compare-{name}.short.txt", text)


def test_what_a_stream_cannot_show_is_written_otherwise() -> None:
    columns = (Column(0, "brief", "small"), Column(1, "brief", "large"))
    others = (columns[0], Column(1, "polite", "other"))
    before = [case(test, {"m": 1.0}, column=column) for test in range(6) for column in columns]
    after = [case(test, {"m": 0.0}, column=column) for test in range(6) for column in others]
    found = compare(
        named("A", before, columns=columns), named("B", after, columns=others), ComparisonOptions()
    )
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_comparison(found, console_of(stream, 200))  # type: ignore[arg-type]
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]

    assert text.count("brief x small") == 2
    assert "paired by position: brief x large -> polite x other" in text


def test_markdown(check_expected: Callable[[str, str], None]) -> None:
    check_expected("compare.md", comparison_markdown(PICTURES["regression"]()))


def test_many_columns_and_flips_leave_a_short_page() -> None:
    columns = tuple(Column(index, "p" * 100, f"model {index}") for index in range(80))
    before, after = (
        [
            case(test, {"m": score}, column=column, reason="no " * 400)
            for test in range(5)
            for column in columns
        ]
        for score in (1.0, 0.0)
    )
    found = compare(
        named("A", before, columns=columns), named("B", after, columns=columns), ComparisonOptions()
    )
    stream = io.StringIO()
    print_comparison(found, console_of(stream, 100))

    assert len(found.rows) == 80
    assert len(comparison_markdown(found)) < 30_000
    assert stream.getvalue().count("passed → failed") == 20
    assert "and 20 more rows" in stream.getvalue()


def test_what_models_write_is_neither_markup_nor_a_terminal_code() -> None:
    hostile = "\x1b[31m<img src=x> `|` @all\n# big"
    before = [case(test, {"m": 1.0}) for test in range(3)]
    after = [case(test, {"m": 0.0}, reason=hostile) for test in range(3)]
    found = compared(before, after)
    stream = io.StringIO()
    print_comparison(found, console_of(stream, 100))
    page = comparison_markdown(found)

    assert "\x1b" not in stream.getvalue() + page
    line = next(line for line in page.splitlines() if "@all" in line)
    assert line.startswith("- passed → failed: ``")
    assert line.endswith("``")


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        ((0.0036, 0.041), "[+0.004, +0.04]"),
        ((-0.0004, 0.0021), "[-0.0004, +0.002]"),
        ((0.0, 0.2), "[0.00, +0.20]"),
        (None, ""),
    ],
)
def test_an_interval_shows_whether_zero_is_in_it(interval: tuple[float, float] | None, text: str) -> None:
    (row,) = compared(rated(20, "right"), rated(20, "right", flip=8)).rows
    delta = RowDelta(value=0.02, interval=interval)
    assert RowWords(replace(row, kind=RowKind.METRIC, delta=delta)).interval == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "0.05 would need about 1 test"),
        (712, "0.05 would need about 720 tests"),
        (1_001, "0.05 would need more than 1,000 tests"),
    ],
)
def test_a_test_that_is_needed_is_one(count: int, text: str) -> None:
    assert DeltaWords(RowDelta(needed_tests=count), is_share=False).power(0.05) == text


@pytest.mark.parametrize(
    ("mde", "is_share", "text"),
    [
        (0.03, False, "detects 0.03 or more (80 % power); 0.05 needs only about 16 tests"),
        (0.05, True, "detects 5 points or more (80 % power); 5 points need only about 16 tests"),
        (0.051, False, "detects 0.05 or more (80 % power); 0.05 would need about 16 tests"),
    ],
)
def test_what_fewer_tests_would_detect_is_told_as_such(mde: float, is_share: bool, text: str) -> None:
    assert DeltaWords(RowDelta(mde=mde, needed_tests=16), is_share=is_share).power(0.05) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (7, "about 7"),
        (99, "about 99"),
        (100, "about 100"),
        (712, "about 720"),
        (999, "about 1,000"),
        (1_000, "about 1,000"),
        (10**36, "more than 1,000"),
    ],
)
def test_estimated_counts_are_rounded_up_and_have_at_most_three_digits(count: int, text: str) -> None:
    assert estimated(count) == text


def rated(tests: int, *metrics: str, change: float = 0.0, flip: int = 0, **more: Any) -> list[CaseResult]:
    """Return a run in which every metric has the same score: 1, or 0 for the first `flip` tests."""
    return [
        case(test, dict.fromkeys(metrics, (0.0 if test < flip else 1.0) - change), **more)
        for test in range(tests)
    ]


def test_rows_with_equal_figures_are_one_and_are_counted_once() -> None:
    found = compared(rated(20, "right"), rated(20, "right", flip=8))
    (row,) = found.rows

    assert (row.metric, row.same) == ("pass_rate", ("score", "right"))
    assert RowWords(row, 0.05).name == "pass rate = score = right"
    assert row.delta.p_adjusted == row.delta.p
    # A metric of its own is one row more.
    numbers = random.Random(5)
    runs = []
    for flip in (0, 8):
        runs.append(
            [
                case(test, {"right": 0.0 if test < flip else 1.0, "tone": numbers.uniform(0.5, 1.0)})
                for test in range(20)
            ]
        )
    apart = compared(*runs)
    assert [(item.metric, item.same) for item in apart.rows] == [
        ("pass_rate", ("right",)),
        ("score", ()),
        ("tone", ()),
    ]
    assert apart.rows[0].delta.p_adjusted == pytest.approx(3 * row.delta.p)


@pytest.mark.parametrize(
    ("tests", "metrics", "power"),
    [
        (2, 1, "too few tests: 2 rows need at least 7"),
        (3, 2, "too few tests: 4 rows need at least 8"),
        (5, 1, "too few tests: 2 rows need at least 7"),
        (6, 2, "too few tests: 4 rows need at least 8"),
        (8, 1, "detects"),
    ],
)
def test_few_tests_say_that_they_are_few_and_nothing_absurd(tests: int, metrics: int, power: str) -> None:
    numbers = random.Random(3)
    runs = [
        [
            case(
                test,
                {f"m{place}": numbers.choice([0.6, 0.7, 0.8, 0.9]) for place in range(metrics)},
                status=Status.PASSED,
            )
            for test in range(tests)
        ]
        for _ in range(2)
    ]
    found = compared(*runs)
    texts = [
        DeltaWords(row.delta, is_share=False).power(0.05)
        for row in found.rows
        if row.verdict is not DifferenceVerdict.IDENTICAL
    ]
    assert any(text.startswith(power) for text in texts), texts
    for row in found.rows:
        assert row.delta.mde is None or row.delta.mde <= 1
        assert row.delta.differing >= 4 or row.delta.mde is row.delta.needed_tests is None
        assert "," not in (RowWords(row, 0.05).power.replace("more than 1,000", ""))
    if power.startswith("too few"):
        assert found.headline.startswith("Too few tests to tell A and B apart: ")


def test_one_flip_of_many_tests_tells_nothing_of_how_many_are_needed() -> None:
    found = compared(rated(200, "right"), rated(200, "right", flip=1))
    (row,) = found.rows
    assert (row.verdict, row.delta.mde, row.delta.needed_tests) == (DifferenceVerdict.UNDECIDED, None, None)
    assert RowWords(row, 0.05).power == ""
    # Nor does what floats make of equal scores.
    noise = compared(rated(50, "right", change=0.1), rated(50, "right", change=0.1 + 1e-13))
    assert {(row.delta.value, row.delta.p) for row in noise.rows} == {(0.0, 1.0)}


def test_a_margin_adds_equivalent_and_asks_more_of_better_and_worse() -> None:
    numbers = random.Random(8)
    before = [case(test, {"m": numbers.uniform(0.55, 0.9)}) for test in range(80)]

    def after(change: float) -> list[CaseResult]:
        return [
            case(
                item.test_index,
                {"m": item.named_scores["m"] + change + numbers.gauss(0, 0.01)},
                status=Status.PASSED,
            )
            for item in before
        ]

    def verdict(change: float, margin: float | None) -> DifferenceVerdict:
        margins = NO_MARGINS if margin is None else Margins(by_name={"m": margin, "score": margin})
        return row_of(compared(before, after(change), ComparisonOptions(margins=margins)), "m").verdict

    assert [verdict(change, None) for change in (-0.03, 0.03)] == [
        DifferenceVerdict.WORSE,
        DifferenceVerdict.BETTER,
    ]
    assert [verdict(change, 0.05) for change in (-0.02, 0.0, 0.02)] == [DifferenceVerdict.EQUIVALENT] * 3
    assert [verdict(change, 0.05) for change in (-0.09, 0.09)] == [
        DifferenceVerdict.WORSE,
        DifferenceVerdict.BETTER,
    ]
    assert verdict(0.05, 0.05) is DifferenceVerdict.UNDECIDED
    found = compared(before, after(0.0), ComparisonOptions(margins=Margins(0.05)))
    assert found.verdict == DifferenceVerdict.EQUIVALENT
    assert found.headline == "B differs from A by less than 0.05 in every figure, over 80 tests"


def test_the_margin_is_that_of_the_later_config_unless_another_is_given() -> None:
    runs = rated(60, "m"), rated(60, "m", change=0.01, status=Status.PASSED)
    a, b = named("A", runs[0]), named("B", runs[1], config={"margin": {"m": 0.05, "score": 0.02}})
    (_, row) = compare(a, b, ComparisonOptions()).rows
    assert (row.same, row.delta.margin) == (("m",), 0.02)  # of one row, the stricter one
    with pytest.raises(UsageError, match="`n` is not compared"):
        compare(a, b, ComparisonOptions(given_margins=("n=0.1",)))
    (_, row) = compare(a, b, ComparisonOptions(given_margins=("m=0.01", "0.03"))).rows
    assert row.delta.margin == 0.01
    (_, row) = compare(a, b, ComparisonOptions(margins=NO_MARGINS)).rows
    assert row.delta.margin is None


def test_what_rivals_in_the_run_decide_is_not_compared_between_runs() -> None:
    """A column whose output stayed the same is not better because its rival got worse."""

    def run(share: float, won: Status) -> list[CaseResult]:
        rivals = (
            AssertionResult("pairwise", "preferred", Status.PASSED, share, detail={"against": "all"}),
            AssertionResult("select-best", None, won, float(won is Status.PASSED)),
        )
        return [
            replace(
                item,
                assertions=(*item.assertions, *rivals),
                named_scores={**item.named_scores, "preferred": share},
                score=share,
                status=won,
            )
            for item in rated(12, "tone", change=0.2)
        ]

    found = compared(run(0.1, Status.FAILED), run(0.9, Status.PASSED))
    assert [(row.metric, row.same, round(row.a, 9), round(row.b, 9)) for row in found.rows] == [
        ("pass_rate", (), 1.0, 1.0),
        ("score", ("tone",), 0.8, 0.8),
    ]
    assert found.rows[0].flipped == ()
    assert found.notes == (
        "left out because they depend on other columns of the run: preferred, select-best",
    )
    # Compared with an expected output, a share says something of the output alone.
    own = [
        replace(
            item,
            assertions=tuple(
                replace(part, detail={"against": "expected_output"}) for part in item.assertions
            ),
        )
        for item in run(0.9, Status.PASSED)
    ]
    assert "preferred" in {name for row in compared(own, own).rows for name in (row.metric, *row.same)}


@pytest.mark.parametrize(
    ("own", "status", "won", "expected"),
    [
        (
            Status.PASSED,
            Status.FAILED,
            Status.PASSED,
            Status.FAILED,
        ),  # too little for the threshold of its test
        (Status.PASSED, Status.FAILED, Status.FAILED, Status.PASSED),
        (Status.PASSED, Status.PASSED, Status.PASSED, Status.PASSED),
        (Status.FAILED, Status.PASSED, Status.PASSED, Status.PASSED),  # enough for it
        (Status.FAILED, Status.FAILED, Status.PASSED, Status.FAILED),
        (Status.ERROR, Status.ERROR, Status.PASSED, Status.ERROR),
    ],
)
def test_without_its_rivals_a_case_has_the_verdict_that_the_threshold_of_its_test_gave(
    own: Status, status: Status, won: Status, expected: Status
) -> None:
    (case,) = rated(1, "tone")
    assertions = (
        AssertionResult("g-eval", "tone", own, 0.6, threshold=0.5),
        AssertionResult("select-best", None, won, float(won is Status.PASSED)),
    )
    assert without_rivals(replace(case, status=status, assertions=assertions)).status is expected


def headline_of(*changes: tuple[str, float], margin: float | None = None) -> RunComparison:
    """Return the comparison of two runs in which metrics change by so much in every one of 40 tests."""
    numbers = random.Random(2)
    before, after = [], []
    for test in range(40):
        scores = {name: 0.6 + 0.1 * numbers.random() for name, _ in changes}
        moved = {name: scores[name] + change + 0.02 * numbers.random() - 0.01 for name, change in changes}
        before.append(case(test, scores, status=Status.PASSED))
        after.append(case(test, moved, status=Status.PASSED))
    margins = None if margin is None else Margins(margin)
    return compared(before, after, ComparisonOptions(margins=margins))


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        (
            [("tone", -0.2), ("right", 0.3)],
            "mixed",
            ("worse than A in 1 of 4 figures and better in 2", "worst is tone", "best is right"),
        ),
        (
            [("tone", -0.2), ("right", -0.3)],
            "worse",
            ("B is worse than A in 3 of 4 figures, most in right", "best is pass rate"),
        ),
        (
            [("tone", 0.2)],
            "better",
            ("B is better than A in 1 of 2 figures: score = tone", "worst is pass rate"),
        ),
        (
            [("tone", 0.0), ("right", 0.0)],
            "undecided",
            ("No clear difference between A and B in 40 tests: worst is ",),
        ),
    ],
)
def test_the_headline_says_what_the_rows_say(
    changes: list[tuple[str, float]], verdict: str, said: tuple[str, ...]
) -> None:
    found = headline_of(*changes)

    assert found.verdict == verdict
    assert all(part in found.headline for part in said), found.headline
    shown = {row.verdict for row in found.rows} & {DifferenceVerdict.BETTER, DifferenceVerdict.WORSE}
    assert bool(shown) is (verdict != "undecided")


def test_swapping_both_runs_mirrors_and_the_order_of_tests_changes_nothing() -> None:
    before, after = waver(40, 0.5)
    found, swapped = compared(before, after), compared(after, before)
    order = list(range(40))
    random.Random(3).shuffle(order)
    # Another order of the tests in both files, each with its index there.
    moved = [
        [replace(run[place], test_index=index) for index, place in enumerate(order)]
        for run in (before, after)
    ]
    permuted = compared(*moved)
    opposite = {
        DifferenceVerdict.BETTER: DifferenceVerdict.WORSE,
        DifferenceVerdict.WORSE: DifferenceVerdict.BETTER,
    }
    for row, mirrored, other in zip(found.rows, swapped.rows, permuted.rows, strict=True):
        assert mirrored.verdict is opposite.get(row.verdict, row.verdict)
        assert (row.metric, row.verdict) == (other.metric, other.verdict)
        assert mirrored.delta.value == pytest.approx(-row.delta.value)
        assert other.delta.p_adjusted == pytest.approx(row.delta.p_adjusted) == mirrored.delta.p_adjusted
        assert other.delta.needed_tests == row.delta.needed_tests == mirrored.delta.needed_tests
    assert (found.verdict, swapped.verdict) == ("worse", "better")
    assert permuted.headline == found.headline


def test_what_all_columns_show_together_is_the_headline_where_no_column_shows_it() -> None:
    columns = tuple(Column(index, "p", f"m{index}") for index in range(6))

    def run(name: str, fixed: int) -> NamedRun:
        scores = {
            (test, column.index): 1.0 if test < fixed + column.index % 2 else 0.0
            for test in range(20)
            for column in columns
        }
        cases = [
            case(test, {"m": scores[test, column.index]}, column=column)
            for test in range(20)
            for column in columns
        ]
        return named(name, cases, columns=columns)

    found = compare(run("A", 3), run("B", 8), ComparisonOptions())
    assert {row.verdict for row in found.rows} == {DifferenceVerdict.UNDECIDED}
    assert found.verdict == "better"
    assert found.headline.startswith(
        "B is better than A over all columns: pass rate 18 % to 43 % (+25 points, "
    )


def test_two_figures_are_both() -> None:
    before = [case(test, {"tone": 0.8}, status=Status.PASSED) for test in range(20)]
    after = [case(test, {"tone": 0.1 + test / 100}, status=Status.FAILED) for test in range(20)]
    found = compared(before, after)
    assert found.headline.startswith("B is worse than A in both figures, most in pass rate 100 % to 0 %")


def test_the_headline_is_the_same_everywhere() -> None:
    found = headline_of(("tone", -0.2), ("right", 0.3))
    stream = io.StringIO()
    print_comparison(found, console_of(stream, 400))
    assert found.headline in stream.getvalue()
    assert found.headline in comparison_markdown(found)
    assert comparison_to_json(found)["headline"] == found.headline


@pytest.mark.parametrize(
    ("change", "run", "said"),
    [
        ({}, {}, ()),
        ({"prompt": RenderedPrompt("p", "p", "another text")}, {}, ("the text of the prompt",)),
        ({"provider": ProviderRef("m2", "m")}, {}, ("the model: m to m2",)),
        ({}, {"config": {"providers": [{"id": "m", "config": {"temperature": 1}}]}}, ("the settings of m",)),
        ({"details": {"judge": "j2", "criterion_key": "sha256:1"}}, {}, ("the judge of m: j1 to j2",)),
        (
            {"details": {"judge": "j1", "criterion_key": "sha256:2", "criteria": "new"}},
            {},
            ("the judge's settings of m",),
        ),
    ],
)
def test_what_changed_in_the_config_is_named(
    change: dict[str, Any], run: dict[str, Any], said: tuple[str, ...]
) -> None:
    details = {"details": {"judge": "j1", "criterion_key": "sha256:1"}}
    config = {"config": {"providers": [{"id": "m", "config": {"temperature": 0}}]}}
    before = named("A", rated(6, "m", **details), **config)
    after = named("B", rated(6, "m", **(details | change)), **(config | run))
    found = compare(before, after, ComparisonOptions())
    assert found.changes == said
    assert changes_text(found).startswith("Changed from A to B: " if said else "No known change in prompts")


_SAYS = {"type": "contains", "value": "a", "metric": "says"}
_SET = {"type": "assert-set", "assert": [{"type": "equals", "value": "x"}]}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (_SAYS, _SAYS, ()),
        (_SAYS, _SAYS | {"value": "b"}, ("the value of says",)),
        (_SAYS, _SAYS | {"value": "b", "weight": 2}, ("the value of says",)),
        (_SAYS, _SAYS | {"weight": 2}, ("the assertion settings of says",)),
        (_SAYS | {"transform": "output"}, _SAYS, ("the assertion settings of says",)),
        (
            _SET,
            {"type": "assert-set", "assert": [{"type": "equals", "value": "y"}]},
            ("the value of equals",),
        ),
        (_SAYS, _SAYS | {"threshold": 0.5}, ()),
        (_SAYS | {"metric": "m"}, _SAYS | {"metric": "m", "value": "b"}, ("the value of m",)),
        ("nonsense", {"type": None}, ()),
    ],
)
@pytest.mark.parametrize("is_for_all", [False, True])
def test_values_and_settings_of_assertions_that_changed_are_named(
    before: object, after: object, said: tuple[str, ...], is_for_all: bool
) -> None:
    def config(written: object, *, is_later: bool) -> dict[str, Any]:
        tests = [{"vars": {"x": "2"}}, {"vars": {"x": "1"}, "assert": [written]}]
        if is_for_all:
            return {"config": {"defaultTest": {"assert": [written]}, "tests": tests[:1]}}
        return {"config": {"tests": tests[::-1] if is_later else tests}}

    results = rated(6, "m")
    earlier = named("A", results, **config(before, is_later=False))
    found = compare(earlier, named("B", results, **config(after, is_later=True)), ComparisonOptions())
    assert found.changes == said


@pytest.mark.parametrize("metric", ["m", "other"])
@pytest.mark.parametrize("value", ["a", "b"])
@pytest.mark.parametrize("key", ["value", "config", "transform", "weight"])
def test_nothing_is_identical_whose_check_differs(metric: str, value: str, key: str) -> None:
    check = {"type": "python", "metric": metric, "value": "x"}
    config, changed = ({"defaultTest": {"assert": [{**check, key: item}]}} for item in ("a", value))
    results = rated(3, "m", "n", details={"judge": "j", "rating_key": "k"})
    before = named("A", results, config=config)
    gate = parse_gate("m.delta >= 0 vs baseline proven", SourcePath.nowhere())
    assert isinstance(gate, Gate)
    after = named("B", results, config=changed)
    (held,) = judge_differences(
        [gate], Baseline("A", EarlierRun(before.report)), results, after.report.run
    ).values()
    found = compare(before, after, ComparisonOptions())
    assert all(row.verdict == "identical" for row in found.rows) is (value == "a")
    assert (held.status is Status.PASSED) is (value == "a" or metric != "m")


UNDECIDED = {
    "scores that hardly change": [(0.51, 0.5) if test % 4 == 3 else (0.5, 0.5) for test in range(40)],
    "scores": [(0.5, 0.5 + (test * 7 % 11 - 6) / 20) for test in range(25)],
    "verdicts": [(1.0, float(test % 10 != 3)) if test % 15 != 1 else (0.0, 1.0) for test in range(60)],
    "rare changes of verdicts": [(1.0, float(test >= 5)) for test in range(90)],
}


@pytest.mark.parametrize("name", UNDECIDED)
@pytest.mark.parametrize(
    "gate",
    [
        "{}.delta >= -0.01 vs baseline",
        "{}.delta >= -0.06 vs baseline proven",
        "{}.delta >= -0.1 vs baseline proven",
        "{}.delta <= 0.03 vs baseline proven",
        "{} equivalent within 0.02 vs baseline",
        "{} equivalent within 0.08 vs baseline",
    ],
)
def test_as_many_tests_as_a_gate_asks_for_decide_it(name: str, gate: str) -> None:
    """As many as it takes for its own bounds, which are wider than those of a t-test."""

    def note_of(times: int) -> str:
        sample = PairedSample()
        for test, values in enumerate(UNDECIDED[name] * times):
            sample.add(test, values, same=False)
        found = parse_gate(gate.format("pass_rate" if "verdicts" in name else "m"), SourcePath.nowhere())
        assert isinstance(found, Gate)
        return judge_difference(found, sample.test()).note

    note = note_of(1)
    more = re.search(r"about ([\d,]+) more tests? would tell", note)
    if more is None:
        return  # it is decided, or no number of tests would decide it
    tests = len(UNDECIDED[name])
    assert "undecided" not in note_of(math.ceil(1 + int(more[1].replace(",", "")) / tests))


_CHECK = {"type": "python", "metric": "m"}


@pytest.mark.parametrize(
    ("check", "is_about_it"),
    [
        ({**_CHECK, "value": "file://check.py"}, True),
        ({**_CHECK, "value": "file://check.py:grade"}, True),
        ({**_CHECK, "value": "x", "transform": "file://check.py"}, True),
        ({**_CHECK, "value": "x", "config": {"rules": ["file://check.py"]}}, True),
        ({"type": "assert-set", "assert": [{**_CHECK, "value": "file://check.py"}]}, True),
        ({**_CHECK, "value": "file://other.py"}, False),
        ({**_CHECK, "value": "check.py"}, False),
    ],
)
@pytest.mark.parametrize("is_changed", [False, True])
def test_nothing_is_identical_whose_code_file_has_another_content(
    check: dict[str, Any], is_about_it: bool, is_changed: bool
) -> None:
    config = {"defaultTest": {"assert": [check]}}
    results = rated(3, "m", "n", details={"judge": "j", "rating_key": "k"})
    before = named("A", results, config=config, files={"check.py": "1", "gone.py": "1"})
    after = named("B", results, config=config, files={"check.py": "2" if is_changed else "1", "new.py": "1"})
    gate = parse_gate("m.delta >= 0 vs baseline proven", SourcePath.nowhere())
    assert isinstance(gate, Gate)
    baseline = Baseline("A", EarlierRun(before.report))
    (held,) = judge_differences([gate], baseline, results, after.report.run).values()
    found = compare(before, after, ComparisonOptions())
    is_same = not (is_about_it and is_changed)
    assert all(row.verdict == "identical" for row in found.rows) is is_same
    assert (held.status is Status.PASSED) is is_same
    assert found.changes == (("the content of check.py",) if is_changed else ())


@pytest.mark.parametrize("key", ["transform", "postprocess"])
@pytest.mark.parametrize(
    ("earlier", "later", "said"),
    [
        ("a", "a", ()),
        ("a", "b", ("the output transform of {}",)),
        (None, "b", ("the output transform of {}",)),
        ("a", None, ("the output transform of {}",)),
    ],
)
@pytest.mark.parametrize("is_for_all", [False, True])
def test_a_changed_output_transform_is_named(
    key: str, earlier: str | None, later: str | None, said: tuple[str, ...], is_for_all: bool
) -> None:
    def config(transform: str | None) -> dict[str, Any]:
        options = {} if transform is None else {"options": {key: transform}}
        if is_for_all and not options:
            return {}
        return {"defaultTest": options} if is_for_all else {"tests": [{"vars": {"x": 1}, **options}]}

    runs = [named(name, rated(6, "m"), config=config(item)) for name, item in (("A", earlier), ("B", later))]
    which = "all tests" if is_for_all else "1 test"
    assert compare(*runs, ComparisonOptions()).changes == tuple(text.format(which) for text in said)


def test_what_a_judge_was_asked_is_named_once() -> None:
    runs = [
        named(
            name,
            rated(6, "m", details={"judge": "j", "criterion_key": f"sha256:{name}", "criteria": name}),
            config={"defaultTest": {"assert": [{"type": "llm-rubric", "metric": "m", "value": name}]}},
        )
        for name in "AB"
    ]
    assert len(compare(*runs, ComparisonOptions()).changes) == 1


@pytest.mark.parametrize("status", [Status.ERROR, Status.NOT_EVALUATED])
@pytest.mark.parametrize("is_later", [False, True])
def test_tests_without_a_verdict_are_in_no_figure_and_say_nothing_of_the_config(
    status: Status, is_later: bool
) -> None:
    whole = rated(12, "m", details={"judge": "j", "rating_key": "k"})
    why = AssertionResult(NOT_ASKED, None, Status.NOT_EVALUATED, None)
    lacking = [
        replace(
            item,
            status=status,
            score=None,
            named_scores={},
            prompt=RenderedPrompt("p", "p", ""),
            assertions=() if status is Status.ERROR else (why,),
        )
        for item in whole[4:]
    ]
    some = [*whole[:4], *lacking]
    found = compared(whole, some) if is_later else compared(some, whole)
    assert (found.paired, found.changes) == (12, ())
    assert found.headline.endswith("in 4 tests")


@pytest.mark.parametrize("rare", [0, 1, 5, 30])
@pytest.mark.parametrize("change", [0.0, 0.01])
@pytest.mark.parametrize("margin", [None, 0.05])
def test_a_metric_of_few_tests_does_not_count_for_all(rare: int, change: float, margin: float | None) -> None:
    """The number of tests in the sentence is that of the pass rates, which every judged test is part of."""

    def cases(moved: float) -> list[CaseResult]:
        scores = [
            {"common": 0.8 + moved * (-1) ** test, **({"rare": 0.9} if test < rare else {})}
            for test in range(30)
        ]
        return [case(test, found) for test, found in enumerate(scores)]

    found = compared(cases(0.0), cases(change), ComparisonOptions(margins=margin and Margins(margin)))
    assert "30 tests" in found.headline, found.headline


@pytest.mark.parametrize("status", list(RunStatus))
@pytest.mark.parametrize("later", ["B", THIS_RUN, THIS_PULL_REQUEST])
@pytest.mark.parametrize("is_later", [False, True])
def test_tests_that_a_run_did_not_come_to_are_not_called_removed_or_added(
    status: RunStatus, later: str, is_later: bool
) -> None:
    cut = {"status": status}
    again = {"judged_from": "20260101-120000-0001"}
    a = named("A", rated(8 if is_later else 6, "m"), **({} if is_later else cut))
    b = named(later, rated(6 if is_later else 8, "m"), **(cut if is_later else {}))
    found = compare(a, b, ComparisonOptions())
    if status is RunStatus.COMPLETED:
        assert found.changes == (f"2 tests {'removed' if is_later else 'added'}",)
        assert found.warnings == ()
        sides = (
            (a, named(later, rated(6, "m"), **again)) if is_later else (named("A", rated(6, "m"), **again), b)
        )
        assert compare(*sides, ComparisonOptions()).changes == ()
        return
    name = later if is_later else "A" if later == "B" else "the baseline"
    assert found.changes == ()
    assert found.warnings[0].startswith(
        f"{name} {'is still' if status is RunStatus.RUNNING else 'was'} {status}"
    )


def test_thresholds_assertions_and_tests_that_changed_are_named() -> None:
    before = rated(8, "m")
    higher = [
        replace(item, assertions=tuple(replace(part, threshold=0.7) for part in item.assertions))
        for item in before
    ]
    assert compared(before, higher).changes == ("the threshold of m: 0.50 to 0.70",)
    more = [*rated(6, "m", "n"), *(case(test, {"m": 1.0, "n": 1.0}) for test in range(20, 23))]
    assert compared(before, more).changes == ("the assertions of 6 cases", "2 tests removed", "3 tests added")
    negated = [
        replace(item, assertions=tuple(replace(part, type=f"not-{part.type}") for part in item.assertions))
        for item in before
    ]
    assert compared(before, negated).changes == ("the assertions of 8 cases",)
