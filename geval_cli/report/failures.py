"""Every failure and error of a run in full: what was expected, what came, how the judge reached its score."""

import sys
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score
from geval_cli.patterns import compile_later
from geval_cli.records import AssertionResult, CaseResult, ErrorInfo, Status
from geval_cli.report.assertion_view import AssertionView
from geval_cli.report.console import print_hanging
from geval_cli.report.numbers import format_duration, plural
from geval_cli.report.report import RunReport, case_number, case_title
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.verdict import (
    case_verdict,
    column_title,
    signs_of,
)
from geval_cli.statistics.intervals import RunningMean

CASES_MAX = 20
VERBOSE_CASES_MAX = 500
_GROUPS_MAX = 200
_REST, _WHOLE = "others", "the test as a whole"
_REASON_COMPARED, _REASON_NAMED = 2_000, 160
_QUOTED = compile_later(r'"[^"]*"|`[^`]*`|\u201c[^\u201d]*\u201d')
_NUMBER = compile_later(r"\d+(?:[.,]\d+)*")
_NAMED_MAX = 12
_LABEL_WIDTH = len("output  ")
PROBLEMS = frozenset({Status.FAILED, Status.ERROR})
_PLURALS = {Status.FAILED: "failures", Status.ERROR: "errors"}
_USUAL_ENDS = frozenset({None, "stop", "end_turn", "stop_sequence", "eos", "tool_calls", "function_call"})
_OUT_OF_REACH = frozenset(
    {"ProviderAuthError", "ProviderRateLimitError", "ProviderTimeoutError", "ProviderUnavailableError"}
)
_UNUSUAL_ENDS = {
    "length": "a token limit cut the answer off",
    "max_tokens": "a token limit cut the answer off",
    "content_filter": "a content filter cut the answer off or replaced it",
}


class Shown(Struct, frozen=True):
    """How much of a case is shown: lines and characters of each text, and whether passed assertions are explained."""

    output_lines: int = 6
    output_characters: int = 1_200
    reason_lines: int = 20
    reason_characters: int = 4_000
    raw_lines: int = 4
    raw_characters: int = 600
    trace_lines: int = 8
    is_verbose: bool = False
    has_inputs: bool = False


IN_SHORT = Shown()
VERBOSE = Shown(is_verbose=True)
UNCUT = Shown(
    output_lines=sys.maxsize,
    output_characters=sys.maxsize,
    reason_lines=sys.maxsize,
    reason_characters=sys.maxsize,
    raw_lines=sys.maxsize,
    raw_characters=sys.maxsize,
    trace_lines=sys.maxsize,
    is_verbose=True,
    has_inputs=True,
)


class GroupBy(StrEnum):
    """The ways to bring failures together: by the assertion that fell short, or by the reason that it gave."""

    ASSERTION = "assertion"
    REASON = "reason"


class _Entry(Struct):
    """A case to show, and the later ones that broke in exactly the same way."""

    result: CaseResult
    same_count: int = 0
    same_numbers: list[str] = field(default_factory=list)

    def add_number(self, number: str) -> None:
        is_new = number != case_number(self.result) and number not in self.same_numbers
        if is_new and len(self.same_numbers) < _NAMED_MAX:
            self.same_numbers.append(number)


class FailureGroup(Struct):
    """The cases that fell short for one assertion or reason, with the first of them.

    Attributes:
        name: the metric or type of the assertion, or a reason.
        judged: results of this assertion with a verdict, of all cases; `failed` of them fell short.
        errored: those that could not be judged, or cases that could not be answered.
        cases: those that are put under this group: a case stands under the first that it belongs to.
        is_reason: whether it is named by a reason, which those that passed do not have.
    """

    name: str
    judged: int = 0
    failed: int = 0
    errored: int = 0
    cases: int = 0
    scores: RunningMean = field(default_factory=RunningMean)
    entries: list[_Entry] = field(default_factory=list)
    is_reason: bool = False

    def add(self, status: Status, score: float | None) -> None:
        """Count a result of this assertion."""
        self.judged += status in (Status.PASSED, Status.FAILED)
        self.failed += status is Status.FAILED
        self.errored += status is Status.ERROR
        if score is not None and status is not Status.ERROR:
            self.scores.add(score)

    @property
    def statuses(self) -> frozenset[Status]:
        """Return what became of its results, as far as these are problems."""
        counts = {Status.FAILED: self.failed, Status.ERROR: self.errored}
        return frozenset(status for status, count in counts.items() if count)

    def heading(self) -> str:
        """`41 of 60 fell short, 2 could not be judged, mean 0.41`."""
        if self.is_reason:
            return plural(self.failed + self.errored, "case")
        parts = [f"{self.failed:,} of {self.judged:,} fell short"] if self.judged else []
        if self.errored:
            parts.append(
                f"{self.errored:,} could not be judged" if self.judged else plural(self.errored, "error")
            )
        if self.scores.mean is not None:
            counted = "" if self.scores.n == self.judged else f" (n={self.scores.n:,})"
            parts.append(f"mean {format_score(self.scores.mean)}{counted}")
        return ", ".join(parts) + ("" if self.cases else "; in cases of other groups")


class Failures(Struct):
    """The cases to show, picked while the results of a run go by: failures and errors by group, at most 20.

    With `verbose` every case, at most 500, in the order of the tests. Cases that could not run or be judged for the
    same reason (a refused key, say) are shown once and counted.
    """

    verbose: bool = False
    by: GroupBy = GroupBy.ASSERTION
    wanted: frozenset[Status] = PROBLEMS
    total: int = 0
    _all: list[_Entry] = field(default_factory=list)
    _groups: dict[str, FailureGroup] = field(default_factory=dict)
    _by_error: dict[tuple[str, ...], _Entry] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Take in the next result."""
        own = self._count(result)
        if not (self.verbose or result.status in self.wanted):
            return
        self.total += 1
        if own is not None:
            own.cases += 1
        entries = self._all if self.verbose or own is None else own.entries
        key = _error_key(result)
        if key and key in self._by_error:
            twin = self._by_error[key]
            twin.same_count += 1
            twin.add_number(case_number(result))
        elif len(entries) < self._room():
            entries.append(_Entry(result))
            if key:
                self._by_error[key] = entries[-1]

    def _room(self) -> int:
        """Return how many cases are kept of a group: of many groups, only the first few of each can be shown."""
        return VERBOSE_CASES_MAX if self.verbose else max(1, CASES_MAX + 1 - len(self._groups))

    def groups(self) -> list[tuple[FailureGroup, list[_Entry]]]:
        """Return the groups, the largest first, each with the entries to show: the first of each, at most 20 in all."""
        kept = [group for group in self._groups.values() if self.wanted & group.statuses]
        found = sorted(kept, key=lambda group: (-group.cases, -group.failed, -group.errored))
        shown: list[list[_Entry]] = [[] for _ in found]
        for place in range(CASES_MAX):
            for group, entries in zip(found, shown, strict=True):
                if place < len(group.entries) and sum(map(len, shown)) < CASES_MAX:
                    entries.append(group.entries[place])
        return list(zip(found, shown, strict=True))

    @property
    def all_entries(self) -> list[_Entry]:
        """Return the entries in the order of the tests, with `verbose`."""
        return self._all

    def _count(self, result: CaseResult) -> FailureGroup | None:
        """Count the result in its groups; return the group that it is shown in, None for one that needs no group."""
        own: FailureGroup | None = None
        for name, status, score in _grouped_by(result, self.by):
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= _GROUPS_MAX:
                    group = self._groups.setdefault(_REST, FailureGroup(_REST))
                else:
                    group = self._groups[name] = FailureGroup(
                        name, is_reason=self.by is GroupBy.REASON or name == _WHOLE
                    )
            group.add(status, score)
            if own is None and status in PROBLEMS:
                own = group
        return own


def _grouped_by(result: CaseResult, by: GroupBy) -> Iterator[tuple[str, Status, float | None]]:
    """Yield the group of each thing that was judged of a result, its status and its score."""
    if result.error is not None:
        yield (
            result.error.type if by is GroupBy.ASSERTION else _normalised(result.error.message),
            Status.ERROR,
            None,
        )
    for item in result.assertions:
        if by is GroupBy.ASSERTION:
            yield item.metric or item.type, item.status, item.score
        elif item.status in PROBLEMS:
            why = item.error.message if item.error is not None else item.reason
            yield (
                f"{item.metric or item.type}: {_normalised(why or 'no reason given')}",
                item.status,
                item.score,
            )
    parts = (item.status for item in result.assertions)
    if result.status in PROBLEMS and result.error is None and PROBLEMS.isdisjoint(parts):
        yield _WHOLE, result.status, result.score  # its own threshold decides, or what is compared


def _normalised(reason: str) -> str:
    """Return a reason without what differs from case to case: quoted texts, numbers, upper case, space."""
    text = " ".join(reason[:_REASON_COMPARED].split()).casefold()
    return _NUMBER.sub("N", _QUOTED.sub('"..."', text))[:_REASON_NAMED].rstrip(" .:")


def print_failures(failures: Failures, report: RunReport, console: Console) -> None:
    """Print what `failures` took in, and say what was left out."""
    if not failures.total:
        return
    _print_rule("all results" if failures.verbose else _title(failures.wanted), console)
    printer = _CasePrinter(report, console, VERBOSE if failures.verbose else IN_SHORT)
    groups = [] if failures.verbose else failures.groups()
    for entry in failures.all_entries:
        printer.print_entry(entry)
    for group, entries in groups:
        if failures.total > 1:
            _print_group(group, console)
        for entry in entries:
            printer.print_entry(entry)
    shown = [*failures.all_entries, *(entry for _, entries in groups for entry in entries)]
    left_out = failures.total - sum(1 + entry.same_count for entry in shown)
    if left_out > 0:
        kind = "result" if failures.verbose else "failure or error"
        kinds = "results" if failures.verbose else "failures and errors"
        what = plural(left_out, f"more {kind}", f"more {kinds}")
        console.print(Text(f"\n {what} not shown; everything: {report.way_to_everything}", style="dim"))


def print_cases(
    results: Iterable[CaseResult], failures: Failures, report: RunReport, console: Console
) -> None:
    """Print what `failures` counted, then every one of `results` as it is, with nothing cut."""
    groups = [group for group, _ in failures.groups()]
    if groups:
        _print_rule(_title(failures.wanted), console)
        for group in groups:
            _print_group(group, console)
    _print_rule("results, in full", console)
    printer = _CasePrinter(report, console, UNCUT)
    for result in results:
        printer.print_entry(_Entry(result))


def _title(wanted: frozenset[Status]) -> str:
    return " and ".join(word for status, word in _PLURALS.items() if status in wanted)


def _print_rule(title: str, console: Console) -> None:
    console.print()
    console.rule(Text(title), characters="─" if console.is_terminal else "-", style="dim", align="left")


def _print_group(group: FailureGroup, console: Console) -> None:
    console.print()
    line = Text(f"{one_line(group.name, 200)}: ", style="bold").append(group.heading(), style="not bold")
    print_hanging(Text(), line, console, indent=1)


def _error_key(result: CaseResult) -> tuple[str, ...] | None:
    """Return the key of cases that broke for the same reason; None for one that is like no other."""
    if result.error is not None:
        return None if result.assertions else _spelled(result.provider.id, result.error)
    if result.status is not Status.ERROR or any(item.status is Status.FAILED for item in result.assertions):
        return None
    errors = [item.error for item in result.assertions if item.error is not None]
    # A judge that cannot be asked is one matter, whatever it would have judged; one that answers oddly is not.
    if not errors or not all(error.type in _OUT_OF_REACH for error in errors):
        return None
    return tuple(word for error in errors for word in _spelled("judge", error))


def _spelled(who: str, error: ErrorInfo) -> tuple[str, ...]:
    return who, error.type, error.message


class _CasePrinter:
    """Prints cases one after another, remembering which evaluation steps the reader has seen already."""

    def __init__(self, report: RunReport, console: Console, shown: Shown) -> None:
        self._console = console
        self._shown = shown
        self._signs = signs_of(console)
        self._columns = {column.index: column for column in report.columns}
        self._all_columns = report.columns
        self._seen_steps: dict[tuple[str, ...], str] = {}

    def print_entry(self, entry: _Entry) -> None:
        result = entry.result
        self._console.print()
        self._print_heading(result)
        if result.error is not None:
            self._print_error(result.error, indent=3)
        if entry.same_count:
            self._print_same(entry)
        if self._shown.has_inputs:
            self._print_inputs(result)
        if result.output is not None:
            text = value_text(result.output)
            limits = self._shown
            lines = clipped_lines(
                text, line_count=limits.output_lines, character_count=limits.output_characters
            )
            self._print_block("output", lines or ["(empty)"], indent=3)
        self._print_end(result.finish_reason)
        for assertion in result.assertions:
            self._print_assertion(assertion, result, indent=3)

    def _print_inputs(self, result: CaseResult) -> None:
        """Print what went in, and what is known about the call."""
        self._print_block("prompt", sanitized_lines(result.prompt.rendered), indent=3)
        for name, value in result.vars.items():
            self._print_block("var", sanitized_lines(f"{name} = {value_text(value)}"), indent=3)
        if result.metadata:
            self._print_block("about", [sanitize(value_text(dict(result.metadata)))], indent=3)
        parts = [sanitize(result.provider.label or result.provider.id), format_duration(result.latency_ms)]
        self._print_block(
            "by", [", ".join([*parts, *(["from the cache"] if result.cached else [])])], indent=3
        )

    def _print_end(self, finish_reason: str | None) -> None:
        if finish_reason in _USUAL_ENDS:
            return
        meaning = _UNUSUAL_ENDS.get(str(finish_reason), "the model ended its answer in an unusual way")
        text = f"{meaning} (finish reason: {one_line(str(finish_reason), 60)})"
        self._print_block("ended", [text], indent=3, style="yellow")

    def _print_heading(self, result: CaseResult) -> None:
        head = case_verdict(result, self._signs).append("  ")
        body = Text(case_number(result), style="bold")
        column = self._columns.get(result.column)
        if column is not None and len(self._all_columns) > 1:
            body.append(f"  [{column_title(column, self._all_columns, self._signs)}]", style="not bold cyan")
        body.append(f"  {case_title(result, 200)}", style="not bold")
        print_hanging(head, body, self._console, indent=1)

    def _print_assertion(self, assertion: AssertionResult, result: CaseResult, *, indent: int) -> None:
        is_problem = assertion.status in PROBLEMS
        view = AssertionView(assertion, self._signs)
        print_hanging(view.verdict(), view.heading(), self._console, indent=indent)
        if not is_problem and not self._shown.is_verbose:
            return
        inner = indent + 2
        verdicts = view.verdicts()
        if len(verdicts) == 1 or "judges" in assertion.detail:
            self._print_reason(assertion.reason or "", indent=inner)
        if assertion.error is not None:
            self._print_error(assertion.error, indent=inner)
        for position, part in enumerate(verdicts, start=1):
            if len(verdicts) > 1:
                of_whom = "judge" if "judges" in assertion.detail else "part"
                self._print_block(f"{of_whom} {position}", [part.title()], indent=inner)
                self._print_reason(part.reason(), indent=inner)
            for label, text in part.facts():
                self._print_block(label, [text], indent=inner, style="yellow" if label == "note" else "")
            name = f"{case_number(result)}, {sanitize(assertion.metric or assertion.type)}"
            self._print_steps(part.evaluation_steps(), name, indent=inner)
        if self._shown.has_inputs:
            for label, text in view.further():
                self._print_block(label, sanitized_lines(text), indent=inner, style="dim")
        for item in assertion.assertions:
            self._print_assertion(item, result, indent=inner)

    def _print_reason(self, reason: str, *, indent: int) -> None:
        limits = self._shown
        lines = clipped_lines(
            reason, line_count=limits.reason_lines, character_count=limits.reason_characters
        )
        self._print_block("reason", lines, indent=indent)

    def _print_steps(self, steps: tuple[str, ...], name: str, *, indent: int) -> None:
        if not steps:
            return
        if steps in self._seen_steps:
            self._print_block("steps", [f"the same as in {self._seen_steps[steps]}"], indent=indent)
            return
        self._seen_steps[steps] = name
        for number, step in enumerate(steps, start=1):
            head = _label("steps" if number == 1 else "").append(f"{number}. ")
            print_hanging(head, Text(step), self._console, indent=indent)

    def _print_error(self, error: ErrorInfo, *, indent: int) -> None:
        limits = self._shown
        lines, characters = max(10, limits.raw_lines), max(2_000, limits.raw_characters)
        message = clipped_lines(
            f"{error.type}: {error.message}", line_count=lines, character_count=characters
        )
        self._print_block("error", message, indent=indent, style="yellow")
        if error.hint:
            self._print_block(
                "hint", clipped_lines(error.hint, line_count=4, character_count=1_000), indent=indent
            )
        if error.raw and error.is_bug:
            self._print_block(
                "trace", sanitized_lines(error.raw)[-limits.trace_lines :], indent=indent, style="dim"
            )
        elif error.raw:
            raw = clipped_lines(error.raw, line_count=limits.raw_lines, character_count=limits.raw_characters)
            self._print_block("reply", raw, indent=indent, style="dim")

    def _print_same(self, entry: _Entry) -> None:
        names = ", ".join(entry.same_numbers)
        more = ", ..." if entry.same_count > len(entry.same_numbers) else ""
        text = f"the same in {plural(entry.same_count, 'more case')}"
        self._print_block("also", [f"{text}: {names}{more}" if names else text], indent=3)

    def _print_block(self, label: str, lines: list[str], *, indent: int, style: str = "") -> None:
        for position, line in enumerate(lines):
            head = _label(label if position == 0 else "")
            print_hanging(head, Text(line or " ", style=style), self._console, indent=indent)


def _label(text: str) -> Text:
    return Text(text.ljust(_LABEL_WIDTH - 1) + " ", style="dim")
