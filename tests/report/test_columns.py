# ruff: noqa: RUF001 - names of columns have the sign of multiplication

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from support.realistic_runs import Shape, realistic_report
from support.sample_columns import COLUMNS, FIGURES, comparison, difference, report_of
from support.sample_run import SUMMARY, TerminalStream, console_of, make_report

from geval_cli.numbers import format_share
from geval_cli.records import (
    Column,
    ColumnComparison,
    ColumnSummary,
    Delta,
    Difference,
    MetricStat,
    RunSummary,
    Stat,
)
from geval_cli.report.columns import leader_text, leading, print_columns, share_text, verdict_text
from geval_cli.report.report import RunReport, write_results_file

Check = Callable[[str, str], None]


def printed(
    width: int, *, stream: io.StringIO | None = None, report: RunReport | None = None, **environ: str
) -> str:
    stream = stream or io.StringIO()
    print_columns(report or report_of(), console_of(stream, width, **environ))
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_columns_side_by_side_in_a_pipe(width: int, check_expected: Check) -> None:
    check_expected(f"columns.{width}.txt", printed(width, NO_COLOR="1"))


def test_columns_on_a_terminal_in_colour(check_expected: Check) -> None:
    check_expected("columns.80.ansi", printed(80, stream=TerminalStream()))


def test_columns_in_markdown(tmp_path: Path, check_expected: Check) -> None:
    write_results_file(tmp_path / "run.md", report_of())
    check_expected("columns.md", (tmp_path / "run.md").read_text("utf-8").partition("## Errors")[0])


@pytest.mark.parametrize("width", range(30, 240, 6))
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_torn(width: int) -> None:
    lines = printed(width).splitlines()

    assert max(map(cell_len, lines)) <= width
    for column in FIGURES:
        shown = {share_text(column.pass_rate), format_share(column.pass_rate.value or 0)}
        assert any(text in line for line in lines for text in shown)


def test_the_best_column_is_first_and_a_lead_that_is_shown_has_a_star() -> None:
    text = printed(200, report=report_of(FIGURES[:4]))
    rows = [
        " ".join(line.split("  ")[:2]).strip()
        for line in text.splitlines()
        if " % [" in line and line.startswith((" ★", "   "))
    ]

    assert rows == [
        "★ brief × claude-haiku",
        "thorough × gpt-4o-mini",
        "polite × gpt-4o-mini",
        "brief × gpt-4o-mini",
    ]
    assert "brief × claude-haiku is better than the baseline brief × gpt-4o-mini: +24 points" in text
    assert "also better: thorough × gpt-4o-mini" in text


def rated(*shares: float | None, verdicts: Sequence[str | None]) -> tuple[ColumnSummary, ...]:
    """Return columns with these pass rates; the first is the baseline, whose verdict is None."""
    return tuple(
        replace(
            FIGURES[index],
            pass_rate=Stat(share, None, 20, 20),
            metrics={},
            vs_first=None
            if index == 0
            else ColumnComparison(
                "a", difference((share or 0) - (shares[0] or 0), verdict or "undecided", 0.5)
            ),
        )
        for index, (share, verdict) in enumerate(zip(shares, verdicts, strict=True))
    )


@pytest.mark.parametrize(
    ("shares", "verdicts", "sentence"),
    [
        ((0.5, 0.9), (None, "better"), "b is better than the baseline a: +40 points in pass rate"),
        ((0.5, 0.9, 0.9), (None, "better", "better"), "b and c are better than the baseline a: +40 points"),
        ((0.5, 0.9, 0.8), (None, "better", "better"), "(95 % CI +29 to +51); also better: c"),
        (
            (0.9, 0.5),
            (None, "worse"),
            "no column has a higher pass rate than the baseline a (90 %); worse: b",
        ),
        ((0.9, 0.8), (None, "undecided"), "no column has a higher pass rate than the baseline a (90 %)"),
        (
            (0.5, 0.6),
            (None, "undecided"),
            "no clear winner: b has the highest pass rate (60 %; the baseline a: 50 %)",
        ),
        (
            (0.5, 0.6, 0.6),
            (None, "undecided", "undecided"),
            "no clear winner: b and c have the highest pass rate",
        ),
        ((0.5, 0.5), (None, "identical"), "no difference: every column passes 50 %"),
        ((0.5, 0.5), (None, "undecided"), "no clear difference: every column passes 50 %"),
        ((2 / 3, 2 / 3 - 1e-16), (None, "undecided"), "no clear difference: every column passes 67 %"),
        ((0.45, 0.975), (None, "better"), "b is better than the baseline a: +53 points"),
        (
            (0.5, 0.9, 0.8),
            (None, "undecided", "better"),
            "b has the highest pass rate (90 %; the baseline a: 50 %); better than",
        ),
        (
            (0.5, 0.6, 0.2),
            (None, "undecided", "worse"),
            "b has the highest pass rate (60 %; the baseline a: 50 %); worse: c",
        ),
        ((None, 0.5), (None, "undecided"), ""),
        ((None, None), (None, "undecided"), ""),
    ],
)
def test_one_sentence_says_who_wins_and_how_sure_that_is(
    shares: tuple[float | None, ...], verdicts: tuple[str | None, ...], sentence: str
) -> None:
    said = leader_text(rated(*shares, verdicts=verdicts), list("abc")[: len(shares)])

    assert sentence in said
    assert bool(said) == bool(sentence)


def compared(rate: float | None, found: Difference | None, **metrics: str) -> ColumnSummary:
    """Return a column of 20 tests, compared with the baseline by its pass rate and by metrics with these verdicts."""
    rows = {name: difference(0.1, verdict, 0.5) for name, verdict in metrics.items()}
    return replace(
        FIGURES[1],
        pass_rate=Stat(rate, None, 20, 20),
        metrics={},
        vs_first=ColumnComparison("a", found, rows),
    )


def of_tests(count: int, verdict: str | None, value: float, least: int | None = None) -> Difference:
    return Difference(Delta(value, None, count, count, least_tests=least), verdict)


BASE = replace(FIGURES[0], pass_rate=Stat(0.3, None, 20, 20), metrics={})
BEST, UNRATED = replace(BASE, pass_rate=Stat(1.0, None, 20, 20)), replace(BASE, pass_rate=Stat())


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            (BASE, compared(0.9, of_tests(14, "better", 0.86))),
            "+86 points in pass rate in the 14 tests judged in both",
        ),
        ((BASE, compared(0.9, of_tests(20, "better", 0.6))), "+60 points in pass rate"),
        (
            (BASE, compared(0.9, of_tests(20, "better", 0.6), tone="worse")),
            "+60 points in pass rate; b is worse in tone",
        ),
        (
            (BASE, compared(0.9, None)),
            "b has the highest pass rate (90 %), but shares no judged test with the baseline a",
        ),
        (
            (BEST, compared(0.9, None)),
            "a has the highest pass rate (100 %), but no other column shares a judged test with it",
        ),
        (
            (BEST, compared(0.9, of_tests(20, "undecided", -0.1), tone="better")),
            "no column has a higher pass rate than the baseline a (100 %); b is better in tone",
        ),
        ((BEST, compared(0.0, of_tests(1, None, -1.0))), "(100 %); one test can show no difference"),
        (
            (BEST, compared(0.0, of_tests(5, "undecided", -1.0, 6))),
            "(100 %); it takes at least 6 tests to show a difference",
        ),
        ((UNRATED, compared(None, None, tone="better")), "compared with the baseline a: b is better in tone"),
        (
            (UNRATED, compared(None, None, tone="undecided")),
            "no metric of any column is shown to differ from the baseline a",
        ),
        ((UNRATED, compared(0.9, None)), ""),
        ((BASE, compared(0.3, None), UNRATED), "every judged column passes 30 %"),
    ],
)
def test_the_sentence_claims_no_more_than_what_both_columns_were_tested_on(
    columns: tuple[ColumnSummary, ...], said: str
) -> None:
    sentence = leader_text(columns, list("abc")[: len(columns)])

    assert sentence.endswith(said)
    assert bool(sentence) == bool(said)


@pytest.mark.parametrize(
    ("stat", "text"),
    [
        (Stat(0.0, (0.0, 0.0019), 2_000, 2_000), "0 % [0-0.2]"),
        (Stat(1.0, (0.9981, 1.0), 2_000, 2_000), "100 % [99.8-100]"),
        (Stat(0.5, (0.003, 0.997), 2, 2), "50 % [0-100]"),
        (Stat(0.625, (0.275, 0.885), 8, 8), "63 % [28-89]"),
    ],
)
def test_a_rounded_interval_never_looks_like_certainty(stat: Stat, text: str) -> None:
    column = replace(FIGURES[0], pass_rate=stat)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_columns(report_of((column, FIGURES[1])), console_of(stream, 120))  # type: ignore[arg-type]
    stream.flush()

    assert text in stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


def test_equal_in_the_few_tests_of_both_is_said_so() -> None:
    report = report_of((BASE, compared(1.0, of_tests(2, "identical", 0.0))))

    assert "same in 2 tests" in printed(120, report=report)


def test_one_column_has_no_table_of_columns() -> None:
    assert printed(200, report=report_of(FIGURES[:1])) == ""


def test_columns_of_a_run_under_way_are_not_there_yet() -> None:
    assert printed(200, report=report_of(())) == ""


def test_a_run_without_cases_has_no_table() -> None:
    report = make_report(columns=COLUMNS, summary=RunSummary(columns=FIGURES))
    assert printed(200, report=report) == ""


def test_labels_and_metrics_cannot_act_on_the_terminal() -> None:
    evil = "\x1b[31mred\u202e\n| `x` <b>"
    columns = tuple(
        replace(
            column,
            metrics={evil: MetricStat(0.5, None, 1, 1)},
            vs_first=ColumnComparison(evil, None, {evil: difference(0.5, "better", 0.01)}) if index else None,
        )
        for index, column in enumerate(FIGURES[:2])
    )
    run_columns = (Column(0, evil, "m"), Column(1, "other", "m"))
    report = make_report(columns=run_columns, summary=replace(SUMMARY, columns=columns))
    for width in (30, 80, 200):
        text = printed(width, report=report)
        assert re.search("[\x1b\u202e]", text) is None
        assert "red" in text


def test_what_a_stream_cannot_show_is_written_otherwise() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_columns(report_of(), console_of(stream, 120))  # type: ignore[arg-type]
    stream.flush()
    text = stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]

    assert "brief x gpt-4o-mini" in text


@pytest.mark.parametrize(
    ("stat", "text"),
    [
        (Stat(), "none"),
        (Stat(0.5, None, 1, 1), "50 %"),
        (Stat(1.0, (0.8059, 1.0), 16, 16), "100 % [81–100]"),
        (Stat(0.998, (0.991, 0.9996), 500, 500), "99.8 % [99–100]"),
        (Stat(0.001, (0.0002, 0.006), 900, 900), "0.1 % [0–1]"),
    ],
)
def test_shares_never_look_like_all_or_nothing(stat: Stat, text: str) -> None:
    assert share_text(stat) == text


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (FIGURES[0], "baseline"),
        (FIGURES[2], "better: pass rate; worse: clarity"),
        (FIGURES[5], "no test in both"),
        (
            replace(
                FIGURES[1], vs_first=comparison(difference(0, "identical", 1), difference(0, "identical", 1))
            ),
            "same",
        ),
        (
            replace(FIGURES[1], vs_first=ColumnComparison("b", Difference(Delta(1.0, None, 1, 1), None))),
            "one test",
        ),
    ],
)
def test_verdicts_on_columns(column: ColumnSummary, text: str) -> None:
    assert verdict_text(column) == text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_long_names_of_columns_keep_the_beginnings_of_prompt_and_model(width: int) -> None:
    stream = io.StringIO()
    print_columns(realistic_report(Shape(tests=4)), console_of(stream, width))
    rows = stream.getvalue().partition("vs baseline")[2].partition("\n\n")[0].splitlines()[2:]
    names = [row.partition("   ")[2].partition("   ")[0] for row in rows]
    assert len(set(names)) == 9
    assert all(
        any(name.startswith(prompt) for prompt in ("short ×", "friend", "with s"))
        and any(model in name for model in ("× gpt-4.1-mini", "× claude-haiku", "× mistral 7B"))
        for name in names
    ), names


def test_names_that_would_be_cut_to_the_same_text_are_numbers() -> None:
    stream = io.StringIO()
    print_columns(realistic_report(Shape(tests=4)), console_of(stream, 60))
    table = stream.getvalue().partition("vs [")[2]
    assert [f"[{number}] " in table for number in range(1, 10)] == [True] * 9
    assert "…" not in table.partition("\n\n")[0]


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        # passed, failed and errored of each column, the baseline first
        (((0, 3, 9), (0, 3, 9)), "can't compare: 18 of 24 cases could not be judged"),
        (((12, 0, 0), (0, 0, 12)), "can't compare: 12 of 24 cases could not be judged"),
        (((5, 1, 6), (3, 3, 6)), None),
        (
            ((5, 0, 7), (3, 3, 0), (6, 0, 0)),
            "can't compare: 7 of 12 cases of the baseline a could not be judged",
        ),
        (((3, 3, 0), (3, 3, 0), (2, 0, 10)), "every judged column passes 50 %"),
        (((0, 0, 0), (3, 3, 0)), None),
    ],
)
def test_columns_of_which_most_cases_are_errors_are_not_compared(
    counts: tuple[tuple[int, int, int], ...], said: str | None
) -> None:
    columns = []
    for number, (passed, failed, errored) in enumerate(counts):
        judged = passed + failed
        rate = Stat(passed / judged if judged else None, None, judged, judged)
        against = None if number == 0 else compared(0.5, of_tests(6, "undecided", 0.0)).vs_first
        columns.append(
            ColumnSummary("p", "m", "p", passed, failed, errored, pass_rate=rate, vs_first=against)
        )
    text = leader_text(columns, "abc"[: len(columns)])
    assert said in text if said else "can't compare" not in text
    assert not any(2 * sum(counts[place][2:]) > sum(counts[place]) for place in leading(columns))


def test_every_metric_without_a_place_is_named_or_counted() -> None:
    def line(count: int) -> str:
        metrics = {f"m{number:02}": FIGURES[0].metrics["clarity"] for number in range(count)}
        columns = tuple(replace(column, metrics=metrics) for column in FIGURES)
        text = " ".join(printed(200, report=report_of(columns)).split())
        return text.partition("also measured, see -v: ")[2].partition(" pass rate if")[0]

    assert line(7).startswith("m06")
    assert line(20).startswith("m06, m07, m08, m09, m10, m11, m12, m13, 6 more")
