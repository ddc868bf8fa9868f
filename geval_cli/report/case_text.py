"""Cases on a terminal: as entries of a list, or all answers to one test on about one screen."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, field
from rich.console import Console
from rich.text import Text

from geval_cli.numbers import format_score, plural
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
    failed_assertions,
    failures_text,
    margin_below,
    output_text,
    whole_reason,
)
from geval_cli.report.console import print_hanging
from geval_cli.report.report import RunReport
from geval_cli.report.sanitize import clipped_lines, one_line, sanitize, sanitized_lines, value_text
from geval_cli.report.verdict import STYLES, case_verdict, column_title, fitted_title, signs_of
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
        ordered = sorted(results, key=_badness)
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


def _badness(result: CaseResult) -> tuple[int, float]:
    worst = max(map(margin_below, failed_assertions(result)), default=0.0)
    return WORST_FIRST.index(result.status), -worst
