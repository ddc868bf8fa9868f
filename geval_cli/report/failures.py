"""The failed tests of a run on a terminal, worst first, with those that failed for the same reason together."""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score, plural
from geval_cli.patterns import compile_later
from geval_cli.records import INTERNAL_ERROR, CaseResult, Status
from geval_cli.report.case_view import (
    case_number,
    case_title,
    errors_of,
    failed_assertions,
    failure_text,
    margin_below,
    output_text,
    whole_reason,
)
from geval_cli.report.console import print_hanging
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import MANY_COLUMNS, STYLES, column_title, signs_of

WHOLE = "the test as a whole"
_REASON_COMPARED, _REASON_NAMED = 2_000, 160
_QUOTED = compile_later(r'"[^"]*"|`[^`]*`|\u201c[^\u201d]*\u201d')
_NUMBER = compile_later(r"\d+(?:[.,]\d+)*")
GROUPS_MAX = 200
NUMBERS_SHOWN = 5


class GroupBy(StrEnum):
    """How failures are grouped: by the assertion that failed, or by the reason that it gave."""

    ASSERTION = "assertion"
    REASON = "reason"


def normalised(reason: str) -> str:
    """Return a reason without what differs from case to case: quoted text, numbers, letter case, white space."""
    text = " ".join(reason[:_REASON_COMPARED].split()).casefold()
    return _NUMBER.sub("N", _QUOTED.sub('"..."', text))[:_REASON_NAMED].rstrip(" .:")


_LINES_SHOWN, _LINES_IN_FULL, _OUTPUTS_ON_TWO_LINES, _ERRORS_SHOWN = 10, 4, 2, 5
_GROUPED_FROM = 3
"""This many tests that fail for the same reason share one line."""
_KEPT_MAX, _KEPT_OF_A_GROUP = 1_000, 10
_RAW_SHOWN, _RAW_INDENT = 2, 16
_WHERE_MAX, _WHAT_MAX, _REASON_MIN = 36, 34, 16
_ASSERTIONS_KEPT = 8
_WIDE = 120


class FailedAssertion(Struct, frozen=True):
    """A failed assertion: its name, `scored` (`0.25 < 0.60`; "" without a score), its reason and its location."""

    name: str
    scored: str
    reason: str
    location: str | None


class FailedTest(Struct):
    """A test with the columns and repeats in which the same assertions failed: one line of the list.

    `failed` are these assertions, worst first, in the case where one is furthest below its threshold, by `margin` (1
    without a score); `output` is from that case, too.
    """

    index: int
    number: str
    title: str
    columns: set[int]
    names: tuple[str, ...]
    failed: list[FailedAssertion]
    margin: float
    output: str
    cases: int = 1

    @property
    def reason(self) -> str:
        """The first reason that its failed assertions give, worst first; "" if none gives one."""
        return next((item.reason for item in self.failed if item.reason), "")


class SameReason(Struct):
    """The tests that failed for one reason; only the first are kept, and `columns` counts all of them by column."""

    tests: list[FailedTest] = field(default_factory=list)
    count: int = 0
    cases: int = 0
    margin: float = 0.0
    columns: dict[int, int] = field(default_factory=dict)

    def add(self, test: FailedTest) -> None:
        self.count += 1
        self.cases += test.cases
        self.margin = max(self.margin, test.margin)
        for column in test.columns:
            self.columns[column] = self.columns.get(column, 0) + 1
        if len(self.tests) < _KEPT_OF_A_GROUP:
            self.tests.append(test)

    def lines(self) -> Iterator["SameReason"]:
        """Yield the groups that get a line of their own: this one if it has enough tests, else one group per test."""
        if self.count >= _GROUPED_FROM:
            yield self
            return
        for test in self.tests:
            alone = SameReason()
            alone.add(test)
            yield alone


class _ErrorKind(Struct):
    message: str
    hint: str
    raw: str
    count: int = 0
    numbers: list[str] = field(default_factory=list)
    has_more: bool = False


class FailedTests(Struct):
    """The failures and errors of a run, collected from results in test order.

    Cases of a test in which the same assertions failed share a line; many tests with the same reason share one, too.
    """

    failed: int = 0
    errored: int = 0
    total: int = 0
    tests: int = 0
    repeats: int = 1
    counts: dict[str, int] = field(default_factory=dict)
    _errors: dict[str, _ErrorKind] = field(default_factory=dict)
    _reasons: dict[tuple[tuple[str, ...], str], SameReason] = field(default_factory=dict)
    _open: dict[tuple[str, ...], FailedTest] = field(default_factory=dict)
    _index: int = -1

    def add(self, result: CaseResult) -> None:
        """Add the next result."""
        self.total += 1
        self.tests += result.test_index != self._index
        self._index = result.test_index
        self.repeats = max(self.repeats, result.repeat_index + 1)
        if result.status is Status.ERROR:
            self.errored += 1
            self._add_error(result)
        elif result.status is Status.FAILED:
            self.failed += 1
            new = _failed_test(result)
            for name in dict.fromkeys((*(item.name for item in new.failed), *new.names)):
                if name in self.counts or len(self.counts) < GROUPS_MAX:
                    self.counts[name] = self.counts.get(name, 0) + 1
            self._add_failed(new)

    def _add_error(self, result: CaseResult) -> None:
        error = next(errors_of(result), None)
        if error is None:
            return
        key = normalised(error.message)
        kind = self._errors.get(key)
        if kind is None:
            if len(self._errors) >= GROUPS_MAX:
                return
            # The traceback of a bug is not a reply, and on one line it says nothing.
            said = "" if error.type == INTERNAL_ERROR else error.raw or ""
            raw = one_line(said[:_REASON_COMPARED], 300)
            kind = self._errors[key] = _ErrorKind(error.message, error.hint, raw)
        kind.count += 1
        number = case_number(result)
        if number not in kind.numbers:
            if len(kind.numbers) < NUMBERS_SHOWN:
                kind.numbers.append(number)
            else:
                kind.has_more = True

    @property
    def worst(self) -> str:
        """The number of the test to look at first: the worst failure, else the first error; "" if there is neither."""
        if lines := self.lines():
            return lines[0].tests[0].number
        return next((kind.numbers[0] for kind in self._errors.values() if kind.numbers), "")

    def _add_failed(self, new: FailedTest) -> None:
        if any(test.index != new.index for test in self._open.values()):
            self._end_test()
        last = self._open.get(new.names)
        if last is None:
            self._open[new.names] = new
            return
        worse, other = (new, last) if new.margin > last.margin else (last, new)
        worse.columns |= other.columns
        worse.cases = last.cases + 1
        self._open[new.names] = worse

    def _end_test(self) -> None:
        tests, self._open = self._open, {}
        for test in tests.values():
            key = (test.names, normalised(test.reason) or test.number)
            self._reasons.setdefault(key, SameReason()).add(test)
        if len(self._reasons) > 2 * _KEPT_MAX:
            worst_first = sorted(self._reasons.items(), key=lambda item: _severity_of(item[1]), reverse=True)
            self._reasons = dict(worst_first[:_KEPT_MAX])

    def lines(self) -> list[SameReason]:
        """Return the groups that get a line of their own, worst first."""
        self._end_test()
        lines = [line for group in self._reasons.values() for line in group.lines()]
        return sorted(lines, key=_severity_of, reverse=True)

    def print(self, report: RunReport, console: Console, show: str) -> None:
        """Print the failures, worst first, one line each; `show` is the command that shows the rest."""
        if not self.failed:
            return
        counted = sorted(self.counts.items(), key=lambda item: -item[1])
        parts = [f"{name} {count:,}" for name, count in counted[:6]]
        head = Text(f"{self.failed:,} of {self.total:,} failed", style="bold red")
        print_hanging(head.append("   "), Text(f" {signs_of(console).dot} ".join(parts)), console, indent=1)
        groups = self.lines()
        shown = groups[: _LINES_SHOWN if len(report.columns) <= MANY_COLUMNS else _LINES_SHOWN // 2]
        self._print_lines(shown, report, console)
        rest = self.failed - sum(group.cases for group in shown)
        if rest:
            more = plural(rest, "more case")
            console.print(Text(f"  ... {more}{f': {show} --failed' if show else ''}", style="dim"))
        console.print()

    def print_errors(self, report: RunReport, console: Console, show: str) -> None:
        """Print the errors by what went wrong, most frequent first; nothing if there are none."""
        if not self.errored:
            return
        console.print(Text(f" {plural(self.errored, 'error')}", style=STYLES[Status.ERROR]))
        kinds = sorted(self._errors.values(), key=lambda kind: (-kind.count, kind.hint))
        hint = ""
        is_crowded = len(report.columns) > MANY_COLUMNS
        most = _ERRORS_SHOWN // 2 if is_crowded else _ERRORS_SHOWN
        for kind in kinds[:most]:
            some = ", ".join(kind.numbers) + (", ..." if kind.has_more else "")
            room = 300
            if is_crowded:
                some = kind.numbers[0] + (", ..." if kind.has_more or len(kind.numbers) > 1 else "")
                room = console.width - cell_len(f"   {kind.count:,} x   {some}") - 1
            text = Text(one_line(kind.message, room)).append(f"  {some}", style="dim")
            print_hanging(Text(f"{kind.count:,} {signs_of(console).times} "), text, console, indent=2)
            if kind.raw and len(kinds) <= _RAW_SHOWN:
                raw = one_line(kind.raw, 2 * (console.width - _RAW_INDENT))
                print_hanging(Text("reply: ", style="dim"), Text(raw), console, indent=6)
            if kind.hint and kind.hint != hint and not (is_crowded and hint and len(kinds) > most):
                hint = kind.hint
                print_hanging(
                    Text("hint: ", style="dim"),
                    Text(one_line(kind.hint, 300), style="dim"),
                    console,
                    indent=6,
                )
        if len(kinds) > most:
            more = plural(len(kinds) - most, "more kind")
            console.print(Text(f"  ... {more}{f': {show} --errors' if show else ''}", style="dim"))
        console.print()

    def _print_lines(self, groups: list[SameReason], report: RunReport, console: Console) -> None:
        width = console.width - 1
        titles = [column_title(column, report.columns, signs_of(console)) for column in report.columns]
        heads = [
            (group.tests[0].number, group.tests[0].title)
            if group.count == 1
            else (group.tests[0].number, f"and {group.count - 1:,} more")
            for group in groups
        ]
        wheres = [_where(group, report, titles, is_wide=width >= _WIDE) for group in groups]
        whats = [_what(group.tests[0], max(_WHAT_MAX, width // 3)) for group in groups]
        number = max(len(head[0]) for head in heads)
        where = min(max(map(cell_len, wheres)), _WHERE_MAX)
        what = max(map(cell_len, whats))
        gaps = 2 + 2 + 2 + (2 if where else 0)
        title = min(max(cell_len(head[1]) for head in heads), max(width // 4, 16))
        is_short = len(groups) > _LINES_IN_FULL
        if not is_short:
            title = max(cell_len(head[1]) for head in heads)
        left = width - number - where - what - gaps - title - (0 if is_short else -_REASON_MIN)
        if left < _REASON_MIN:
            title = max(12, title + left - _REASON_MIN)
            left = width - number - where - what - gaps - title
        if left < 0:  # what failed matters more than where
            where = 0
        for group, head, at, failed in zip(groups, heads, wheres, whats, strict=True):
            line = Text(f"  {head[0]:<{number}}  ", style="bold")
            line.append(_padded(head[1], title), style="not bold")
            if where:
                line.append(f"  {_padded(at, where)}", style="not bold dim")
            line.append(f"  {_padded(failed, what)}", style="not bold red")
            test = group.tests[0]
            if is_short and left >= _REASON_MIN // 2:
                line.append(f"  {one_line(test.reason, left - 2)}", style="not bold")
            line.truncate(width)
            line.rstrip()
            console.print(line, no_wrap=True, overflow="ignore", crop=False)
            if is_short:
                continue
            told = [("output", test.output)]
            for item in test.failed:
                scored = "" if item.scored in failed else f" {item.scored}"
                whose = f"{item.name}{scored}" if len(test.failed) > 1 else ""
                why = ": ".join(filter(None, (whose, item.reason))) if item.reason or scored else ""
                told += [("reason", why), ("at", item.location or "")]
            for label, text in told:
                if text:
                    is_one = label == "output" and len(groups) > _OUTPUTS_ON_TWO_LINES
                    room = max((1 if is_one else 2) * (width - 14), _REASON_MIN)
                    style = "dim" if label == "at" else ""
                    body = Text(one_line(text, room), style=style)
                    print_hanging(Text(f"{label:<8}", style="dim"), body, console, indent=4)


def _severity_of(group: SameReason) -> tuple[int, float]:
    return group.cases, group.margin


def _failed_test(result: CaseResult) -> FailedTest:
    failed = failed_assertions(result)
    items = [
        FailedAssertion(
            one_line(item.metric or item.type, 40),
            failure_text(item),
            one_line((item.reason or "")[:_REASON_COMPARED], 400),
            item.location,
        )
        for item in failed[:_ASSERTIONS_KEPT]
    ]
    if not failed:  # the test's own threshold decided, or a comparison of outputs
        scored = "" if result.score is None else format_score(result.score)
        items = [FailedAssertion(WHOLE, scored, whole_reason(result), None)]
    return FailedTest(
        index=result.test_index,
        number=f"#{result.test_index + 1}",
        title=case_title(result, 60),
        columns={result.column},
        names=tuple(sorted(one_line(item.metric or item.type, 40) for item in failed)) or (WHOLE,),
        failed=items,
        margin=max(map(margin_below, failed), default=0.0),
        output=one_line(output_text(result)[:_REASON_COMPARED], 400),
    )


def _what(test: FailedTest, width: int) -> str:
    """Return what failed, `icontains, helpful 0.25 < 0.60`; scores and thresholds are dropped if there is no room."""
    times = Counter(test.names)
    by_name = {item.name: item for item in reversed(test.failed)}  # the worst of those with the same name
    first = [by_name[name] for name in dict.fromkeys(item.name for item in test.failed)]

    def text(item: FailedAssertion, *, is_scored: bool) -> str:
        return f"{item.name} {item.scored if is_scored else ''}".rstrip() + (
            f" ({times[item.name]})" if times[item.name] > 1 else ""
        )

    hidden = len(times) - len(first)
    for is_scored in (True, False):
        parts = [text(item, is_scored=is_scored) for item in first]
        for count in range(len(first), 0, -1):
            if is_scored and not any(item.scored for item in first[:count]):
                continue
            more = hidden + len(first) - count
            line = ", ".join(parts[:count]) + (f" and {more} more" if more else "")
            if cell_len(line) <= width:
                return line
    return one_line(text(first[0], is_scored=True), width)


def _where(group: SameReason, report: RunReport, titles: list[str], *, is_wide: bool) -> str:
    """Return in which columns a test failed: their names if there is room, else how many.

    If several tests did not all fail in the same columns, each column is followed by the number of its tests.
    """
    count = len(report.columns)
    if count == 1:
        return ""
    places = [place for place, column in enumerate(report.columns) if column.index in group.columns]
    counts = [group.columns[report.columns[place].index] for place in places]
    is_everywhere = set(counts) == {group.count}
    if len(places) == count and is_everywhere:
        return "all columns"
    named = ", ".join(
        titles[place] if is_everywhere else f"{titles[place]} {tests:,}"
        for place, tests in zip(places, counts, strict=True)
    )
    if cell_len(named) <= (_WHERE_MAX if is_wide else _WHERE_MAX // 2):
        return named
    if not is_everywhere:
        return f"{group.cases:,} cases, {plural(len(places), 'column')}"
    return f"{len(places)} of {count} columns"


def _padded(text: str, width: int) -> str:
    text = one_line(text, width)
    return text + " " * (width - cell_len(text))
