"""How verdicts look: marks, words and styles; and the tables of rankings and derived metrics."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.engine.columns import column_name
from geval_cli.numbers import (
    SCORE_ENDS,
    digits_beside,
    fixed,
    format_score,
    format_share,
    format_share_beside,
)
from geval_cli.records import (
    NO_ERRORS_NOTE,
    CaseResult,
    Column,
    GateResult,
    RankedColumn,
    RunRecord,
    RunStatus,
    RunSummary,
    Status,
)
from geval_cli.report.case_view import case_score, failed_assertions, failure_figure, has_fallback, is_split
from geval_cli.report.console import is_unicode, print_hanging, print_rows
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line
from geval_cli.suite.gates import EQUIVALENCE, GATE

STYLES = {
    Status.PASSED: "green",
    Status.FAILED: "bold red",
    Status.ERROR: "bold yellow",
    Status.NOT_EVALUATED: "dim",
}
DIFFERENCE_STYLES: Mapping[str, str] = {
    "better": "green",
    "worse": "bold red",
    "undecided": "dim",
    "equivalent": "cyan",
    "identical": "dim",
    "mixed": "yellow",
}
WORDS = {Status.PASSED: "PASS", Status.FAILED: "FAIL", Status.ERROR: "ERROR", Status.NOT_EVALUATED: "n/e"}
VERDICT_WIDTH = len("* PASS 0.9996 ~")
"""The width of a verdict in a table: mark, word, score and the mark of a fallback."""

_LABEL_MAX, _WHOLE_MAX = 60, 200
_NAME_MIN = 4
MANY_COLUMNS = 6
"""A run with more columns than this fills the screen with them, so its other lists are shortened."""
RANKING_HEADER = ("rating", "95 % interval", "won", "tied", "lost")
_RANKINGS_MAX = 12


def ranking_rows(entries: Sequence[RankedColumn]) -> Iterator[tuple[str, ...]]:
    """Yield the place and name of each ranked column, followed by the figures that `RANKING_HEADER` names."""
    for place, entry in enumerate(entries, start=1):
        counts = (f"{entry.wins:,}", f"{entry.ties:,}", f"{entry.losses:,}")
        if entry.rating is None:
            yield "", entry.label, "none", "", *counts
            continue
        bounds = (entry.low, entry.high)
        low, high = ("" if bound is None else f"{bound:.0f}" for bound in bounds)
        yield f"{place}", entry.label, f"{entry.rating:.0f}", f"{low} to {high}" if low else "", *counts


def ranking_note(summary: RunSummary, name: str) -> str:
    """Return the caveats of a ranking: that there is none, and how often the judge's choice held in both orders."""
    share = summary.order_consistency.get(name)
    entries = summary.rankings[name]
    notes = []
    if entries and entries[0].rating is None:
        notes.append("no ranking: the comparisons do not connect all columns")
    if share is not None:
        notes.append(f"the judge chose the same winner in both orders for {format_share(share)} of the pairs")
    return "; ".join(notes)


def rankings_shown(summary: RunSummary) -> list[tuple[str, tuple[RankedColumn, ...]]]:
    """Return the rankings to show to people, by metric; the JSON has all of them."""
    return list(summary.rankings.items())[:_RANKINGS_MAX]


def print_rankings(report: RunReport, console: Console) -> None:
    """Print the columns, best first, for each metric by which outputs were compared."""
    for name, entries in rankings_shown(report.summary):
        rows = ((place, one_line(label, 60), *figures) for place, label, *figures in ranking_rows(entries))
        print_rows(console, "rlRrRRR", ("", f"ranking: {one_line(name, 40)}", *RANKING_HEADER), rows)
        note = ranking_note(report.summary, name)
        if note:
            print_hanging(Text(), Text(note, style="dim"), console, indent=1)
        console.print()


DERIVED_HEADER = ("derived metric", "of", "value")
EVERYTHING = "all cases"
_OF_BASELINE = ("baseline", "proven")
_ROWS_MAX = 60


class Symbols(Struct, frozen=True):
    """The non-ASCII characters that reports use, or their stand-ins for streams that lack them."""

    marks: Mapping[Status, str]
    dot: str
    times: str


UNICODE_SIGNS = Symbols(
    MappingProxyType(
        {Status.PASSED: "✓", Status.FAILED: "✗", Status.ERROR: "!", Status.NOT_EVALUATED: "–"}  # noqa: RUF001
    ),
    dot="·",
    times="×",  # noqa: RUF001
)
_ASCII_SIGNS = Symbols(
    MappingProxyType({Status.PASSED: "+", Status.FAILED: "x", Status.ERROR: "!", Status.NOT_EVALUATED: "-"}),
    dot="|",
    times="x",
)


def signs_of(console: Console) -> Symbols:
    """Return the symbols that the console's stream can show."""
    return UNICODE_SIGNS if is_unicode(console) else _ASCII_SIGNS


def run_outcome(run: RunRecord, summary: RunSummary) -> tuple[str, Status | None]:
    """Return the verdict on a whole run in words, and the status it corresponds to (None for an unfinished run).

    If there are gates, they alone decide.
    """
    if run.status is not RunStatus.COMPLETED:
        return ("unfinished" if run.status is RunStatus.RUNNING else run.status.value), None
    gates = {gate.status for gate in summary.gates}
    if Status.FAILED in gates or (summary.failed and not gates):
        return "failed", Status.FAILED
    if Status.ERROR in gates or (summary.errored and not gates):
        return "not all judged", Status.ERROR
    if gates or summary.passed:
        return "passed", Status.PASSED
    return "ranked" if summary.rankings else "nothing evaluated", Status.NOT_EVALUATED


def with_signs(text: str, signs: Symbols) -> str:
    """Return a text that contains column names, with the symbols that the stream can show."""
    return text.replace(UNICODE_SIGNS.times, signs.times)


def verdict(
    status: Status, score: str | None, signs: Symbols, *, has_fallback: bool = False, is_split: bool = False
) -> Text:
    """Return `✓ PASS 0.87`, followed by `~` if a fallback estimator was used and by `/` if the judges are split."""
    words = f"{signs.marks[status]} {WORDS[status]}"
    if score is not None and status is not Status.ERROR:
        words += f" {score}"
    text = Text(words, style=STYLES[status], no_wrap=True)
    marks = f"{'~' if has_fallback else ''}{'/' if is_split else ''}"
    return text.append(f" {marks}", style="yellow") if marks else text


def case_verdict(result: CaseResult, signs: Symbols, *, has_marks: bool = True) -> Text:
    """Return the verdict on one case with its score, precise enough not to look equal to a threshold that it missed.

    With `has_marks`, it is marked if a judge fell back to another estimator or several judges disagree.
    """
    assertions = result.assertions if has_marks else ()
    marks = {"has_fallback": has_fallback(assertions), "is_split": is_split(assertions)}
    return verdict(result.status, case_score(result), signs, **marks)


def cell_verdict(result: CaseResult, signs: Symbols, width: int, *, has_marks: bool = True) -> Text:
    """Return the verdict on a case for a table cell: `✗ FAIL helpful 0.75` names the failed assertion and its score.

    The score of the whole case is shown beside a failure only if it decided: next to a name it would be read as the
    score of that assertion. `+1` counts the other assertions that failed.
    """
    failed = failed_assertions(result) if result.status is Status.FAILED else []
    if not failed:
        return case_verdict(result, signs, has_marks=has_marks)
    assertions = result.assertions if has_marks else ()
    marks = {"has_fallback": has_fallback(assertions), "is_split": is_split(assertions)}
    room = width - verdict(result.status, "", signs, **marks).cell_len
    name = failed[0].metric or failed[0].type
    figure = failure_figure(failed[0])
    tails = [f" {figure}"] if figure else []
    if more := len(failed) - 1:
        tails = [f"{tail} +{more}" for tail in (*tails, "")] + tails
    tail = next((tail for tail in tails if room - len(tail) >= min(cell_len(name), _NAME_MIN)), "")
    what = one_line(name, room - len(tail)) + tail if room - len(tail) > 0 else None
    return verdict(result.status, what, signs, **marks)


def column_title(column: Column, columns: tuple[Column, ...], signs: Symbols) -> str:
    """Return `prompt × provider`, or only the part that differs; equal titles get a number, `[2]`."""  # noqa: RUF002
    prompt, provider = (one_line(label, _LABEL_MAX) for label in (column.prompt_label, column.provider_label))
    if not prompt or (len({item.prompt_label for item in columns}) == 1 and provider):
        title = provider
    elif not provider or len({item.provider_label for item in columns}) == 1:
        title = prompt
    else:
        title = f"{prompt} {signs.times} {provider}"
    names = column.prompt_label, column.provider_label
    same = sum((item.prompt_label, item.provider_label) == names for item in columns)
    return f"{title} [{column.index + 1}]" if same > 1 else title


def whole_titles(columns: Iterable[Column]) -> dict[int, str]:
    """Return full column names by index, `prompt × provider`; equal names get a number, `[2]`."""  # noqa: RUF002
    titles = {}
    for column in columns:
        labels = (one_line(label, _WHOLE_MAX) for label in (column.prompt_label, column.provider_label))
        titles[column.index] = column_name(Column(column.index, *labels)) or "geval"
    counts = Counter(titles.values())
    return {
        index: f"{title} [{index + 1}]" if counts[title] > 1 else title for index, title in titles.items()
    }


def fitted_title(title: str, width: int, signs: Symbols) -> str:
    """Return a column's title cut to `width` cells; both parts of `prompt × provider` are kept."""  # noqa: RUF002
    prompt, times, provider = title.partition(f" {signs.times} ")
    if cell_len(title) <= width or not times:
        return one_line(title, width)
    room = width - cell_len(times)
    second = min(cell_len(provider), max(2 * room // 3, room - cell_len(prompt)))
    return f"{one_line(prompt, room - second)}{times}{one_line(provider, second)}"


def shown_gates(gates: Iterable[GateResult]) -> list[GateResult]:
    """Return the gates to show to people: all except the built-in gate on errors when it passed."""
    return [gate for gate in gates if not (gate.note == NO_ERRORS_NOTE and gate.status is Status.PASSED)]


def print_legend(titles: Sequence[str], console: Console) -> None:
    """Print the names of numbered columns, for a table that has no room for them."""
    for number, title in enumerate(titles, start=1):
        line = Text(f" [{number}] ", style="bold")
        console.print(line.append(one_line(title, console.width - line.cell_len), style="not bold"))
    console.print()


def gate_value(gate: GateResult) -> str:
    """Return the gate's actual value in the format of its limit."""
    if gate.actual is None:
        return "none"
    either_way = EQUIVALENCE.match(gate.gate)
    written = either_way or GATE.match(gate.gate)
    if written is None:
        return format_score(gate.actual)
    is_difference = gate.gate.rstrip().endswith(_OF_BASELINE)
    limit = float(written["limit"]) / (100 if written["percent"] else 1)
    if either_way:
        limit = math.copysign(limit, gate.actual)
    if gate.gate.startswith("latency."):
        return f"{gate.actual:,.{digits_beside(gate.actual, limit, 1)}f} ms"
    sign = "+" if is_difference and gate.actual > 0 else ""
    if written["percent"]:
        share = format_share_beside(gate.actual, limit)
        return f"{sign}{share.removesuffix(' %')} pts" if is_difference else share
    if gate.actual.is_integer() and "." not in written["limit"]:
        return f"{sign}{gate.actual:,.0f}"
    return f"{sign}{fixed(gate.actual, digits_beside(gate.actual, limit, 2, SCORE_ENDS))}"


def derived_rows(report: RunReport, titles: dict[int, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, column and value of each derived metric; `titles` are the titles of the columns by index."""
    summary, count = report.summary, 0
    for name, value in summary.derived.items():
        by_column = summary.derived_by_column.get(name, ()) if len(report.columns) > 1 else ()
        for index, own in enumerate(by_column):
            count += 1
            if count <= _ROWS_MAX:
                yield one_line(name, 60), titles.get(index, str(index + 1)), format_score(own)
        yield one_line(name, 60), EVERYTHING, format_score(value)


def print_derived(report: RunReport, console: Console) -> None:
    """Print the derived metrics, if there are any."""
    if not report.summary.derived:
        return
    signs = signs_of(console)
    titles = {column.index: column_title(column, report.columns, signs) for column in report.columns}
    print_rows(console, "llr", DERIVED_HEADER, derived_rows(report, titles))
    console.print()
