"""Every failure and error of a run in full: what was expected, what came, how the judge reached its score."""

from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score
from geval_cli.patterns import compile_later
from geval_cli.records import CaseResult, ErrorInfo, Status
from geval_cli.report.case_view import IN_SHORT, UNCUT, VERBOSE, CasePrinter, ShownCase
from geval_cli.report.console import print_hanging
from geval_cli.report.numbers import plural
from geval_cli.report.report import RunReport, case_number
from geval_cli.report.sanitize import one_line
from geval_cli.report.verdict import PROBLEMS
from geval_cli.statistics.intervals import RunningMean

CASES_MAX = 20
VERBOSE_CASES_MAX = 500
_GROUPS_MAX = 200
_REST, _WHOLE = "others", "the test as a whole"
_REASON_COMPARED, _REASON_NAMED = 2_000, 160
_QUOTED = compile_later(r'"[^"]*"|`[^`]*`|\u201c[^\u201d]*\u201d')
_NUMBER = compile_later(r"\d+(?:[.,]\d+)*")
_PLURALS = {Status.FAILED: "failures", Status.ERROR: "errors"}
_OUT_OF_REACH = frozenset(
    {"ProviderAuthError", "ProviderRateLimitError", "ProviderTimeoutError", "ProviderUnavailableError"}
)


class GroupBy(StrEnum):
    """The ways to bring failures together: by the assertion that fell short, or by the reason that it gave."""

    ASSERTION = "assertion"
    REASON = "reason"


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
    entries: list[ShownCase] = field(default_factory=list)
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
    _all: list[ShownCase] = field(default_factory=list)
    _groups: dict[str, FailureGroup] = field(default_factory=dict)
    _by_error: dict[tuple[str, ...], ShownCase] = field(default_factory=dict)

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
            entries.append(ShownCase(result))
            if key:
                self._by_error[key] = entries[-1]

    def _room(self) -> int:
        """Return how many cases are kept of a group: of many groups, only the first few of each can be shown."""
        return VERBOSE_CASES_MAX if self.verbose else max(1, CASES_MAX + 1 - len(self._groups))

    def groups(self) -> list[tuple[FailureGroup, list[ShownCase]]]:
        """Return the groups, the largest first, each with the entries to show: the first of each, at most 20 in all."""
        kept = [group for group in self._groups.values() if self.wanted & group.statuses]
        found = sorted(kept, key=lambda group: (-group.cases, -group.failed, -group.errored))
        shown: list[list[ShownCase]] = [[] for _ in found]
        for place in range(CASES_MAX):
            for group, entries in zip(found, shown, strict=True):
                if place < len(group.entries) and sum(map(len, shown)) < CASES_MAX:
                    entries.append(group.entries[place])
        return list(zip(found, shown, strict=True))

    @property
    def all_entries(self) -> list[ShownCase]:
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
    printer = CasePrinter(report, console, VERBOSE if failures.verbose else IN_SHORT)
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
    printer = CasePrinter(report, console, UNCUT)
    for result in results:
        printer.print_entry(ShownCase(result))


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
