"""The failures and errors of a run in words for a terminal, one case in full, and all answers to one test."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score, plural
from geval_cli.patterns import compile_later
from geval_cli.records import CaseResult, ErrorInfo, Status, TraceStep
from geval_cli.report.case_view import (
    PROBLEMS,
    AssertionView,
    CaseView,
    JudgeVerdict,
    ShownItem,
    assertion_name,
    case_number,
    case_sentence,
    case_title,
    errors_of,
    failed_assertions,
    failure_figure,
    failure_text,
    failures_text,
    margin_below,
    output_text,
    whole_reason,
)
from geval_cli.report.console import print_hanging
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.verdict import MANY_COLUMNS, STYLES, case_verdict, column_title, fitted_title, signs_of
from geval_cli.statistics.intervals import RunningMean
from geval_cli.store.run_pages import WORST_FIRST

_LABEL_WIDTH = len("output  ")
_NAMED_MAX = 12
_IN_FULL, _LINES_MAX = 1, 10
_FEW = 4
"""Up to so many answers to a test, those that passed are shown with their output."""


class Limit(NamedTuple):
    """How much of one text is shown."""

    line_count: int
    character_count: int


class Shown(Struct, frozen=True):
    """How much of a case is shown.

    Attributes:
        step_width: of a line of the trace; 0 leaves out the trace, and the pairs that were compared.
        is_verbose: passed assertions are explained, too.
        is_whole: what went in, and every detail of the verdicts.
    """

    output: Limit = Limit(6, 1_200)
    reason: Limit = Limit(20, 4_000)
    raw: Limit = Limit(4, 600)
    trace_lines: int = 8
    step_width: int = 0
    is_verbose: bool = False
    is_whole: bool = False


_ALL = Limit(sys.maxsize, sys.maxsize)
IN_SHORT = Shown()
VERBOSE = Shown(is_verbose=True)
UNCUT = Shown(_ALL, _ALL, _ALL, sys.maxsize, 2_000, is_verbose=True, is_whole=True)


class ShownCase(Struct):
    """A case to show, and the later ones that broke in exactly the same way."""

    result: CaseResult
    same_count: int = 0
    same_numbers: list[str] = field(default_factory=list)

    def add_number(self, number: str) -> None:
        is_new = number != case_number(self.result) and number not in self.same_numbers
        if is_new and len(self.same_numbers) < _NAMED_MAX:
            self.same_numbers.append(number)


class CasePrinter:
    """Prints cases one after another, remembering which evaluation steps the reader has seen already."""

    def __init__(self, report: RunReport, console: Console, shown: Shown) -> None:
        self._console = console
        self._shown = shown
        self._signs = signs_of(console)
        self._dot = f" {self._signs.dot} "
        columns = report.columns
        self._titles = {
            column.index: column_title(column, columns, self._signs) for column in columns if len(columns) > 1
        }
        self._names_model = len({column.provider_label for column in columns}) == 1
        self._seen_steps: dict[tuple[str, ...], str] = {}

    def print_entry(self, entry: ShownCase) -> None:
        """Print a case of a list under its number, column and title."""
        result = entry.result
        self._console.print()
        body = Text(case_number(result), style="bold")
        if title := self._titles.get(result.column):
            body.append(f"  [{title}]", style="not bold cyan")
        self._print_head(result, body.append(f"  {case_title(result, 200)}", style="not bold"))
        same = entry.same_count
        names = ", ".join(entry.same_numbers)
        more = ", ..." if same > len(entry.same_numbers) else ""
        text = f"the same in {plural(same, 'more case')}"
        self._print_case(
            result, case_number(result), f"{text}: {names}{more}" if names else text if same else ""
        )

    def print_answers(self, results: Sequence[CaseResult]) -> None:
        """Print the answers to one test, the failures first: of many, one in full and the others as lines."""
        self._console.print()
        self._print_test_texts(results[0])
        ordered = sorted(results, key=_badness_of_case)
        problems = [result for result in ordered if result.status in PROBLEMS]
        in_full = ordered if len(ordered) <= _FEW else problems[:_IN_FULL]
        for result in in_full:
            self._console.print()
            facts = CaseView(result).facts
            model = [one_line(result.provider.label or result.provider.id, 40)] * self._names_model
            self._print_column(result, ordered, self._dot.join([*model, *facts]))
            self._print_case(result)
        if len(in_full) < len(ordered):
            self._console.print()
        for result in problems[len(in_full) :][:_LINES_MAX]:
            width = max(self._console.width - 50, 24)
            self._print_column(result, ordered, failures_text([result]), width)
        more = len(problems) - len(in_full) - _LINES_MAX
        if more > 0:
            self._console.print(Text(f"  ... and {more:,} more", style="dim"))
        if len(ordered) > _FEW:
            self._print_others([result for result in ordered if result.status not in PROBLEMS])

    def _print_column(
        self, result: CaseResult, results: Sequence[CaseResult], facts: str, width: int | None = None
    ) -> None:
        """Print the head of one of a test's `results`: its column and repeat, where there are several."""
        title = self._titles.get(result.column, "")
        parts = [title if width is None else fitted_title(title, width, self._signs)] if title else []
        if any(one.repeat_index for one in results if one.column == result.column):
            parts.append(f"repeat {result.repeat_index + 1}")
        body = Text(", ".join(parts), style="bold")
        self._print_head(result, body.append(f"{'  ' if parts else ''}{facts}", style="not bold"))

    def _print_others(self, results: Sequence[CaseResult]) -> None:
        """Print those without a problem as one paragraph: their columns and scores."""
        for status in (Status.PASSED, Status.NOT_EVALUATED):
            found: dict[str, list[float]] = {}
            for result in (one for one in results if one.status is status):
                scores = found.setdefault(self._titles.get(result.column, ""), [])
                scores.extend([] if result.score is None else [result.score])
            if found:
                word = "passed" if status is Status.PASSED else "not evaluated"
                count = sum(result.status is status for result in results)
                head = Text(f"{self._signs.marks[status]} {count:,} {word}  ", style=STYLES[status])
                told = (f"{name} {_range(scores)}".strip() for name, scores in found.items())
                print_hanging(head, Text(self._dot.join(told)), self._console, indent=1)

    def _print_test_texts(self, result: CaseResult) -> None:
        """Print what the test brings: its variables and what it expects, and the prompt where there is nothing else."""
        texts = {name: value_text(value) for name, value in result.vars.items()} | CaseView(result).test_texts
        if not texts and not result.turns:
            texts = {"prompt": result.prompt.rendered}
        title = case_title(result, 200)
        for name, text in texts.items():
            if one_line(text, 200) != title:
                lines = clipped_lines(text, line_count=4, character_count=300)
                self._print_block(one_line(name.replace("_", " "), 20), lines, indent=3)

    def _print_head(self, result: CaseResult, body: Text) -> None:
        head = case_verdict(result, self._signs).append("  ")
        print_hanging(head, body, self._console, indent=1)

    def _print_case(self, result: CaseResult, number: str = "", same: str = "") -> None:
        """Print everything about a case but its head.

        `number` names it where there are others; `same` says which of them broke in the same way.
        """
        view, shown = CaseView(result), self._shown
        if result.error is not None:
            self._print_error(result.error, indent=3)
        if same:
            self._print_block("also", [same], indent=3)
        if shown.is_whole:
            self._print_inputs(view)
        if result.output is not None or result.turns:
            lines = clipped_lines(output_text(result), **shown.output._asdict())
            self._print_block("turns" if result.turns else "output", lines or ["(empty)"], indent=3)
        if shown.step_width:
            self._print_trace(result.trace)
        for end in view.ends:
            self._print_block("ended", [end], indent=3, style="yellow" if "finish reason" in end else "")
        self._print_clipped("reason", whole_reason(result), indent=3)
        passed = []
        for item in view.assertions:
            if shown.is_verbose or item.assertion.status in PROBLEMS:
                self._print_assertion(item, number, indent=3)
            else:
                passed.append(item)
        self._print_passed(passed)

    def _print_inputs(self, view: CaseView) -> None:
        """Print what went in, and what is known about the call."""
        result = view.result
        if result.prompt.rendered:
            self._print_block("prompt", sanitized_lines(result.prompt.rendered), indent=3)
        for name, text in view.test_texts.items():
            self._print_block("test", sanitized_lines(f"{name} = {text}"), indent=3)
        for name, value in result.vars.items():
            self._print_block("var", sanitized_lines(f"{name} = {value_text(value)}"), indent=3)
        if result.metadata:
            self._print_block("about", [sanitize(value_text(dict(result.metadata)))], indent=3)
        model = sanitize(result.provider.label or result.provider.id)
        self._print_block("by", [self._dot.join([model, *view.facts])], indent=3)

    def _print_trace(self, steps: Sequence[TraceStep]) -> None:
        """Print the first steps of a trace: a line each, or only their names where no more is known of them."""
        if not steps:
            return
        shown, width = steps[:_NAMED_MAX], self._shown.step_width
        more = [] if len(steps) <= _NAMED_MAX else [f"{len(steps) - _NAMED_MAX:,} more"]
        if any(step.args is not None or step.output is not None for step in steps):
            lines = [*(one_line(_step_text(step), width) for step in shown), *more]
        else:
            names = [one_line(f"{step.name}{' (failed)' * (step.error is not None)}", 40) for step in shown]
            lines = [", ".join([*names, *more])]
        self._print_block("trace", lines, indent=3)

    def _print_assertion(self, view: AssertionView, number: str, *, indent: int) -> None:
        item, shown = view.assertion, self._shown
        head = Text(f"{self._signs.marks[item.status]} ", style=STYLES[item.status])
        body = Text(sanitize(assertion_name(item)), style="bold")
        body.append(f"  {view.scored}" if view.scored else "", style="not bold")
        for remark in view.remarks:
            body.append(f"  {remark}", style="not bold yellow" if remark == "split" else "not bold dim")
        body.append(f"  {sanitize(item.location)}" if item.location else "", style="not bold dim")
        print_hanging(head, body, self._console, indent=indent)
        inner, verdicts = indent + 2, view.verdicts
        if len(verdicts) == 1 or view.is_jury:
            self._print_clipped("reason", item.reason or "", indent=inner)
        if item.error is not None:
            self._print_error(item.error, indent=inner)
        self._print_items(view.items, indent=inner)
        if shown.step_width and (duels := view.duels):
            self._print_block("pairs", [duels], indent=inner)
        name = f"in {number}, {sanitize(item.metric or item.type)}" if number else "above"
        for place, part in enumerate(verdicts, start=1):
            title = "" if len(verdicts) == 1 else f"{'judge' if view.is_jury else 'part'} {place}"
            self._print_verdict(part, view.paid if len(verdicts) == 1 else [], title, name, indent=inner)
        if len(verdicts) > 1 and view.paid:
            self._print_block("calls", [self._dot.join(view.paid)], indent=inner, style="dim")
        if shown.is_whole:
            for label, value in view.further:
                self._print_block(
                    sanitize(label), sanitized_lines(value_text(value)), indent=inner, style="dim"
                )
        is_tree = item.type.removeprefix("not-") == "decision-tree"  # each answer led to the next
        for member in view.members:
            if shown.is_verbose or is_tree or member.assertion.status in PROBLEMS:
                self._print_assertion(member, number, indent=inner)

    def _print_verdict(
        self, part: JudgeVerdict, paid: Sequence[str], title: str, name: str, *, indent: int
    ) -> None:
        """Print who judged, with rating, spread, cost and time on one line; then the steps.

        `title` is what one of several verdicts is called; `name` says where its steps are once they were printed.
        """
        self._print_items([] if title else part.items, indent=indent)
        facts = dict(part.facts)
        words = {"judge": "", "rating": "rating ", "answers": "answers ", "spread": ""}
        if facts.get("judge", "") in part.title:
            facts.pop("judge", None)
        line = [f"{word}{facts[label]}" for label, word in words.items() if label in facts]
        if title:
            told = self._dot.join(filter(None, (part.title, *line)))
            self._print_block(title, [told], indent=indent)
            self._print_clipped("reason", part.reason, indent=indent)
            self._print_items(part.items, indent=indent)
        elif line or paid:
            self._print_block(
                "judge" if line else "calls", [self._dot.join([*line, *paid])], indent=indent, style="dim"
            )
        if self._shown.is_whole and not title:
            self._print_block(
                "criteria", sanitized_lines(part.criteria) if part.criteria else [], indent=indent
            )
        for label in ("source", "note", "error"):
            if label in facts:
                style = "" if label == "source" else "yellow"
                self._print_block(label, [facts[label]], indent=indent, style=style)
        steps = part.steps
        if steps in self._seen_steps:
            self._print_block("steps", [f"the same as {self._seen_steps[steps]}"], indent=indent)
            return
        if steps:
            self._seen_steps[steps] = name
        for number, step in enumerate(steps, start=1):
            head = _label("steps" if number == 1 else "").append(f"{number}. ")
            print_hanging(head, Text(step), self._console, indent=indent)

    def _print_passed(self, views: Sequence[AssertionView]) -> None:
        """Print the assertions without a problem as one line."""
        for status in (Status.PASSED, Status.NOT_EVALUATED):
            names = []
            for item, scored in ((view.assertion, view.scored) for view in views):
                if item.status is status:
                    score = scored if item.threshold is not None else ""
                    names.append(f"{one_line(item.metric or item.type, 40)} {score}".rstrip())
            more = [] if len(names) <= _NAMED_MAX else [f"{len(names) - _NAMED_MAX:,} more"]
            head = Text(f"{self._signs.marks[status]} ", style=STYLES[status])
            text = Text(self._dot.join([*names[:_NAMED_MAX], *more]), style="dim")
            if names:
                print_hanging(head, text, self._console, indent=3)

    def _print_items(self, items: Sequence[ShownItem], *, indent: int) -> None:
        for number, item in enumerate(items):
            status = Status.PASSED if item.is_met else Status.FAILED
            sign = Text(f"{self._signs.marks[status]} ", style=STYLES[status])
            label = _label("items" if number == 0 else "").append(sign)
            print_hanging(label, Text(item.line), self._console, indent=indent)

    def _print_error(self, error: ErrorInfo, *, indent: int) -> None:
        shown = self._shown
        is_named = error.is_bug or shown.is_whole
        text, most = f"{error.type}: {error.message}" if is_named else error.message, shown.raw
        message = clipped_lines(
            text, line_count=max(10, most.line_count), character_count=max(2_000, most.character_count)
        )
        self._print_block("error", message, indent=indent, style="yellow")
        if error.hint:
            hint = clipped_lines(error.hint, line_count=4, character_count=1_000)
            self._print_block("hint", hint, indent=indent)
        if error.raw and error.is_bug:
            trace = sanitized_lines(error.raw)[-shown.trace_lines :]
            self._print_block("trace", trace, indent=indent, style="dim")
        elif error.raw:
            raw = clipped_lines(error.raw, **most._asdict())
            self._print_block("reply", raw, indent=indent, style="dim")

    def _print_clipped(self, label: str, text: str, *, indent: int) -> None:
        self._print_block(label, clipped_lines(text, **self._shown.reason._asdict()), indent=indent)

    def _print_block(self, label: str, lines: list[str], *, indent: int, style: str = "") -> None:
        for position, line in enumerate(lines):
            head = _label(label if position == 0 else "")
            print_hanging(head, Text(line or " ", style=style), self._console, indent=indent)


def print_test(
    results: Sequence[CaseResult], report: RunReport, console: Console, *, is_verbose: bool
) -> None:
    """Print one test in all its columns: what became of it in a sentence, what went in, then the failures first."""
    console.print()
    print_hanging(Text(), Text(case_sentence(results), style="bold"), console, indent=1)
    if is_verbose:
        printer = CasePrinter(report, console, UNCUT)
        for result in results:
            printer.print_entry(ShownCase(result))
        return
    is_alone = len(results) == 1
    shown = Shown(
        Limit(12, 900) if is_alone else Limit(5, 360), Limit(4, 500), step_width=160, is_verbose=is_alone
    )
    CasePrinter(report, console, shown).print_answers(results)


def _label(text: str) -> Text:
    return Text(text.ljust(_LABEL_WIDTH - 1) + " ", style="dim")


def _step_text(step: TraceStep) -> str:
    called = step.name if step.args is None else f"{step.name} {value_text(step.args)}"
    if step.error is not None:
        return f"{called} failed: {step.error}"
    return called if step.output is None else f"{called} -> {value_text(step.output)}"


def _range(scores: Sequence[float]) -> str:
    """`0.66 to 0.92`: the least and the highest of some scores."""
    return " to ".join(dict.fromkeys(map(format_score, (min(scores), max(scores))))) if scores else ""


def _badness_of_case(result: CaseResult) -> tuple[int, float]:
    worst = max(map(margin_below, failed_assertions(result)), default=0.0)
    return WORST_FIRST.index(result.status), -worst


CASES_MAX = 20
VERBOSE_CASES_MAX = 500
_GROUPS_MAX = 200
_REST, _WHOLE = "others", "the test as a whole"
_REASON_COMPARED, _REASON_NAMED = 2_000, 160
_QUOTED = compile_later(r'"[^"]*"|`[^`]*`|\u201c[^\u201d]*\u201d')
_NUMBERS_SHOWN = 5
_NUMBER = compile_later(r"\d+(?:[.,]\d+)*")
PLURALS = {Status.FAILED: "failures", Status.ERROR: "errors"}
_OUT_OF_REACH = frozenset(
    {
        "ProviderAuthError",
        "ProviderRateLimitError",
        "ProviderTimeoutError",
        "ProviderUnavailableError",
        "UnknownModelError",
    }
)


class GroupBy(StrEnum):
    """The ways to bring failures together: by the assertion that failed, or by the reason that it gave."""

    ASSERTION = "assertion"
    REASON = "reason"


class FailureGroup(Struct):
    """The cases that failed for one assertion or reason, with the first of them.

    Attributes:
        name: the metric or type of the assertion, or a reason.
        judged: results of this assertion with a verdict, of all cases; `failed` of them failed.
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
        """`41 of 60 failed, 2 could not be judged, mean 0.41`."""
        if self.is_reason:
            return plural(self.failed + self.errored, "case")
        parts = [f"{self.failed:,} of {self.judged:,} failed"] if self.judged else []
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
        for name, status, score, decides in _grouped_by(result, self.by):
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= _GROUPS_MAX:
                    group = self._groups.setdefault(_REST, FailureGroup(_REST))
                else:
                    group = self._groups[name] = FailureGroup(
                        name, is_reason=self.by is GroupBy.REASON or name == _WHOLE
                    )
            group.add(status, score)
            if own is None and decides:
                own = group
        return own


def _grouped_by(result: CaseResult, by: GroupBy) -> Iterator[tuple[str, Status, float | None, bool]]:
    """Yield the group of each thing that was judged of a result, its status, its score and whether it decides the case.

    An assertion of weight 0 and a judge's error beside a failure decide nothing.
    """
    is_problem = result.status in PROBLEMS
    has_decided = result.error is not None
    if result.error is not None:
        name = result.error.type if by is GroupBy.ASSERTION else _normalised(result.error.message)
        yield name, Status.ERROR, None, is_problem
    for item in result.assertions:
        decides = (
            is_problem and item.status is result.status and (bool(item.weight) or item.status is Status.ERROR)
        )
        has_decided = has_decided or decides
        if by is GroupBy.ASSERTION:
            yield item.metric or item.type, item.status, item.score, decides
        elif item.status in PROBLEMS:
            why = item.error.message if item.error is not None else item.reason
            name = f"{item.metric or item.type}: {_normalised(why or 'no reason given')}"
            yield name, item.status, item.score, decides
    if is_problem and not has_decided:
        yield _WHOLE, result.status, result.score, True  # its own threshold decides, or what is compared


def _normalised(reason: str) -> str:
    """Return a reason without what differs from case to case: quoted texts, numbers, upper case, space."""
    text = " ".join(reason[:_REASON_COMPARED].split()).casefold()
    return _NUMBER.sub("N", _QUOTED.sub('"..."', text))[:_REASON_NAMED].rstrip(" .:")


_LINES_SHOWN, _LINES_IN_FULL, _OUTPUTS_ON_TWO_LINES, _ERRORS_SHOWN = 10, 4, 2, 5
_GROUPED_FROM = 3
"""So many tests that fail for the same reason are one line."""
_KEPT_MAX, _KEPT_OF_A_GROUP = 1_000, 10
_RAW_SHOWN, _RAW_INDENT = 2, 16
_WHERE_MAX, _WHAT_MAX, _REASON_MIN = 36, 34, 16
_ASSERTIONS_KEPT = 8
_WIDE = 120


class FailedAssertion(Struct, frozen=True):
    """An assertion that failed: its name, `scored` (`0.25 < 0.60`; "" without a score), its reason and its place."""

    name: str
    scored: str
    figure: str
    reason: str
    location: str | None


class FailedTest(Struct):
    """A test in the columns and repeats in which the same assertions failed: what one line of the list tells.

    `failed` are these assertions in the case where one is furthest below its threshold, by `margin` (1 without a
    score), that one first; `output` is of that case, too.
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
        """Return the first reason that there is, the one of what failed by most before others."""
        return next((item.reason for item in self.failed if item.reason), "")


class SameReason(Struct):
    """The tests that failed for one reason, of which the first are kept; `columns` counts those of each column."""

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
        """Yield what has a line of its own: all of them as one, or one by one."""
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
    """The failures and errors of a run, collected from results in the order of the tests.

    Cases of a test in which the same assertions failed are a line; many tests with the same reason are one line.
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
        """Take in the next result."""
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
                if name in self.counts or len(self.counts) < _GROUPS_MAX:
                    self.counts[name] = self.counts.get(name, 0) + 1
            self._add_failed(new)

    def _add_error(self, result: CaseResult) -> None:
        error = next(errors_of(result), None)
        if error is None:
            return
        key = _normalised(error.message)
        kind = self._errors.get(key)
        if kind is None:
            if len(self._errors) >= _GROUPS_MAX:
                return
            raw = one_line((error.raw or "")[:_REASON_COMPARED], 300)
            kind = self._errors[key] = _ErrorKind(error.message, error.hint, raw)
        kind.count += 1
        number = case_number(result)
        if number not in kind.numbers:
            if len(kind.numbers) < _NUMBERS_SHOWN:
                kind.numbers.append(number)
            else:
                kind.has_more = True

    @property
    def worst(self) -> str:
        """Return the number of the test to look at first: the worst failure, else the first error; "" of none."""
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
            key = (test.names, _normalised(test.reason) or test.number)
            self._reasons.setdefault(key, SameReason()).add(test)
        if len(self._reasons) > 2 * _KEPT_MAX:
            worst_first = sorted(self._reasons.items(), key=lambda item: _badness(item[1]), reverse=True)
            self._reasons = dict(worst_first[:_KEPT_MAX])

    def lines(self) -> list[SameReason]:
        """Return what has a line of its own, the worst first."""
        self._end_test()
        lines = [line for group in self._reasons.values() for line in group.lines()]
        return sorted(lines, key=_badness, reverse=True)

    def print(self, report: RunReport, console: Console, show: str) -> None:
        """Print what failed, the worst first, a line each; `show` is the command for the rest."""
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
        """Print the errors by what went wrong, the most frequent first; nothing without any."""
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
        if left < 0:  # what failed is worth more than where
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
                whose = f"{item.name}: " if len(test.failed) > 1 and item.reason else ""
                told += [("reason", f"{whose}{item.reason}"), ("at", item.location or "")]
            for label, text in told:
                if text:
                    is_one = label == "output" and len(groups) > _OUTPUTS_ON_TWO_LINES
                    room = max((1 if is_one else 2) * (width - 14), _REASON_MIN)
                    style = "dim" if label == "at" else ""
                    body = Text(one_line(text, room), style=style)
                    print_hanging(Text(f"{label:<8}", style="dim"), body, console, indent=4)


def _badness(group: SameReason) -> tuple[int, float]:
    return group.cases, group.margin


def _failed_test(result: CaseResult) -> FailedTest:
    failed = failed_assertions(result)
    items = [
        FailedAssertion(
            one_line(item.metric or item.type, 40),
            failure_text(item),
            failure_figure(item),
            one_line((item.reason or "")[:_REASON_COMPARED], 400),
            item.location,
        )
        for item in failed[:_ASSERTIONS_KEPT]
    ]
    if not failed:  # its own threshold decides, or what is compared
        scored = "" if result.score is None else format_score(result.score)
        items = [FailedAssertion(_WHOLE, scored, scored, whole_reason(result), None)]
    return FailedTest(
        index=result.test_index,
        number=f"#{result.test_index + 1}",
        title=case_title(result, 60),
        columns={result.column},
        names=tuple(sorted(one_line(item.metric or item.type, 40) for item in failed)) or (_WHOLE,),
        failed=items,
        margin=max(map(margin_below, failed), default=0.0),
        output=one_line(output_text(result)[:_REASON_COMPARED], 400),
    )


def _what(test: FailedTest, width: int) -> str:
    """`icontains, helpful 0.25 < 0.60`: all that failed, with as much of the figures as has room."""
    times = Counter(test.names)
    by_name = {item.name: item for item in reversed(test.failed)}  # of several of one name the worst
    first = [by_name[name] for name in dict.fromkeys(item.name for item in test.failed)]

    def text(item: FailedAssertion, figure: str) -> str:
        return f"{item.name} {figure}".rstrip() + (f" ({times[item.name]})" if times[item.name] > 1 else "")

    hidden = len(times) - len(first)
    forms = [
        [text(item, item.scored) for item in first],
        [text(item, item.figure) for item in first],
        [text(item, "") for item in first],
    ]
    for count in range(len(first), 0, -1):
        more = hidden + len(first) - count
        for form in forms if count == len(first) else forms[1:]:
            line = ", ".join(form[:count]) + (f" and {more} more" if more else "")
            if cell_len(line) <= width:
                return line
    return one_line(forms[0][0], width)


def _where(group: SameReason, report: RunReport, titles: list[str], *, is_wide: bool) -> str:
    """Return in which columns a test failed: their names where there is room, else how many.

    Of several tests that did not all fail in the same ones, each column has the number of its tests.
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
    return " and ".join(word for status, word in PLURALS.items() if status in wanted)


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
