"""All the evidence behind a run's answer, for `--verbose` and `geval show`: cases in full, results, figures."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from msgspec import Struct, field
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from geval_cli.metrics import WORST_FIRST
from geval_cli.numbers import format_cost, format_count, format_score, plural
from geval_cli.plugins import extra
from geval_cli.records import (
    AssertionResult,
    CaseResult,
    ColumnSummary,
    ErrorInfo,
    MetricStat,
    Role,
    Status,
    TraceStep,
    Usage,
)
from geval_cli.report.case_view import (
    PROBLEMS,
    AssertionView,
    CaseView,
    JudgeVerdict,
    ShownItem,
    assertion_name,
    case_number,
    case_title,
    errors_of,
    failed_assertions,
    failure_text,
    has_fallback,
    is_split,
    margin_below,
    output_text,
    whole_reason,
)
from geval_cli.report.columns import (
    DIFFERENCE_HEADER,
    DIFFERENCES_MAX,
    MEANS_HEADER,
    NAME_WIDTH,
    baseline_number,
    differences_of,
    mean_cells,
    run_means,
)
from geval_cli.report.console import Cells, print_hanging, print_rows
from geval_cli.report.failures import GROUPS_MAX, WHOLE, GroupBy, normalised
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.terminal import TableRows, excerpt_of, fit_table, print_line, print_matrix
from geval_cli.report.verdict import (
    DIFFERENCE_STYLES,
    STYLES,
    VERDICT_WIDTH,
    case_verdict,
    cell_verdict,
    column_title,
    fitted_title,
    gate_value,
    print_derived,
    print_legend,
    print_rankings,
    shown_gates,
    signs_of,
    verdict,
)
from geval_cli.statistics.intervals import RunningMean

_LABEL_WIDTH = len("output  ")
_ROOM_MIN = 20
"""With less room than this, lines are printed with a smaller margin."""
_NAMED_MAX = 12
_IN_FULL, _CASE_LINES_MAX = 1, 10
_FEW = 4
"""With this many answers to a test or fewer, those that passed are shown with their output."""


class Limit(NamedTuple):
    """How much of a text is shown."""

    line_count: int
    character_count: int


class DetailLevel(Struct, frozen=True):
    """How much of a case is shown.

    Attributes:
        step_width: the width of a line of the trace; 0 leaves out the trace, and the pairs that were compared.
        is_verbose: whether passed assertions are explained too.
        is_whole: whether the inputs and every detail of the verdicts are shown.
    """

    output: Limit = Limit(6, 1_200)
    reason: Limit = Limit(20, 4_000)
    raw: Limit = Limit(4, 600)
    trace_lines: int = 8
    step_width: int = 0
    is_verbose: bool = False
    is_whole: bool = False


_ALL = Limit(sys.maxsize, sys.maxsize)
IN_SHORT = DetailLevel()
VERBOSE = DetailLevel(is_verbose=True)
UNCUT = DetailLevel(_ALL, _ALL, _ALL, sys.maxsize, 2_000, is_verbose=True, is_whole=True)


class ShownCase(Struct):
    """A case to show, and the number of later ones that broke in exactly the same way."""

    result: CaseResult
    same_count: int = 0
    same_numbers: list[str] = field(default_factory=list)

    def add_number(self, number: str) -> None:
        is_new = number != case_number(self.result) and number not in self.same_numbers
        if is_new and len(self.same_numbers) < _NAMED_MAX:
            self.same_numbers.append(number)


class CasePrinter:
    """Prints cases one after another, and remembers which evaluation steps have already been printed."""

    def __init__(self, report: RunReport, console: Console, shown: DetailLevel) -> None:
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
        """Print the answers to one test, failures first: of many, one in full and the others as lines."""
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
        for result in problems[len(in_full) :][:_CASE_LINES_MAX]:
            width = max(self._console.width - 50, 24)
            self._print_column(result, ordered, _failures_text([result]), width)
        more = len(problems) - len(in_full) - _CASE_LINES_MAX
        if more > 0:
            self._console.print(Text(f"  ... and {more:,} more", style="dim"))
        if len(ordered) > _FEW:
            self._print_others([result for result in ordered if result.status not in PROBLEMS])

    def _print_column(
        self, result: CaseResult, results: Sequence[CaseResult], facts: str, width: int | None = None
    ) -> None:
        """Print the heading of one of a test's `results`: its column and repeat, if there are several."""
        title = self._titles.get(result.column, "")
        parts = [title if width is None else fitted_title(title, width, self._signs)] if title else []
        if any(one.repeat_index for one in results if one.column == result.column):
            parts.append(f"repeat {result.repeat_index + 1}")
        body = Text(", ".join(parts), style="bold")
        self._print_head(result, body.append(f"{'  ' if parts else ''}{facts}", style="not bold"))

    def _print_others(self, results: Sequence[CaseResult]) -> None:
        """Print the results without a problem as one paragraph: their columns and scores."""
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
        """Print the texts of the test: its variables and expectations, and the prompt if there is nothing else."""
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
        """Print everything about a case except its heading.

        `number` names it if there are others; `same` says which of them broke in the same way.
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
        """Print the inputs of a case, and what is known about the call."""
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
        """Print the first steps of a trace, a line each, or only their names if nothing more is known about them."""
        if not steps:
            return
        shown = steps[:_NAMED_MAX]
        width = self._shown.step_width
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
        """Print the judge with rating, spread, cost and time on one line, then the steps.

        `title` is the name of one of several verdicts; `name` says where its steps are, once they have been printed.
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
        """Print the assertions without a problem on one line."""
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
        text = f"{error.type}: {error.message}" if is_named else error.message
        most = shown.raw
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
        console = self._console
        margin = " " * (indent + _LABEL_WIDTH)
        room = console.width - len(margin) - 1
        # rich takes too long for each of a million lines, so those that need neither wrapping nor style pass it by.
        plain: list[str] = []
        for position, line in enumerate(lines):
            if position and not style and room >= _ROOM_MIN and line.isprintable() and cell_len(line) <= room:
                plain.append(f"{margin}{line}".rstrip())
                continue
            _print_plain(plain, console)
            head = _label(label if position == 0 else "")
            print_hanging(head, Text(line or " ", style=style), console, indent=indent)
        _print_plain(plain, console)


def print_test(
    results: Sequence[CaseResult], report: RunReport, console: Console, *, is_verbose: bool
) -> None:
    """Print one test in all its columns: the outcome in a sentence, what went in, then the answers, failures first."""
    console.print()
    print_hanging(Text(), Text(case_sentence(results), style="bold"), console, indent=1)
    if is_verbose:
        printer = CasePrinter(report, console, UNCUT)
        for result in results:
            printer.print_entry(ShownCase(result))
        return
    is_alone = len(results) == 1
    shown = DetailLevel(
        Limit(12, 900) if is_alone else Limit(5, 360), Limit(4, 500), step_width=160, is_verbose=is_alone
    )
    CasePrinter(report, console, shown).print_answers(results)


def _print_plain(lines: list[str], console: Console) -> None:
    """Print lines as they are, and empty the list."""
    if lines:
        console.print(Segments([Segment("\n".join([*lines, ""]))]), crop=False)
        lines.clear()


def _label(text: str) -> Text:
    return Text(text.ljust(_LABEL_WIDTH - 1) + " ", style="dim")


def _step_text(step: TraceStep) -> str:
    called = step.name if step.args is None else f"{step.name} {value_text(step.args)}"
    if step.error is not None:
        return f"{called} failed: {step.error}"
    return called if step.output is None else f"{called} -> {value_text(step.output)}"


def _range(scores: Sequence[float]) -> str:
    """Return the lowest and the highest of some scores, `0.66 to 0.92`."""
    return " to ".join(dict.fromkeys(map(format_score, (min(scores), max(scores))))) if scores else ""


def _badness_of_case(result: CaseResult) -> tuple[int, float]:
    worst = max(map(margin_below, failed_assertions(result)), default=0.0)
    return WORST_FIRST.index(result.status), -worst


CASES_MAX = 20
VERBOSE_CASES_MAX = 500
_REST = "others"
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


class FailureGroup(Struct):
    """The cases that failed for one assertion or reason, with the first of them.

    Attributes:
        name: the metric or type of the assertion, or a reason.
        judged: the number of results of this assertion with a verdict, over all cases; `failed` of them failed.
        errored: the number that could not be judged, or of cases that got no answer.
        cases: the number of cases listed under this group: a case is listed under the first group that it belongs to.
        is_reason: whether it is named by a reason, which passed results do not have.
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
        """The kinds of problems among its results."""
        counts = {Status.FAILED: self.failed, Status.ERROR: self.errored}
        return frozenset(status for status, count in counts.items() if count)

    def heading(self) -> str:
        """Return the counts of the group, `41 of 60 failed, 2 could not be judged, mean 0.41`."""
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

    With `verbose`, every case in test order, at most 500. Cases that could not run or be judged for the same reason (a
    refused key, for example) are shown once and counted.
    """

    verbose: bool = False
    by: GroupBy = GroupBy.ASSERTION
    wanted: frozenset[Status] = PROBLEMS
    total: int = 0
    _all: list[ShownCase] = field(default_factory=list)
    _groups: dict[str, FailureGroup] = field(default_factory=dict)
    _by_error: dict[tuple[str, ...], ShownCase] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Add the next result."""
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
        """Return how many cases of a group are kept: with many groups, only the first few of each can be shown."""
        return VERBOSE_CASES_MAX if self.verbose else max(1, CASES_MAX + 1 - len(self._groups))

    def groups(self) -> list[tuple[FailureGroup, list[ShownCase]]]:
        """Return the groups, largest first, each with the entries to show: the first of each, at most 20 in all."""
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
        """The entries in test order, with `verbose`."""
        return self._all

    def _count(self, result: CaseResult) -> FailureGroup | None:
        """Count the result in its groups; return the group that it is listed in, None if it needs none."""
        own: FailureGroup | None = None
        for name, status, score, decides in _grouped_by(result, self.by):
            group = self._groups.get(name)
            if group is None:
                if len(self._groups) >= GROUPS_MAX:
                    group = self._groups.setdefault(_REST, FailureGroup(_REST))
                else:
                    group = self._groups[name] = FailureGroup(
                        name, is_reason=self.by is GroupBy.REASON or name == WHOLE
                    )
            group.add(status, score)
            if own is None and decides:
                own = group
        return own


def _grouped_by(result: CaseResult, by: GroupBy) -> Iterator[tuple[str, Status, float | None, bool]]:
    """Yield for each judgement of a result its group, its status, its score and whether it decides the case.

    An assertion of weight 0, or a judge's error beside a failure, decides nothing.
    """
    is_problem = result.status in PROBLEMS
    has_decided = result.error is not None
    if result.error is not None:
        name = result.error.type if by is GroupBy.ASSERTION else normalised(result.error.message)
        yield name, Status.ERROR, None, is_problem
    for item in result.assertions:
        decides = (
            is_problem and item.status is result.status and (bool(item.weight) or item.status is Status.ERROR)
        )
        has_decided = has_decided or decides
        if by is GroupBy.ASSERTION:
            yield item.metric or item.type, item.status, item.score, decides
        elif item.status in PROBLEMS:
            if item.error is not None:
                why = item.error.message
            else:
                # Why an assertion failed; for a jury, the reason without its last line, which has the judges' scores.
                reason = item.reason or ""
                why = reason.rpartition("\n")[0] if "judges" in item.detail else reason
            name = f"{item.metric or item.type}: {normalised(why or 'no reason given')}"
            yield name, item.status, item.score, decides
    if is_problem and not has_decided:
        # The test's own threshold decided, or a comparison of outputs.
        yield WHOLE, result.status, result.score, True


def print_failures(failures: Failures, report: RunReport, console: Console) -> None:
    """Print the cases that `failures` collected, and say how many were left out."""
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
        console.print(Text(f"\n {what} not shown; everything: {report.hint_for_all}", style="dim"))


def print_cases(
    results: Iterable[CaseResult], failures: Failures, report: RunReport, console: Console
) -> None:
    """Print the groups that `failures` counted, then each of `results` uncut."""
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
    """Return a key that is equal for cases that broke for the same reason; None for a case to be shown by itself."""
    if result.error is not None:
        return None if result.assertions else _spelled(result.provider.id, result.error)
    if result.status is not Status.ERROR or any(item.status is Status.FAILED for item in result.assertions):
        return None
    errors = [item.error for item in result.assertions if item.error is not None]
    # A judge that cannot be reached is one problem, whatever it would have judged; strange replies are separate ones.
    if not errors or not all(error.type in _OUT_OF_REACH for error in errors):
        return None
    return tuple(word for error in errors for word in _spelled("judge", error))


def _spelled(who: str, error: ErrorInfo) -> tuple[str, ...]:
    return who, error.type, error.message


_LINES_MAX = 100
"""In the block layout, if there are more results than this, those that passed are left out."""


_BLOCK_VERDICT_MAX = 28


def print_table(rows: TableRows, report: RunReport, console: Console) -> None:
    """Print the matrix of the results in `rows`."""
    rows.end()
    if not rows.total:
        return
    layout = fit_table(rows.rows, len(report.columns), console.width)
    if rows.rows and layout.cell:
        print_matrix(rows.rows, report.columns, console, layout)
    elif rows.rows:
        columns = report.columns
        signs = signs_of(console)
        titles = {column.index: column_title(column, columns, signs) for column in columns}
        positions = {column.index: position for position, column in enumerate(columns, start=1)}
        is_long = len(rows.rows) * len(columns) > _LINES_MAX
        print_legend(list(titles.values()), console)
        for row in rows.rows:
            number = case_number(row[0])
            title = case_title(row[0], console.width - len(number) - 4)
            console.print(Text.assemble((f" {number}", "bold"), f"  {title}"), no_wrap=True)
            shown = [result for result in row if not is_long or result.status in PROBLEMS]
            for result in shown:
                label = f"[{positions.get(result.column, result.column + 1)}]"
                _print_block_line(result, label.ljust(len(str(len(columns))) + 2), console)
            if len(shown) < len(row):
                rest = {result.status for result in row} - PROBLEMS
                others = "passed" if rest == {Status.PASSED} else "passed or were not evaluated"
                console.print(Text(f"   and {len(row) - len(shown)} {others}", style="dim"))
    _print_notes(rows, report, console)


def _print_block_line(result: CaseResult, label: str, console: Console) -> None:
    line = Text(f"   {label} ", style="dim")
    width = max(VERDICT_WIDTH, min(_BLOCK_VERDICT_MAX, console.width // 3))
    line.append_text(cell_verdict(result, signs_of(console), width))
    line.pad_right(max(len(label) + 4 + width + 2 - line.cell_len, 1))
    line.append(excerpt_of(result, max(console.width - line.cell_len - 1, 0)))
    line.rstrip()
    console.print(line, no_wrap=True, overflow="ellipsis")


def _print_notes(selection: TableRows, report: RunReport, console: Console) -> None:
    rows = selection.rows
    notes = []
    if any(has_fallback(result.assertions) for row in rows for result in row):
        notes.append("~ scored by a fallback method; the details say why")
    if any(is_split(result.assertions) for row in rows for result in row):
        notes.append("/ the judges' scores are 0.5 or more apart")
    if any(row[0].repeat_index for row in rows):
        notes.append("#3.2 is the second repeat of test 3")
    if not selection.is_whole:
        notes += [
            _what_is_hidden(selection),
            f"everything: {report.hint_for_all}",
        ]
    if notes and rows:
        console.print()
    for note in notes:
        console.print(Text(f" {note}", style="dim"))


def print_evidence(report: RunReport, rows: TableRows, failures: Failures, console: Console) -> None:
    """Print the results and failures that were collected, and the baseline and the figures of a run."""
    if failures.verbose:
        print_table(rows, report, console)
    print_failures(failures, report, console)
    if report.summary.baseline is not None:
        extra("comparison in words").print_baseline(report.summary.baseline, console)
    print_details(report, console)


def print_details(report: RunReport, console: Console) -> None:
    """Print the figures behind the answer: differences, metrics, rankings, flaky tests, gates, tokens."""
    summary = report.summary
    console.print()
    if len(summary.columns) > 1:
        signs = signs_of(console)
        print_legend([column_title(column, report.columns, signs) for column in report.columns], console)
        print_differences(summary.columns, console)
        print_means(means_of(summary.columns), console)
    print_means(run_means(summary), console)
    print_rankings(report, console)
    print_derived(report, console)
    print_flaky(report, console)
    print_gates(report, console)
    for role, text in usage_texts(summary.usage):
        print_line(role, Text(text), console)


_ROLE_NAMES = {Role.GENERATION: "model", Role.JUDGE: "judge", Role.USER: "user"}


def usage_texts(usage: Mapping[Role, Usage]) -> Iterator[tuple[str, str]]:
    """Yield the usage of each role: `judge`, and `14 answers (6 cached), 40.1k tokens in, 900 out, $0.21`."""
    for role, amount in usage.items():
        answers = plural(amount.requests, "answer")
        if 0 < amount.cached_requests == amount.requests:
            yield _ROLE_NAMES[role], f"{answers}, all from the cache"
        elif amount.requests:
            cached = f" ({amount.cached_requests:,} cached)" if amount.cached_requests else ""
            tokens = (
                f"{format_count(amount.input_tokens)} tokens in, {format_count(amount.output_tokens)} out"
            )
            parts = [f"{answers}{cached}", tokens]
            if amount.cost_usd != 0:
                parts.append(f"{'cost ' if amount.cost_usd is None else ''}{format_cost(amount.cost_usd)}")
            yield _ROLE_NAMES[role], ", ".join(parts)


_FLAKY_SHOWN = 10


def print_gates(report: RunReport, console: Console) -> None:
    """Print each gate with its actual value; nothing for a run without gates."""
    if not report.summary.gates:
        return
    signs = signs_of(console)
    rows = (
        (
            one_line(gate.gate, 80),
            gate_value(gate),
            verdict(gate.status, None, signs),
            Text(sanitize(gate.note), style="dim"),
        )
        for gate in shown_gates(report.summary.gates)
    )
    print_rows(console, "lrll", ("gate", "actual", "", ""), rows)
    console.print()


def print_flaky(report: RunReport, console: Console) -> None:
    """Print the tests that passed in some repeats and failed in others; nothing if there are none."""
    summary = report.summary
    if not summary.flaky_count:
        return
    signs = signs_of(console)
    columns = {column.index: column for column in report.columns}
    rows = []
    for test in summary.flaky[:_FLAKY_SHOWN]:
        name = f"#{test.test_index + 1} {one_line(test.description or '', 60)}".rstrip()
        if len(columns) > 1 and test.column in columns:
            name += f" [{column_title(columns[test.column], report.columns, signs)}]"
        numbers = ("" if value is None else format_score(value) for value in (test.mean, test.deviation))
        rows.append((name, f"{test.passed:,} of {test.judged:,}", *numbers))
    print_rows(console, "lrrr", ("flaky test", "passed", "mean", "deviation"), rows)
    hidden = summary.flaky_count - min(len(summary.flaky), _FLAKY_SHOWN)
    if hidden:
        console.print(Text(f" and {plural(hidden, 'more flaky test')}", style="dim"))
    console.print()


MEANS_MAX = 60
_WIDTH_FOR_MDE, _WIDTH_FOR_INTERVALS, _WIDTH_FOR_DIFFERENCES = 100, 70, 50


def means_of(columns: Sequence[ColumnSummary]) -> list[tuple[str, MetricStat]]:
    """Return every metric of every column, prefixed with the number of the column."""
    return [
        (f"[{number}] {name}", stat)
        for number, column in enumerate(columns, start=1)
        for name, stat in sorted(column.metrics.items())
    ]


def print_means(rows: Sequence[tuple[str, MetricStat]], console: Console) -> None:
    """Print one mean per line, with its interval; nothing if there are none."""
    if not rows:
        return
    shown: list[Cells] = []
    for name, stat in rows[:MEANS_MAX]:
        *figures, errored = mean_cells(stat)
        errors = Text(errored, style=STYLES[Status.ERROR] if stat.errored else "dim")
        shown.append((one_line(name, NAME_WIDTH), *figures, errors))
    print_rows(console, "lrrrr", ("metric", *MEANS_HEADER), shown)
    if len(rows) > MEANS_MAX:
        more = plural(len(rows) - MEANS_MAX, "more metric")
        console.print(Text(f" and {more}, in -o results.json", style="dim"))
    console.print()


def print_differences(columns: Sequence[ColumnSummary], console: Console) -> None:
    """Print how far each column differs from the baseline, over the tests judged in both."""
    rows = [
        (number, item)
        for number, column in enumerate(columns, start=1)
        for item in differences_of(column)
        if item.verdict is not None
    ]
    if not rows or console.width < _WIDTH_FOR_DIFFERENCES:
        return
    kept = (
        True,
        console.width >= _WIDTH_FOR_INTERVALS,
        True,
        console.width >= _WIDTH_FOR_MDE,
        True,
    )
    shown: list[Cells] = [
        (
            f"[{number}] {one_line(item.name, NAME_WIDTH)}",
            *compress(item.cells[:-1], kept),
            Text(item.cells[-1], style=DIFFERENCE_STYLES.get(item.verdict or "", "")),
        )
        for number, item in rows[:DIFFERENCES_MAX]
    ]
    heading = (f"against [{baseline_number(columns)}]", *compress(DIFFERENCE_HEADER, kept))
    print_rows(console, f"l{'R' * (len(heading) - 2)}l", heading, shown)
    hidden = len(rows) - DIFFERENCES_MAX
    if hidden > 0:
        console.print(Text(f" and {plural(hidden, 'more difference')}, in -o results.json", style="dim"))
    console.print()


def case_sentence(results: Sequence[CaseResult]) -> str:
    """Return the outcome of a test in a sentence: `test 7, refund after 30 days, failed in 2 of 4 columns: ...`."""
    first = results[0]
    repeats = {result.repeat_index for result in results}
    number = str(first.test_index + 1) if len(repeats) > 1 else case_number(first).removeprefix("#")
    title = case_title(first, 60)
    name = f"test {number}, {title}," if title else f"test {number}"
    counts = Counter(result.status for result in results)
    failed, errored = counts[Status.FAILED], counts[Status.ERROR]
    if len(results) == 1:
        said = {
            Status.PASSED: "passed",
            Status.FAILED: "failed",
            Status.ERROR: "has no verdict",
            Status.NOT_EVALUATED: "was not evaluated",
        }[first.status]
    else:
        is_repeated = len(repeats) > 1
        columns = len({result.column for result in results})
        of = f"{len(results):,} {'answers' if is_repeated else 'columns'}"
        if is_repeated and columns == 1:
            of = f"{len(results):,} repeats"
        if failed:
            said = f"failed in {_of_all(failed, of)}"
            said += f", and {errored:,} {'has' if errored == 1 else 'have'} no verdict" if errored else ""
        elif errored:
            said = f"has no verdict in {_of_all(errored, of)}"
        elif counts[Status.PASSED]:
            said = f"passed in {_of_all(counts[Status.PASSED], of)}"
        else:
            said = "was not evaluated"
    why = _failures_text(results)
    return f"{name} {said}: {why}" if why else f"{name} {said}"


def _of_all(count: int, of: str) -> str:
    """Return `2 of 4 columns`, `all 4 columns` or `both columns`."""
    whole, _, noun = of.partition(" ")
    if f"{count:,}" != whole:
        return f"{count:,} of {of}"
    return f"both {noun}" if count == 2 else f"all {of}"  # noqa: PLR2004 - the number that "both" means


_WHY_NAMED = 3


def _failures_text(results: Sequence[CaseResult]) -> str:
    """Return what failed, most frequent first, each with the score furthest below its threshold."""
    worst: dict[str, tuple[int, AssertionResult]] = {}
    for result in results:
        for item in failed_assertions(result) if result.status is Status.FAILED else ():
            name = one_line(item.metric or item.type, 40)
            count, known = worst.get(name, (0, item))
            worst[name] = count + 1, max(known, item, key=margin_below)
    named = sorted(worst.items(), key=lambda pair: -pair[1][0])
    parts = [f"{name} {failure_text(item)}".rstrip() for name, (_, item) in named[:_WHY_NAMED]]
    if len(named) > _WHY_NAMED:
        parts.append(f"{len(named) - _WHY_NAMED:,} more")
    if not parts:
        errors = (error for result in results for error in errors_of(result))
        parts = [one_line(error.message, 120) for error in errors][:1]
    return ", ".join(parts) or next(filter(None, map(whole_reason, results)), "")


def _what_is_hidden(selection: TableRows) -> str:
    """Return which of the rows are shown, in words."""
    of_all = f"of {plural(selection.total, 'row')}"
    if not selection.problems:
        return f"none {of_all} has a failure or an error, so none is shown"
    if len(selection.rows) == selection.problems:
        return f"shown {of_all}: the {selection.problems} with a failure or an error"
    return f"shown {of_all}: the first {len(selection.rows)} of {selection.problems:,} with a failure or an error"
