"""The comment on a pull request: changes against the baseline, worst changed outputs, cost.

Text from models and configs is always in code spans or blocks, so it cannot act as markup.
"""

import hashlib
import re
import textwrap
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from itertools import groupby

from geval_cli.engine.columns import column_name
from geval_cli.errors import UsageError
from geval_cli.extras.compare.comparison import (
    THIS_PULL_REQUEST,
    Change,
    NamedRun,
    Pair,
    RowWords,
    RunComparison,
    ScoredCase,
    compare_with_cases,
    headline,
    is_rate,
    place_of,
    turned_reason,
)
from geval_cli.extras.compare.matching import match_columns
from geval_cli.extras.pull_requests.markdown_file import MARKS, TEXT_MAX
from geval_cli.numbers import format_cost, format_duration, format_score, plural
from geval_cli.records import CaseResult, RunStatus, Status, Usage
from geval_cli.report.case_view import case_number, case_title, output_text
from geval_cli.report.columns import leader_text
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import (
    code_span,
    figures_in_markdown,
    longest_run,
    markdown_table,
    one_line,
    sanitized_lines,
)
from geval_cli.report.verdict import UNICODE_SIGNS, column_title, gate_value, run_outcome, shown_gates
from geval_cli.statistics.paired import DifferenceVerdict

WORST_SHOWN = 5
_COLUMNS_SHOWN, _GATES_SHOWN = 20, 10
_NAME_WIDTH, _TITLE_WIDTH, _REASON_WIDTH = 60, 120, 500
_LINE_WIDTH, _GROUP_LINES, _DIFF_CHARACTERS = 100, 8, 20_000
_SENTENCE_END = re.compile(r"(?<=[^\W\d]{2}[.!?])\s+|(?<=[。！？])")  # noqa: RUF001
_BROKEN = frozenset({Change.NEWLY_FAILED, Change.NEWLY_ERROR})
_LEAST_DROP = 0.1
"""A case with the same verdict counts as worse if its score fell by this much; less is often judge noise."""


def marker(name: str) -> str:
    """Return the first line of a comment: an HTML comment by which geval finds it again."""
    kept = re.sub("[^A-Za-z0-9._/ -]|--+", "_", name)[:200]
    if kept != name:  # different names must stay different
        kept += f" {hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"<!-- geval: {kept} -->"


def not_run_text(name: str, *, link: str = "") -> str:
    """Return the Markdown of a comment that says that `name` was not run; `link` is the address of the log.

    It replaces the comment on an earlier push, which would look like the result of this one.
    """
    where = f"[the log]({link})" if link else "the log"
    title = f"### {MARKS[Status.ERROR]} geval: {code_span(one_line(name, _TITLE_WIDTH))} was not run"
    return f"{marker(name)}\n{title}\n\nNothing was compared: {where} says why.\n"


def comment_text(
    report: RunReport, baseline: RunReport | None, *, name: str = "", base: str = "", link: str = ""
) -> str:
    """Return the Markdown of a comment, at most `TEXT_MAX` characters.

    Args:
        report: the run of the pull request.
        baseline: a run of the base branch; None leaves the comparison out.
        name: identifies the comment among others on the same pull request; "" for the config's path.
        base: name of the base branch; "" for the branch of the baseline run.
        link: URL of the full report; "" for none.
    """
    name = name or report.run.config_path
    outcome, status = run_outcome(report.run, report.summary)
    title = code_span(one_line(name, _TITLE_WIDTH))
    parts = [
        marker(name),
        f"### {'' if status is None else f'{MARKS[status]} '}geval: {title} {outcome}\n",
    ]
    changed: Sequence[Pair] = ()
    if baseline is None:
        columns = [column_title(column, report.columns, UNICODE_SIGNS) for column in report.columns]
        columns = [one_line(title, _NAME_WIDTH) for title in columns]
        said = leader_text(report.summary.columns, columns, code_span) if len(columns) > 1 else ""
        leader = f"{said}\n" if said else ""
        parts.append(leader)
    else:
        branch = base or (baseline.run.git.branch if baseline.run.git else None) or ""
        base = code_span(one_line(branch, _NAME_WIDTH)) if branch else "the baseline"
        try:
            found, pairs = compare_with_cases(
                NamedRun(branch or base, baseline), NamedRun(THIS_PULL_REQUEST, report)
            )
        except UsageError as error:
            why = code_span(one_line(error.message, _REASON_WIDTH))
            parts.append(f"Not compared with {base}: {why}\n")
        else:
            _, sentence = headline(
                found.rows, found.paired, found.overall, (base, THIS_PULL_REQUEST), code_span
            )
            told = [f"- {code_span(one_line(text, _REASON_WIDTH))}" for text in found.warnings]
            # No figure includes what is only on one side: a pull request may have removed what failed.
            if found.changes:
                told.append(f"- changed: {code_span(one_line('; '.join(found.changes), _REASON_WIDTH))}")
            match = match_columns(baseline.columns, report.columns)
            for where, alone in ((base, match.only_before), (THIS_PULL_REQUEST, match.only_after)):
                if alone:
                    names = one_line(", ".join(map(column_name, alone)), _REASON_WIDTH)
                    told.append(f"- {plural(len(alone), 'column')} only in {where}: {code_span(names)}")
            decision = "\n".join([f"**{sentence}**", "", *told]) + ("\n" if told else "")
            parts += [decision, _changes(found, base)]
            changed = pairs.pairs
    broken = [gate for gate in shown_gates(report.summary.gates) if gate.status is not Status.PASSED]
    lines = []
    for gate in broken[:_GATES_SHOWN]:
        note = f" ({code_span(one_line(gate.note, _REASON_WIDTH))})" if gate.note else ""
        said = f"gate {code_span(one_line(gate.gate, _TITLE_WIDTH))}: {figures_in_markdown(gate_value(gate))}{note}"
        lines.append(f"- {MARKS[gate.status]} {said}\n")
    if len(broken) > len(lines):
        lines.append(f"- and {plural(len(broken) - len(lines), 'more gate')}\n")
    gates = "".join(lines)
    parts += [_counts(report, baseline, base), gates]
    foot = f"\n<sub>run {code_span(one_line(report.run.id, _NAME_WIDTH))}"
    foot += f" · [full report]({link})" if link else ""
    foot += "</sub>\n"
    text = "\n".join(part for part in parts if part)
    room = TEXT_MAX - len(text) - len(foot)
    return text + ("" if baseline is None else _worst(changed, baseline, report, room)) + foot


def _changes(found: RunComparison, base: str) -> str:
    """Return a table with the pass rate of each column and every other figure that clearly changed."""
    several = len(found.columns) > 1
    rows = [row for row in found.rows if is_rate(row)]
    rows += [row for row in found.rows if not is_rate(row) and row.verdict.is_clear]
    rows.sort(key=lambda row: row.verdict is not DifferenceVerdict.WORSE)
    cells = []
    for row in rows[:_COLUMNS_SHOWN]:
        words = RowWords(row, found.detect)
        cells.append(
            (
                code_span(one_line(words.name, _TITLE_WIDTH)),
                *((code_span(one_line(row.column, _NAME_WIDTH)),) if several else ()),
                # Non-breaking spaces keep a number and its unit together in narrow columns.
                *(
                    text.replace(" ", "\u00a0")
                    for text in (words.before, words.after, words.change, words.interval)
                ),
                f"**{row.verdict.value}**" if row.verdict.is_clear else row.verdict.value,
            )
        )
    if not cells:
        return ""
    header = ("", *(("column",) if several else ()), base, "now")
    table = markdown_table((*header, "change", "95 % CI", "verdict"), cells, names=1 + several)
    more = len(rows) - len(cells)
    return f"{table}\n" + (f"and {plural(more, 'more row')}\n" if more else "")


def _counts(report: RunReport, baseline: RunReport | None, base: str) -> str:
    summary = report.summary
    told = [f"{summary.passed:,} passed", f"{summary.failed:,} failed"]
    told += [plural(summary.errored, "error")] if summary.errored else []
    told += [f"{summary.not_evaluated:,} not evaluated"] if summary.not_evaluated else []
    told.append(_cost(report))
    if baseline is not None:
        told[-1] += f" ({base}: {_cost(baseline)})"
    if report.run.duration_ms is not None:
        told.append(format_duration(report.run.duration_ms))
    if report.run.status is not RunStatus.COMPLETED:
        told.append(f"run {report.run.status.value}")
    return f"{' · '.join(told)}\n"


def _cost(report: RunReport) -> str:
    total = sum(report.summary.usage.values(), Usage())
    return "cost unknown" if total.cost_usd is None else format_cost(total.cost_usd)


def _worst(pairs: Sequence[Pair], baseline: RunReport, report: RunReport, room: int) -> str:
    """Return a collapsed section with the outputs that got worse, those newly failing first, then by score."""
    worse = [pair for pair in pairs if pair.change in _BROKEN or (pair.score_delta or 0.0) <= -_LEAST_DROP]
    if not worse:
        return ""
    worse.sort(key=lambda pair: (pair.change not in _BROKEN, pair.score_delta or 0.0))
    before = _results_at(baseline, [pair.before for pair in worse[:WORST_SHOWN]])
    after = _results_at(report, [pair.after for pair in worse[:WORST_SHOWN]])
    parts: list[str] = []
    for pair in worse[:WORST_SHOWN]:
        part = _changed_case(before[place_of(pair.before)], after[place_of(pair.after)], report)
        if sum(map(len, parts)) + len(part) > room:
            break
        parts.append(part)
    if not parts:
        return ""
    counted = "" if len(parts) == len(worse) else f" ({len(parts)} of {len(worse):,})"
    return f"\n<details><summary>Worst changes{counted}</summary>\n\n{''.join(parts)}</details>\n"


def _results_at(report: RunReport, cases: Sequence[ScoredCase]) -> dict[tuple[int, int, int], CaseResult]:
    places = set(map(place_of, cases))
    return {place_of(result): result for result in report.results() if place_of(result) in places}


def _changed_case(before: CaseResult, after: CaseResult, report: RunReport) -> str:
    """Return a changed case: its verdicts and scores, the reason, and the difference of its outputs."""
    title = f"**{case_number(after)}** {code_span(case_title(after, _TITLE_WIDTH))}"
    if len(report.columns) > 1:
        column = next(item for item in report.columns if item.index == after.column)
        title += f" {code_span(column_title(column, report.columns, UNICODE_SIGNS))}"
    said = f"{before.status.value} → {after.status.value}"
    if before.score is not None and after.score is not None:
        said += f", score {format_score(before.score)} → {format_score(after.score)}"
    if cause := turned_reason(before, after):
        said += f"; {code_span(one_line(': '.join(filter(None, cause)), _REASON_WIDTH))}"
    elif after.error is not None:
        said += f"; {code_span(one_line(after.error.message, _REASON_WIDTH))}"
    lines = [f"{title}  ", f"{said}\n"]
    old, new = output_text(before), output_text(after)
    if old == new:
        lines.append("The output is the same.\n")
    else:
        shown = list(_difference(old, new))
        fence = "`" * max(3, longest_run("\n".join(shown)) + 1)
        lines += [f"{fence}diff", *shown, f"{fence}\n"]
    return "\n".join(lines) + "\n"


def _difference(old: str, new: str) -> Iterator[str]:
    """Yield the lines of a diff of sentences, so that a one-line paragraph does not change as a whole."""
    before, after = ([*_sentences(text[:_DIFF_CHARACTERS])] for text in (old, new))
    changed = [*unified_diff(before, after, lineterm="", n=1)][
        3:
    ]  # without the file names and the first hunk header
    for sign, group in groupby(changed, lambda line: line[:1]):
        lines = list(group)
        if sign == "@":
            yield " ..."
            continue
        yield from lines[:_GROUP_LINES]
        if len(lines) > _GROUP_LINES:
            yield f"{sign}... {plural(len(lines) - _GROUP_LINES, 'more line')}"
    if max(len(old), len(new)) > _DIFF_CHARACTERS:
        yield f"# only the first {_DIFF_CHARACTERS:,} characters are compared"


def _sentences(text: str) -> Iterator[str]:
    for line in sanitized_lines(text):
        for sentence in _SENTENCE_END.split(line):
            yield from textwrap.wrap(sentence, _LINE_WIDTH) or ([""] if not line else [])
